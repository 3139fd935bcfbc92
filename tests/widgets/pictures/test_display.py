"""How a widget is displayed: as IPython does it, and by magics with a still picture beside it."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.events import EventManager, available_events
from IPython.core.formatters import DisplayFormatter
from support.programs.restarting import wait_for

from phalanx.widgets import Monitor, StillPicture, keep_stills
from phalanx.widgets.live import snapshot as _kept_still
from phalanx.widgets.live import widget as _live
from phalanx.widgets.live.widget import MOST_QUESTIONS, LiveWidget
from phalanx.workspace import Workspace

VIEW = "application/vnd.jupyter.widget-view+json"


class Word(LiveWidget):
    """A widget of one word."""

    _esm = "export default { render() {} }"
    said = "first"

    def _poll(self, workspace: Any) -> None:
        """Nothing."""

    def _show(self, polled: None) -> None:
        """Nothing."""

    def still(self) -> StillPicture:
        """It."""
        return StillPicture(f"<svg>{self.said}</svg>", self.said)


class Displayed:
    """What was displayed, in its order."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def __call__(self, what: Any, **options: Any) -> Displayed:
        is_raw = options.get("raw", False)
        self.all.append(what if is_raw else DisplayFormatter().format(what)[0])
        return self

    display = update = __call__


@pytest.fixture
def shell(monkeypatch):
    shell = SimpleNamespace()
    shell.events = EventManager(shell, available_events)
    monkeypatch.setattr(_live, "STILL_S", 10.0)  # on a machine that is busy, too
    monkeypatch.setattr(_live, "get_ipython", lambda: shell)
    return shell


@pytest.fixture
def displayed(monkeypatch):
    displayed = Displayed()
    for room in (_live, _kept_still):
        monkeypatch.setattr(room, "display", displayed)
    return displayed


@pytest.fixture
def make():
    made: list[Word] = []

    def make_one() -> Word:
        made.append(Word(SimpleNamespace(topology=lambda: None)))
        return made[-1]

    yield make_one
    for its in made:
        its.close()


def test_ipythons_formatter_has_view_and_picture_in_one(make):
    """So `display(widget, display_id=…)`, its handle's `update` and `Output` do as with any widget."""
    widget = make()
    data, _ = DisplayFormatter().format(widget)
    assert data[VIEW]["model_id"] == widget.model_id
    assert data["text/plain"] == "first"
    assert data["image/svg+xml"] == "<svg>first</svg>"
    assert widget.still_id == ""


def test_a_magic_shows_the_picture_right_after_the_widget(make, shell, displayed):
    shell.kernel = object()
    widget = make()
    widget.show()
    view, still = displayed.all
    assert (view[VIEW]["model_id"], view["text/plain"]) == (widget.model_id, "")
    assert set(still) == {"image/svg+xml", "text/plain"}
    (mark,) = re.findall(r'^<svg data-px-still="([0-9a-f]{32})">first', still["image/svg+xml"])
    assert widget.get_state()["still_id"] == mark
    widget.said = "second"
    shell.events.trigger("post_run_cell", None)
    assert displayed.all[2] == {
        "image/svg+xml": f'<svg data-px-still="{mark}">second</svg>',
        "text/plain": "second",
    }
    widget.show()
    assert [mark in str(its) for its in displayed.all[3:]] == [False, True]


def test_a_terminal_has_the_picture_alone(make, shell, displayed):
    widget = make()
    widget.show()
    assert displayed.all == [{"image/svg+xml": "<svg>first</svg>", "text/plain": "first"}]
    assert widget.still_id == ""


def test_a_cells_end_waits_once_for_all_widgets(make, shell, monkeypatch):
    asked: list[object] = []
    drawn = SimpleNamespace(wait=lambda _s: None)
    monkeypatch.setattr(_kept_still.SavedSnapshot, "ask", lambda its: asked.append(its) or drawn)
    first, second, third = made = [make(), make(), make()]
    shell.events.trigger("pre_run_cell", None)

    def end_cell() -> list[Word]:
        asked.clear()
        shell.events.trigger("post_run_cell", None)
        return [its for one in asked for its in made if its._snapshot is one]

    assert end_cell() == [first, second, third]
    first.close()
    for view in ("a", "b"):
        second._on_message(second, {"kind": "open", "view": view}, [])
    second._on_message(second, {"kind": "look", "view": "a"}, [])
    second._on_message(second, {"kind": "close", "view": "a"}, [])
    assert end_cell() == [second, third]
    second._on_message(second, {"kind": "close", "view": "b"}, [])  # no page has it any more
    assert end_cell() == [third]


def test_a_widget_that_is_closed_while_a_cell_ends_waits_for_no_picture(make, shell):
    widget = make()
    shell.events.unregister("post_run_cell", widget._on_cell_ends)  # as `close` on another thread
    widget._on_cell_ends()
    shell.events.register("post_run_cell", widget._on_cell_ends)


def test_questions_are_answered_where_no_thread_can_begin(make, monkeypatch):
    def refuse(_: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    widget, said = make(), []
    widget.send = said.append
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(MOST_QUESTIONS + 1):
        widget._on_message(widget, {"kind": "ask", "id": "7"}, [])
    answers = [its["text"] for its in said if its["kind"] == "answer"]
    assert answers == ["can't start new thread"] * (MOST_QUESTIONS + 1)


def test_cells_that_ask_nothing_of_ranks_do_not_fetch_what_those_did(shell, displayed, monkeypatch):
    shell.kernel = object()
    with Workspace.start(n=2, linger=0) as ws:
        widget = Monitor(ws)
        monkeypatch.setattr(widget, "keep_still", lambda: None)  # only what the end of a cell asks
        widget.show()
        fetched: list[int] = []
        fetch = ws.trace
        monkeypatch.setattr(ws, "trace", lambda: fetched.append(1) or fetch())

        def cell() -> int:
            shell.events.trigger("post_run_cell", None)
            return len(fetched)

        n_fetched = cell()
        assert (cell(), cell()) == (n_fetched, n_fetched)
        ws.run("for _ in range(3): px.all_sum(1)")
        wait_for(lambda: {rank.state for rank in ws.topology().ranks} == {"idle"})
        assert cell() == n_fetched + 1
        assert "rank 0   idle: 3 operations" in displayed.all[-1]["text/plain"]
        assert cell() == n_fetched + 1
        keep_stills([widget], is_forced=True)
        assert len(fetched) == n_fetched + 2
    assert (cell(), cell()) == (n_fetched + 3, n_fetched + 3)  # it is said once that they are gone
    widget.close()
