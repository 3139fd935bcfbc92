"""Waiting for a cell: showing what comes, asking what ranks ask, stopping when told to.

The loop runs on the caller's thread (a notebook's main thread) and is all of a cell's life
there; it knows the view and the workspace's sending, not sockets.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from phalanx.protocol import RankStack, Topology, TypedLine

from ._again import AskAgain, Mend
from ._asking import Asking, LineSender
from ._cell import Cell
from ._ctrl_c import ctrl_c
from ._events import (
    Clear,
    Display,
    Ended,
    Event,
    Failure,
    Interrupted,
    Lost,
    NeedLine,
    NeedOver,
    Seen,
    SeenCells,
    SeenStacks,
    StopRequest,
    TakenAway,
    Text,
    Told,
)
from ._output import MAX_LINES, CellOutput
from ._ranks import name_ranks
from ._sayings import say_lost
from ._status import CellStatus
from ._stopping import Stopping
from ._view import View

__all__ = ["CellOutcome", "CellSender", "Look", "See", "run_cell"]

IDLE_WAIT_S = 0.25  # how long to sleep without news: bounds how late a deadline is seen
PROMPT_POLL_S = 0.02

# Asks the root what ranks do, and where they are; the answers come later, on another thread.
Look = Callable[[Callable[[Topology], None]], None]
See = Callable[[tuple[int, ...], bool, Callable[[dict[int, RankStack]], None]], None]


class CellSender(LineSender, Protocol):
    """What the loop may send."""

    def interrupt_cell(self, cell: str, ranks: tuple[int, ...]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks."""


