"""The loop that waits for a cell, with a fake front end and fake ranks."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import weakref

from phalanx.protocol import CellEnded, RankSays, StacksAre, Step, StopReport
from phalanx.workspace import Display, View
from phalanx.workspace.cells import loop
from phalanx.workspace.cells.cell import Cell, Ended, StopRequest
from phalanx.workspace.output.front_end import Clear, Text
from phalanx.workspace.output.printer import CellOutput


class FakeView(View):
    """Keeps what is shown."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def lines(self, stream, lines):
        self.shown += [(*ranks, stream, line) for ranks, line in lines]

    def display(self, ranks, event):
        self.shown.append((*ranks, event.data))

    def bars(self, bars):
        self.shown.append(dict(bars))

    def notice(self, text):
        self.shown.append(text)


class FakeRanks:
    """Stands in for the root: reacts to orders as ranks would, and ends them."""

    def __init__(self, cell: Cell, *, held: StopReport | None = None) -> None:
        self.cell = cell
        self.held = held  # what they report when they are stopped; None: they stop at once
        self.sent: list[object] = []

    def order(self, ranks, order):
        if order.hold_s:
            self.hold(ranks)
        else:
            self.interrupt(ranks)

    def hold(self, ranks):
        self.sent.append(("hold", ranks))
        if self.held is not None:
            for rank in ranks:
                self.cell.events.put(RankSays(rank, self.held))
        else:
            self.end(ranks)

    def interrupt(self, ranks):
        self.sent.append(("interrupt", ranks))
        self.end(ranks)

    def end(self, ranks):
        for rank in ranks:
            self.cell.events.put(
                Ended(rank, CellEnded("cell", ok=False, ename="KeyboardInterrupt"))
            )

    def ask_later(self, question, kind, take):
        if kind is StacksAre:  # it never says how cells stand
            take(StacksAre({}))

    def resend(self, cell, rank, *, is_stopped):
        raise NotImplementedError


def run_cell(cell, view, ranks, timeout_s=None, **options):
    return loop.CellLoop(cell, view, ranks, ranks.resend, **options).run(timeout_s)


def start(ranks=2, *events):
    cell = Cell("cell", tuple(range(ranks)))
    for event in events:
        cell.events.put(event)
    return cell


def test_output_is_shown_in_lines_and_values_by_rank():
    value = [Display(rank, {"text/plain": str(rank)}, {}, is_result=True) for rank in range(2)]
    cell = start(2, Text(1, "stdout", "a\nb"), value[1], Ended(1, None), value[0], Ended(0, None))
    view = FakeView()
    outcome = run_cell(cell, view, FakeRanks(cell))
    assert view.shown == [
        (1, "stdout", "a"),
        (1, "stdout", "b"),
        (0, {"text/plain": "0"}),
        (1, {"text/plain": "1"}),
    ]
    assert outcome.failures == {}


def test_what_ranks_printed_is_freed_with_the_result():
    """Not by the collector, which may come many cells later."""
    cell = start(1, Text(0, "stdout", "long"), Ended(0, None))
    gc.disable()
    try:
        outcome = run_cell(cell, FakeView(), FakeRanks(cell))
        text = weakref.ref(outcome.texts[0])
        del outcome
        assert text() is None
    finally:
        gc.enable()


def test_ctrl_c_interrupts_the_ranks_and_waits_for_them():
    cell = start(2, Ended(0, None))
    view = FakeView()
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        view.lines = lambda *args: os.kill(os.getpid(), signal.SIGINT)
        cell.events.put(Text(1, "stdout", "go\n"))
        ranks = FakeRanks(cell)
        outcome = run_cell(cell, view, ranks)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, previous)
    assert outcome.was_stopped
    assert ranks.sent == [("hold", (1,))]
    assert outcome.abandoned == ()


def stop_twice(held):
    """Stop a cell of two ranks that report ``held``, and again once they are held."""
    cell = start(2, StopRequest(), Text(1, "stdout", "go\n"))
    view, ranks = FakeView(), FakeRanks(cell, held=held)
    hold = ranks.hold

    def stop_again(whom):
        hold(whom)
        cell.events.put(StopRequest())

    ranks.hold = stop_again
    outcome = run_cell(cell, view, ranks)
    assert outcome.was_stopped
    assert outcome.abandoned == ()
    assert ranks.sent == [("hold", (0, 1)), ("interrupt", (0, 1))]
    return view


