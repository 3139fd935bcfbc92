"""Each widget's module is whole: one text in its own comm, which loads nothing and asks nobody.

So it lives where there is no server and no network: VS Code hands the text to a web view of its own.
test_in_browser.py runs it in such a page.
"""

from __future__ import annotations

import re

import pytest
from support.places import ROOT
from support.ranks.made_up import MadeUp
from support.ranks.worlds import make_trace, make_world

from phalanx.widgets import Bandwidth, Monitor, Topology

_STATIC = ROOT / "widgets" / "static"
NAMES = ("bandwidth", "monitor", "topology")
# What would load or ask: other modules, workers, sockets, pictures and files of a server.
_LOADS = re.compile(
    r"\bimport\s*[\w({*'\"]|\brequire\s*\(|\bfetch\s*\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon"
    r"|\bnew\s+(?:Shared)?Worker|importScripts|sourceMappingURL|\beval\s*\(|\bnew Function\b"
)
_ADDRESS = re.compile(r"(?:https?|wss?|file)://[^\s\"'`)]+")
_NAMES_ONLY = {
    "http://www.w3.org/1998/Math/MathML",
    "http://www.w3.org/1999/xhtml",
    "http://www.w3.org/2000/svg",
    "https://ui.perfetto.dev",
}  # of namespaces; to be read


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
    ws = MadeUp(make_world(1, 1), make_trace(1))
    ws.sweeps = ()
    for widget, name in ((Bandwidth, NAMES[0]), (Monitor, NAMES[1]), (Topology, NAMES[2])):
        made = widget(ws)
        state = made.get_state()
        for trait, suffix in (("_esm", "js"), ("_css", "css")):
            assert state[trait] == (_STATIC / f"{name}.{suffix}").read_text(encoding="utf-8")
        made.close()