class CellOutcome:
    """How a cell ended on each of its ranks."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.failures: dict[int, Failure] = {}
        self.lost: dict[int, Lost] = {}
        self.results: dict[int, Display] = {}
        self.abandoned: tuple[int, ...] = ()  # ranks that did not react to a stop
        self.was_stopped = False
        self.taken = ""  # the workspace was taken away meanwhile: in which words
        self.has_timed_out = False
        self.places: dict[int, RankStack] = {}  # of ranks that still ran when time was up


class _CellLoop:
    """The state of `run_cell`; one object a cell, one thread."""

    def __init__(
        self,
        cell: Cell,
        view: View,
        sender: CellSender,
        output: CellOutput,
        status: CellStatus,
        see: See | None,
        typed: Iterable[TypedLine],
    ) -> None:
        self.cell = cell
        self.view = view
        self.sender = sender
        self.running = set(cell.ranks)
        self.outcome = CellOutcome(cell.ranks)
        self.output = output
        self.status = status
        self.asking = Asking(cell.name, cell.ranks, view, sender, output.break_here, typed)
        self.n_stops = 0
        self.again: AskAgain | None = None
        self.missing: set[int] = set()  # ranks of whose output something was lost

        def ask(ranks: tuple[int, ...], is_twice: bool) -> None:
            assert see is not None
            see(ranks, is_twice, lambda stacks: cell.events.put(SeenStacks(stacks)))

        self.stopping = Stopping(None if see is None else ask, self.interrupt, self.notice)

    def interrupt(self, ranks: tuple[int, ...]) -> None:
        self.sender.interrupt_cell(self.cell.name, ranks)
        self.asking.stop()

    def notice(self, text: str) -> None:
        self.output.break_here()
        self.view.notice(text)

    def step(self, clock: Callable[[], float]) -> None:
        """Take what has come, or wait a moment for it; then see to the questions."""
        wait_s = PROMPT_POLL_S if self.asking.is_waiting else IDLE_WAIT_S
        dues = [self.output.next_due_s(), self.status.next_due_s()]
        due_s = min((due for due in dues if due is not None), default=None)
        if due_s is not None:
            wait_s = min(wait_s, max(0.0, due_s - clock()))
        try:
            self.take(self.cell.events.get(timeout=wait_s), clock())
            while self.running:
                self.take(self.cell.events.get_nowait(), clock())
        except queue.Empty:
            pass
        now_s = clock()
        self.output.show(self.running, now_s)
        self.asking.step(self.running, now_s)
        self.cell.waiting = self.asking.waiting
        self.status.step(self.running, self.asking.waiting, self.outcome.lost, now_s)
        if self.again is not None:
            is_stopping = self.n_stops > 0 or self.stopping.has_begun
            self.again.step(self.running, now_s, is_stopping=is_stopping)

    def take(self, event: Event, now_s: float) -> None:
        if isinstance(event, Text):
            self.output.text(event, now_s)
        elif isinstance(event, Display):
            if event.is_result:
                self.outcome.results[event.rank] = event
            self.output.display(event, now_s)
        elif isinstance(event, Clear):
            self.output.display(event, now_s)
        elif isinstance(event, NeedLine):
            self.asking.need(event.rank, event.need, now_s)
        elif isinstance(event, NeedOver):
            self.asking.withdraw(event.rank)
        elif isinstance(event, Ended):
            self.end(event.rank)
            if event.failure is not None:
                self.outcome.failures[event.rank] = event.failure
            if event.n_missing:
                self.missing.add(event.rank)
        elif isinstance(event, Lost):
            if event.rank in self.running:
                self.end(event.rank)
                self.outcome.lost[event.rank] = event
                self.notice(say_lost(event.rank, event.reason, will_return=event.will_return))
                if event.tail:
                    self.output.text(Text(event.rank, "stderr", event.tail), now_s)
        elif isinstance(event, Seen):
            self.status.take(event.topology)
        elif isinstance(event, SeenCells):
            if self.again is not None:
                self.again.take(event.standing, event.asked_s, self.running, now_s)
        elif isinstance(event, SeenStacks):
            self.stopping.take(event.stacks)
        elif isinstance(event, Told):
            self.notice(event.text)
        elif isinstance(event, Interrupted):
            self.stopping.stop(self.running, now_s, is_sent=True)
        elif isinstance(event, TakenAway):
            self.outcome.taken = event.text
            self.running.clear()
        elif isinstance(event, StopRequest):
            self.n_stops += 1

    def say_missing(self) -> None:
        if self.missing:
            where = f"%distributed output {min(self.missing)} shows it all"
            self.notice(f"some output of {name_ranks(self.missing)} was lost on its way; {where}")

    def end(self, rank: int) -> None:
        self.running.discard(rank)
        self.asking.forget(rank)


def run_cell(
    cell: Cell,
    view: View,
    sender: CellSender,
    *,
    timeout_s: float | None = None,
    max_lines: int = MAX_LINES,
    look: Look | None = None,
    see: See | None = None,
    mend: Mend | None = None,
    typed: Iterable[TypedLine] = (),
    clock: Callable[[], float] = time.monotonic,
) -> CellOutcome:
    """Wait until every rank of the cell is done, showing and asking meanwhile.

    A Ctrl-C (the stop button) or the end of ``timeout_s`` interrupts the ranks and waits for all
    of them to be idle, so that the next cell runs; a second Ctrl-C, or ranks that do not react
    (`Stopping`), end the waiting and are named. ``look`` asks the root what ranks do, for the
    status line of a long cell, ``see`` where they are; the answers come as events. ``mend`` is for
    what a connection that breaks takes along. ``typed`` are the lines that were typed for a cell
    which another client began.
    """
    view.begin(cell.ranks)
    output = CellOutput(view, max_lines)
    started_s = clock()
    ask = None if look is None else lambda: look(lambda seen: cell.events.put(Seen(seen)))
    status = CellStatus(cell.ranks, view, ask, started_s)
    loop = _CellLoop(cell, view, sender, output, status, see, typed)
    if mend is not None:
        see_cells = mend.see_cells

        def ask_how_it_stands() -> None:
            asked_s = clock()
            see_cells(lambda standing: cell.events.put(SeenCells(standing, asked_s)))

        loop.again = AskAgain(cell, ask_how_it_stands, mend, loop.notice, started_s)
    stopping = loop.stopping
    deadline_s = None if timeout_s is None else started_s + timeout_s

    def is_late(now_s: float) -> bool:
        return deadline_s is not None and now_s > deadline_s

    is_over = False
    with ctrl_c(lambda: cell.events.put(StopRequest())):
        while loop.running and loop.n_stops < 2 and not is_over:
            loop.step(clock)
            now_s = clock()
            if loop.running and loop.n_stops:
                loop.outcome.was_stopped = not loop.outcome.has_timed_out
                stopping.stop(loop.running, now_s)
            elif loop.running and not stopping.has_begun and is_late(now_s):
                loop.outcome.has_timed_out = True
                stopping.time_is_up(loop.running, now_s)
            is_over = stopping.step(loop.running, now_s)
        loop.asking.close()
        status.close()
        output.finish()
        loop.say_missing()
    stopping.say(loop.running)
    loop.outcome.places = stopping.before
    loop.outcome.abandoned = tuple(sorted(loop.running))
    return loop.outcome
