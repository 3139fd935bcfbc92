"""What comes once a cell has ended: whole lines, so many, and none lost in between."""

from __future__ import annotations

import pytest
from support.waiting import wait_until

from phalanx.protocol import Notice
from phalanx.workspace import Display, View
from phalanx.workspace.cells.cell import Cell
from phalanx.workspace.output.front_end import Clear, Text
from phalanx.workspace.output.printer import LateOutput


class Below(View):
    """Notes what is shown."""

    def __init__(self) -> None:
        self.lines_shown: list[tuple[int, str]] = []
        self.figures: list[str] = []
        self.notices: list[str] = []

    def lines(self, stream, lines):
        self.lines_shown += [(rank, text) for ranks, text in lines for rank in ranks]

    def display(self, ranks, event):
        self.figures.append(event.data["text/html"])

    def notice(self, text):
        self.notices.append(text)


@pytest.fixture
def below():
    return Below()


def stream(text):
    return {
        "header": {"msg_type": "stream"},
        "metadata": {},
        "content": {"name": "stdout", "text": text},
    }


def wait_idle(late):
    wait_until(lambda: not late._is_drawing, "all is shown, and the thread has ended")


def test_what_nobody_has_taken_comes_first(below):
    """Between the end of a cell and `leave` nothing is lost."""
    cell = Cell("cell", (0, 1))
    late = LateOutput(below, cell.ranks)
    cell.on_iopub(0, stream("before\nhal"))
    cell.events.put(Notice("of no interest any more"))
    cell.leave(late.take)
    cell.on_iopub(0, stream("f\n"))
    cell.on_iopub(1, stream("other\n"))
    wait_idle(late)
    assert [text for rank, text in below.lines_shown if rank == 0] == ["before", "half"]
    assert (1, "other") in below.lines_shown
    cell.on_iopub(1, stream("once more\n"))
    wait_idle(late)
    assert below.lines_shown[-1] == (1, "once more")


def test_figures_come_and_what_changes_the_cell_does_not(below):
    late = LateOutput(below, (0,))
    for kind in ({}, {"is_result": True}, {"is_update": True}):
        late.take(Display(0, {"text/html": str(kind)}, {}, **{"is_result": False, **kind}))
    late.take(Clear(0, wait=False))
    late.take(Text(0, "stdout", "the last\n"))
    wait_idle(late)
    assert (below.figures, below.lines_shown) == (["{}"], [(0, "the last")])


def test_a_thread_that_prints_for_ever_is_bounded(below):
    late = LateOutput(below, (0,), max_lines=3)
    for number in range(10):
        late.take(Text(0, "stdout", f"{number}\n"))
    wait_idle(late)
    late.take(Text(0, "stdout", "more\n"))
    wait_idle(late)
    assert below.lines_shown == [(0, "0"), (0, "1"), (0, "2")]
    assert below.notices == ["this cell goes on printing; %distributed output RANK shows it all"]


def test_a_view_that_fails_ends_nothing(caplog):
    class Breaks(Below):
        def lines(self, stream, lines):
            super().lines(stream, lines)
            if self.lines_shown == [(0, "lost")]:
                msg = "broken"
                raise ValueError(msg)

    view = Breaks()
    late = LateOutput(view, (0,))
    for text in ("lost", "shown"):
        late.take(Text(0, "stdout", f"{text}\n"))
        wait_idle(late)
    assert view.lines_shown[1:] == [(0, "shown")]
    assert "cannot be shown" in caplog.text
