"""Render pictures and widgets in one chromium, with worlds that are made up: no server, no kernel.

The committed bundles by keyboard alone, without motion, in forced colours, and where nothing can be
loaded. Pictures are left in ``tests/artifacts``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from PIL import Image
from support.notebooks.browser import chromium, pages
from support.notebooks.widget_page import focused, play, put
from support.places import ARTIFACTS
from support.ranks.worlds import make_sweep, make_trace, make_world

from phalanx.protocol import (
    CellTime,
    LateRank,
    Limit,
    RankSample,
    Samples,
    Span,
    SweepRun,
)
from phalanx.widgets import bandwidth, monitor, topology
from phalanx.widgets.frames.bandwidth import SweepRequest, frame_of
from phalanx.widgets.frames.monitor import GapFrame, MonitorFrameBuilder
from phalanx.widgets.frames.rates import LinkRate
from phalanx.widgets.frames.topology import Timeline, world_of
from phalanx.workspace import SampleView

pytestmark = [pytest.mark.slow, pytest.mark.browser]
OpenPage = Callable[..., Any]
_MOST_STOPS = 40


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    ARTIFACTS.mkdir(exist_ok=True)
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    with pages(browser) as open_one:
        yield open_one


# -- still pictures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_drawn(scheme: str, open_page: OpenPage) -> None:
    pictures = {
        "topology-one-host": topology(make_world(1, 4, states=("idle", "busy", "input", "dead"))),
        "topology-tcp": topology(make_world(1, 4, tcp=True)),
        "topology-hosts": topology(make_world(3, 4)),
        "topology-64": topology(make_world(1, 64)),
        "monitor": monitor(
            make_trace(4, late=2, dropped=7), make_world(1, 4, states=("busy", "idle", "dead"))
        ),
        "monitor-64": monitor(make_trace(64), make_world(1, 64)),
        "bandwidth-beside": bandwidth(
            [
                replace(m, algorithm="inline" if m.nbytes < 5000 else "staged")
                for m in make_sweep("all_sum", 12)
            ],
            limits=[Limit("memory copy", "arena", 25.0, 1 << 30, 0.2, "one core copies 64 MiB")],
            earlier=[
                SweepRun(
                    "all_sum",
                    "float32",
                    4,
                    "done",
                    "2026-11-21T10:00:00+00:00",
                    tuple(make_sweep("all_sum", 12, transport="tcp")),
                )
            ],
        ),
        "bandwidth": bandwidth(
            make_sweep("all_sum", 12) + make_sweep("all_sum", 12, transport="tcp"), title="a sweep"
        ),
    }
    page = open_page(color_scheme=scheme)
    for name, picture in pictures.items():
        page.set_content(f"<body style='margin:0'>{picture.svg}</body>")
        png = page.locator("svg").screenshot()
        (ARTIFACTS / f"{name}-{scheme}.png").write_bytes(png)
        assert len(Image.open(BytesIO(png)).getcolors(1 << 24)) > 20, f"{name} is blank"
        # Every text stands inside the picture.
        outside = page.evaluate(
            "() => { const s = document.querySelector('svg').getBoundingClientRect();"
            " return [...document.querySelectorAll('text')].filter(t => {"
            " const r = t.getBoundingClientRect();"
            " return r.left < s.left || r.right > s.right || r.top < s.top || r.bottom > s.bottom"
            " }).map(t => t.textContent) }"
        )
        assert outside == [], name


# -- widgets by keyboard ----------------------------------------------------------------------------


def _topology(*, states: tuple[str, ...] = ("busy", "busy", "input", "dead")) -> dict[str, bytes]:
    t = make_world(1, 4, states=states, tcp=True)
    ring = tuple(LinkRate(rank, (rank + 1) % 4, 2e8) for rank in range(4))
    frame = replace(Timeline().take(t, 100.0), links=ring)
    return {"world": msgspec.json.encode(world_of(t)), "frame": msgspec.json.encode(frame)}


def _monitor() -> dict[str, bytes]:
    ms = 1_000_000
    lanes = MonitorFrameBuilder(lambda _ns: 7)
    samples = []
    for number in range(1, 21):
        now_ns = 20_000 * ms + number * 250 * ms
        ranks = tuple(
            RankSample(
                rank, 41200 + rank, "dead" if rank == 3 else "busy", "", number, number << 20,
                number * 100 * ms, number * 40 * ms, {},
                (Span(number, "all_gather" if number % 3 else "all_sum", now_ns - 200 * ms, now_ns - 60 * ms,
                      140 * ms, 70 * ms, 1 << 20, number),),
            )
            for rank in range(4)
        )  # fmt: skip
        cell = CellTime("c", 20_100 * ms, (0, 1, 2, 3), {})
        late = (LateRank(1, 1, 5 * ms, 5 * ms),)
        samples.append(
            Samples(number, now_ns, 0.0, 1, ranks, (cell,), 1, late, ()),
        )
    frame = lanes.take(SampleView(tuple(samples)))
    assert frame is not None
    frame = replace(frame, gaps=(GapFrame(16_000.0, 20_200.0, "this kernel was busy"),))
    return {
        "world": msgspec.json.encode(world_of(make_world(1, 4))),
        "frame": msgspec.json.encode(frame),
    }


def _bandwidth() -> dict[str, bytes]:
    when = "2026-11-21T10:00:00+00:00"
    run = SweepRun("all_sum", "float32", 4, "done", when, tuple(make_sweep("all_sum", 12)))
    frame = frame_of(run, None, (run,), SweepRequest(), why_gone="", error="", now=1.0)
    return {"frame": msgspec.json.encode(frame)}


_TRAITS = {"topology": _topology, "monitor": _monitor, "bandwidth": _bandwidth}
# In the order of the page; of the ranks one is a stop, arrows go on from there.
_STOPS = {
    "topology": [
        "find ranks", "Tiles", "Compact", "Links", "smaller", "larger", "rank 0: running, process 41200",
    ],
    "monitor": [
        "Pause", "zoom out: more time", "zoom in: less time", "Now", "Save a trace",
        "rank 0", "lanes of the ranks over time",
    ],
    "bandwidth": [
        "save as CSV", "save as JSON", "operation", "dtype", "first size", "last size",
        "factor from size to size", "timed calls per size", "Run",
        "bandwidth and time by size; arrow keys go from size to size",
    ],
}  # fmt: skip


def _walk(page: Any, key: str, until: str) -> list[dict[str, Any]]:
    stops: list[dict[str, Any]] = []
    for _ in range(_MOST_STOPS):
        page.keyboard.press(key)
        stops.append(focused(page))
        if stops[-1]["name"] == until:
            return stops[:-1]
    pytest.fail(f"no way out: {[stop['name'] for stop in stops]}")


def test_tab_goes_through_and_out_again(open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1100, "height": 1000})
    for name, traits in _TRAITS.items():
        play(page, name, traits())
        page.locator(f".px-{name}").wait_for()
        page.get_by_role("button", name="before", exact=True).focus()
        stops = _walk(page, "Tab", "after")
        names = [stop["name"] for stop in stops]
        assert len(names) == len(_STOPS[name]), names
        assert all(a.startswith(b) for a, b in zip(names, _STOPS[name], strict=True)), names
        # Everything that has the focus is there and shows it.
        assert [stop["name"] for stop in stops if not (stop["ring"] and stop["shown"])] == []
        back = _walk(page, "Shift+Tab", "before")
        assert [stop["name"] for stop in back] == names[::-1]


def test_a_rank_is_chosen_asked_and_left_with_keys(open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1100, "height": 1000})
    play(page, "topology", _topology())
    press = page.keyboard.press
    page.get_by_label("find ranks").focus()
    for _ in range(6):
        press("Tab")
    press("ArrowRight")
    assert focused(page)["name"].startswith("rank 1: ")
    press("Enter")
    details = page.locator(".px-details")
    details.get_by_text("rank 1 · running").wait_for()
    press("Tab")
    assert focused(page)["name"] == "Where is it?"
    press("Enter")
    asked = page.evaluate("() => window.sent.filter(its => its.kind === 'ask').pop()")
    assert (asked["action"], asked["rank"]) == ("stacks", 1)
    # While it is out of use it keeps the focus: a key must not reach the page's shortcuts.
    assert focused(page)["name"] == "Where is it?"
    press("Enter")
    assert page.evaluate("() => window.sent.filter(its => its.kind === 'ask').length") == 1
    page.evaluate("() => window.answer(true, 'in train.py, line 3')")
    details.get_by_text("in train.py, line 3").wait_for()
    assert focused(page)["name"] == "Where is it?"
    press("Escape")
    details.wait_for(state="hidden")
    assert focused(page)["name"].startswith("rank 1: ")
    # To the table of links, and in it from rank to rank.
    page.get_by_role("button", name="Links", exact=True).focus()
    press("Enter")
    for _ in range(3):
        press("Tab")
    assert focused(page)["name"] == "rank 0"
    assert focused(page)["ring"]
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        press(key)
    details.get_by_text("rank 2 · waiting for input").wait_for()
    row = page.get_by_role("table", name="links between 4 ranks").get_by_role("row").nth(4)
    assert row.text_content() == "12tcprank 1 → rank 2: 200 MB/s; back: 0 B/s"
    page.screenshot(path=ARTIFACTS / "keyboard-links.png")


def test_a_sweep_is_begun_and_read_with_keys(open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1100, "height": 1000})
    play(page, "bandwidth", _bandwidth())
    page.get_by_label("last size").focus()
    page.keyboard.press("Enter")  # as a form does
    page.locator("button", has_text="Starting").wait_for()
    assert page.evaluate("() => window.sent.slice(-1)[0].action") == "run"
    page.evaluate("() => window.answer(false, 'a cell runs')")
    page.get_by_role("alert").get_by_text("a cell runs").wait_for()
    page.get_by_role("button", name="Run", exact=True).focus()
    page.keyboard.press("Enter")
    assert focused(page)["name"] == "Starting…"
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    page.locator(".px-said").get_by_text("GB/s").wait_for()


def test_the_monitor_is_paused_and_read_with_keys(open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 1100, "height": 1000})
    play(page, "monitor", _monitor())
    page.get_by_role("button", name="Save a trace").focus()
    for key in ("Tab", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.locator(".px-facts").get_by_text("rank 1: running").wait_for()
    page.locator("canvas").focus()
    page.keyboard.press("P")
    page.locator(".px-tip").get_by_text("rank 1: all_gather #20").wait_for()
    page.get_by_role("button", name="Paused", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.locator(".px-tip").wait_for(state="hidden")
    page.keyboard.press("Home")
    page.get_by_role("button", name="Pause", exact=True).wait_for()


@pytest.mark.parametrize("name", _TRAITS)
def test_forced_colours_and_no_motion(name: str, open_page: OpenPage) -> None:
    # Chromium's palette for it is one of light on black.
    options = {"forced_colors": "active", "reduced_motion": "reduce", "color_scheme": "dark"}
    page = open_page(viewport={"width": 1100, "height": 900}, **options)
    play(page, name, _TRAITS[name]())
    # As where JupyterLab has its light theme, whatever the palette.
    page.evaluate("() => document.body.setAttribute('data-jp-theme-light', 'true')")
    put(page, "frame", _TRAITS[name]()["frame"])
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))")
    page.screenshot(path=ARTIFACTS / f"forced-{name}.png", full_page=True)
    assert page.evaluate("() => document.getAnimations().length") == 0
    seen = page.evaluate(
        """name => {
        const root = document.querySelector('.px-' + name), canvas = document.querySelector('canvas');
        const of = (where, what) => { const its = document.querySelector(where);
            return its && getComputedStyle(its)[what]; };
        const probe = document.body.appendChild(document.createElement('i'));
        probe.style.cssText = 'color: CanvasText; background: Canvas';
        const system = getComputedStyle(probe);
        return {
            ground: getComputedStyle(root).backgroundColor === system.backgroundColor,
            // What is told apart by colour still is: signs, swatches, links, bars.
            apart: {
                topology: new Set([...document.querySelectorAll('.px-tile .px-sign')].map(
                    its => getComputedStyle(its).color)).size >= 3,
                monitor: of('.px-swatch', 'backgroundColor') !== system.backgroundColor,
                bandwidth: of('.px-fill', 'backgroundColor') !== system.backgroundColor,
            }[name],
        };
    }""",
        name,
    )
    assert seen == {"ground": True, "apart": True}


# -- on their own -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(_TRAITS))
def test_it_runs_where_there_is_nothing_else(name: str, open_page: OpenPage) -> None:
    """In a narrow page whose policy is that of VS Code's web views, and that reaches nobody."""
    policy = (
        "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline';"
        " connect-src 'none'; img-src data:"
    )
    world = make_world(2, 2)
    traits = {"world": msgspec.json.encode(world_of(world))}
    if name == "topology":
        traits["frame"] = msgspec.json.encode(Timeline().take(world, 100.0))
    asked: list[str] = []
    errors: list[str] = []
    page = open_page(viewport={"width": 480, "height": 900})
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    play(page, name, traits, policy=policy)
    page.locator(f".px-{name}").wait_for()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 480
    page.evaluate("() => window.close_it()")
    assert errors == [], errors
    assert [url for url in asked if not url.startswith("blob:")] == []


def test_one_zero_and_odd_worlds_are_no_error(open_page: OpenPage) -> None:
    errors: list[str] = []
    page = open_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    for t in (make_world(1, 1), replace(make_world(1, 2), ranks=(), links=())):
        frame = msgspec.json.encode(Timeline().take(t, 100.0))
        play(page, "topology", {"world": msgspec.json.encode(world_of(t)), "frame": frame})
        page.locator(".px-topology .px-pill").wait_for()
    assert errors == [], errors
