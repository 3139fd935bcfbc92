"""Each widget's module is whole: one text in its own comm, which loads nothing and asks nobody.

So it lives where there is no server and no network: VS Code hands the text to a web view of its own.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

import msgspec
import pytest
from browser import chromium_page
from worlds import make_world

from phalanx.widgets import Bandwidth, Monitor, Topology
from phalanx.widgets._topology_frames import Timeline, world_of
from phalanx.workspace import Workspace

_STATIC = Path(__file__).resolve().parents[2] / "widgets" / "static"
NAMES = ("bandwidth", "monitor", "topology")
# What would load or ask: other modules, workers, sockets, pictures and files of a server.
_LOADS = re.compile(
    r"\bimport\s*[\w({*'\"]|\brequire\s*\(|\bfetch\s*\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon"
    r"|\bnew\s+(?:Shared)?Worker|importScripts|sourceMappingURL|\beval\s*\(|\bnew Function\b"
)
_ADDRESS = re.compile(r"(?:https?|wss?|file)://[^\s\"'`)]+")
_NAMES_ONLY = {
    "http://www.w3.org/2000/svg",
    "https://ui.perfetto.dev",
}  # of a namespace; to be read
_RUN = """async ([code, css, values]) => {
    const style = document.createElement('style');
    style.textContent = css;
    const root = document.createElement('div');
    document.body.append(style, root);
    const bytes = text => new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
    const known = Object.fromEntries(Object.entries(values).map(([name, text]) => [name, bytes(text)]));
    const model = {
        get: name => known[name], set() {}, save_changes() {}, send() {}, on() {}, off() {},
    };
    const url = URL.createObjectURL(new Blob([code], {type: 'text/javascript'}));
    window.close_it = (await import(url)).default.render({model, el: root});
    URL.revokeObjectURL(url);
}"""


def test_there_are_no_others():
    assert {path.stem for path in _STATIC.glob("*.js")} == set(NAMES)
    assert {path.suffix for path in _STATIC.iterdir()} == {".js", ".css"}  # no chunk, no picture


@pytest.mark.parametrize("name", NAMES)
def test_a_module_loads_nothing(name):
    code = (_STATIC / f"{name}.js").read_text(encoding="utf-8")
    assert _LOADS.findall(code) == []
    assert set(_ADDRESS.findall(code)) <= _NAMES_ONLY
    assert re.search(r"export\s*\{[^}]*\bas default\s*\}", code)
    css = (_STATIC / f"{name}.css").read_text(encoding="utf-8")
    assert "@import" not in css
    assert "url(" not in css


def test_the_text_itself_is_sent():
    with Workspace.start(n=1, linger=0) as ws:
        for widget, name in ((Bandwidth, NAMES[0]), (Monitor, NAMES[1]), (Topology, NAMES[2])):
            made = widget(ws)
            state = made.get_state()
            for trait, suffix in (("_esm", "js"), ("_css", "css")):
                assert state[trait] == (_STATIC / f"{name}.{suffix}").read_text(encoding="utf-8")
            made.close()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_where_there_is_nothing_else(name):
    """In a narrow page whose policy is that of VS Code's web views, and that reaches nobody."""
    policy = (
        "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline';"
        " connect-src 'none'; img-src data:"
    )
    world = make_world(2, 2)
    values = {
        "world": msgspec.json.encode(world_of(world)),
        "frame": msgspec.json.encode(Timeline().take(world, 100.0)) if name == "topology" else b"",
    }
    asked: list[str] = []
    errors: list[str] = []
    with chromium_page(viewport={"width": 480, "height": 900}) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.set_content(
            f"<meta http-equiv='Content-Security-Policy' content=\"{policy}\"><body></body>"
        )
        page.evaluate(
            _RUN,
            [
                (_STATIC / f"{name}.js").read_text(encoding="utf-8"),
                (_STATIC / f"{name}.css").read_text(encoding="utf-8"),
                {trait: base64.b64encode(value).decode() for trait, value in values.items()},
            ],
        )
        page.locator(f".px-{name}").wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 480
        page.evaluate("() => window.close_it()")
    assert errors == []
    assert [url for url in asked if not url.startswith("blob:")] == []