def test_a_second_ctrl_c_interrupts_ranks_that_are_held():
    stop_twice(StopReport("runs", (Step(1, 0, -1, -1, 5),), has_called=True))


def test_a_second_ctrl_c_does_no_harm_where_all_are_held():
    before = Step(1, 0, -1, -1, 6)
    view = stop_twice(StopReport("held", (Step(1, 0, -1, -1, 5),), before, has_called=True))
    assert not any("variables may differ" in str(shown) for shown in view.shown)


def test_lines_are_shown_while_others_come_without_a_pause():
    texts = [Text(0, "stdout", f"{i}\n") for i in range(100)]
    cell, times = start(2, *texts, Ended(0, None), Ended(1, None)), itertools.count()
    waiting = []

    class View(FakeView):
        def lines(self, stream, lines):
            waiting.append(cell.events.qsize())

    run_cell(cell, View(), FakeRanks(cell), clock=lambda: next(times) * 0.02)
    assert waiting[0] > 50


def test_many_characters_are_a_limit_as_well():
    lines = "".join(f"{number:099999}\n" for number in range(110))
    cell = start(1, Text(0, "stdout", lines), Ended(0, None))
    view = FakeView()
    run_cell(cell, view, FakeRanks(cell))
    assert len(view.shown) == 101 + 1
    assert view.shown[-1] == "9 more lines; %distributed output RANK shows them"


def test_bars_are_drawn_and_taken_away():
    cell = start(1, Text(0, "stderr", "\r10%"), Text(0, "stderr", "\r20%"), Ended(0, None))
    view = FakeView()
    run_cell(cell, view, FakeRanks(cell))
    assert view.shown == [{0: "20%"}, (0, "stderr", "20%"), {}]


def test_bars_are_drawn_five_times_a_second_at_most():
    view = FakeView()
    output = CellOutput(view)
    for step in range(101):
        output.text(Text(0, "stderr", f"\r{step}%"), step / 100)
        output.show({0}, step / 100)
    assert len(view.shown) in (5, 6)


class NotebookLike(FakeView):
    shows_bars = True


def test_text_after_clear_output_is_written_anew():
    events = [Text(0, "stdout", "begun\n"), Text(1, "stdout", "begun\n")]
    for step in range(3):
        for rank in range(2):
            events += [Clear(rank, True), Text(rank, "stdout", f"step {step}\nloss {rank}\n")]
    events += [Text(0, "stdout", "half"), Clear(0, False), Text(0, "stdout", "end")]
    cell = start(2, *events, Ended(0, None), Ended(1, None))
    view = NotebookLike()
    run_cell(cell, view, FakeRanks(cell))
    assert view.shown == [
        (0, 1, "stdout", "begun"),
        {1: "step 2\nloss 1"},
        (1, "stdout", "step 2"),
        (1, "stdout", "loss 1"),
        (0, "stdout", "end"),
        {},
    ]


def test_a_line_without_an_end_stays_until_the_next_text():
    events = []
    for step in range(3):
        events += [Text(0, "stdout", f"step {step}"), Clear(0, True)]
    cell = start(1, *events, Ended(0, None))
    view = NotebookLike()
    run_cell(cell, view, FakeRanks(cell))
    assert [item[-1] for item in view.shown if isinstance(item, tuple)] == ["step 2"]


def test_many_lines_after_clear_output_are_lines_as_any():
    lines = "".join(f"line {i}\n" for i in range(30))
    cell = start(1, Clear(0, False), Text(0, "stdout", lines), Ended(0, None))
    view = NotebookLike()
    run_cell(cell, view, FakeRanks(cell))
    assert [text for _, _, text in view.shown] == lines.splitlines()


def test_where_nothing_can_be_taken_back_every_line_is_shown():
    cell = start(
        1, Text(0, "stdout", "a\n"), Clear(0, True), Text(0, "stdout", "b\n"), Ended(0, None)
    )
    view = FakeView()
    run_cell(cell, view, FakeRanks(cell))
    assert view.shown == [(0, "stdout", "a"), (0, "stdout", "b")]
