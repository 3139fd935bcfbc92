"""Wait for a cell while showing output, prompting and handling stops.

`run_cell` runs on the caller's thread (a notebook's main thread).
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from phalanx.errors import DistributedError, RankFailure, cell_error
from phalanx.protocol import (
    RankStack,
    Step,
    TypedLine,
    WorldTopology,
    format_ranks,
    name_ranks,
    say_where,
)

from ..connection.transport import ctrl_c
from ..output.events import (
    CellStatusUpdate,
    Clear,
    Display,
    Drawn,
    Ended,
    Event,
    Failure,
    Interrupted,
    Lost,
    NeedLine,
    NeedOver,
    NoticeEvent,
    OwnershipLost,
    StacksUpdate,
    StopReported,
    StopRequest,
    StopSwallowed,
    Text,
    TopologyUpdate,
)
from ..output.notices import say_lost
from ..output.printer import MAX_LINES, CellOutput
from ..output.view import CellStatusLine, View
from .cell import Cell
from .dispatch import RequestResender, ResendActions
from .prompting import LineSender, PromptController
from .stopping import STEP_S, StopInStep, Stopping

MOST_TEXT = 1 << 20  # characters of a rank's output that `Workspace.run` returns
IDLE_WAIT_S = 0.25  # longest sleep without an event: bounds how late a deadline is noticed
PROMPT_POLL_S = 0.02
# Events taken before due output is shown. Ranks that print without a pause always supply another
# event, and lines that are not shown yet take 10 times the memory of their text.
EVENTS_AT_ONCE = 16

# Ask the root for the topology (Look) or for stacks (See); answers come later, on another thread.
Look = Callable[[Callable[[WorldTopology], None]], None]

See = Callable[[tuple[int, ...], bool, Callable[[dict[int, RankStack]], None]], None]


class CellSender(LineSender, Protocol):
    """Messages that the cell's loop may send."""

    def hold_cell(self, cell: str, ranks: tuple[int, ...], most_s: float) -> None:
        """Hold the cell on these ranks before its next operation.

        The ranks then report how far they are. A held rank that gets no further order is
        interrupted after ``most_s`` seconds.
        """

    def let_in(self, cell: str, ranks: tuple[int, ...], steps: tuple[Step, ...]) -> None:
        """Let held ranks continue up to these operations."""

    def interrupt_cell(self, cell: str, ranks: tuple[int, ...]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks."""


class TextTail:
    """The end of what a rank printed in a cell.

    It has at least `MOST_TEXT` characters, if there are as many, and at most one piece more.
    """

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._length = 0

    def add(self, text: str) -> None:
        """Add a piece of text; drop old pieces beyond the limit."""
        self._pieces.append(text)
        self._length += len(text)
        while self._length - len(self._pieces[0]) >= MOST_TEXT:
            self._length -= len(self._pieces.popleft())

    def __str__(self) -> str:
        return "".join(self._pieces)


class CellOutcome:
    """The end of a cell on each of its ranks."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.failures: dict[int, Failure] = {}
        self.lost: dict[int, Lost] = {}
        self.results: dict[int, Display] = {}
        self.texts = {rank: TextTail() for rank in ranks}
        self.abandoned: tuple[int, ...] = ()  # ranks that still ran when the waiting ended
        self.was_stopped = False
        self.taken = ""  # why the workspace was lost meanwhile; empty: it was not lost
        self.has_timed_out = False
        self.places: dict[int, RankStack] = {}  # stacks of ranks at the time limit


class _CellLoop:
    """The state of `run_cell`: one object per cell, one thread."""

    def __init__(
        self,
        cell: Cell,
        view: View,
        sender: CellSender,
        output: CellOutput,
        status: CellStatusLine,
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
        self.asking = PromptController(
            cell.name, cell.ranks, view, sender, output.break_here, typed
        )
        self.n_stops = 0
        self.resender: RequestResender | None = None
        self.missing: set[int] = set()  # ranks that lost a part of their output on the way

        def ask(ranks: tuple[int, ...], is_twice: bool) -> None:
            assert see is not None
            see(ranks, is_twice, lambda stacks: cell.events.put(StacksUpdate(stacks)))

        self.stopping = Stopping(None if see is None else ask, self.hold, self.notice)
        self.in_step = StopInStep(
            lambda ranks, steps: sender.let_in(cell.name, ranks, steps),
            lambda ranks: sender.interrupt_cell(cell.name, ranks),
            STEP_S,
        )
        self.is_held = False  # from the first stop until `in_step` is over

    def hold(self, ranks: tuple[int, ...]) -> None:
        """Begin a stop: hold the ranks, and ask no more prompts."""
        self.is_held = True
        self.sender.hold_cell(self.cell.name, ranks, 2 * STEP_S)
        self.asking.stop()

    def keep_in_step(self, now_s: float) -> None:
        """Decide about held ranks from their reports."""
        if self.is_held:
            self.in_step.step(self.running, now_s)
            self.is_held = not self.in_step.is_over

    def stop_again(self) -> bool:
        """Interrupt held ranks; return False if they were interrupted already."""
        if self.is_held:
            self.in_step.hurry()
        return self.is_held

    def say_places(self) -> None:
        """Report where ranks stopped, unless they stopped in step."""
        ended = set(self.cell.ranks).difference(self.running)
        failures = self.outcome.failures
        ends = {rank: failures[rank].ename if rank in failures else "" for rank in ended}
        ends |= dict.fromkeys(self.outcome.lost, "its process")
        line = self.in_step.line(self.cell.ranks, ends)
        if line and not self.outcome.taken:
            self.notice(line)

    def notice(self, text: str) -> None:
        self.output.break_here()
        self.view.notice(text)

    def step(self, clock: Callable[[], float]) -> None:
        """Take events or wait for one, then show output and prompts."""
        wait_s = PROMPT_POLL_S if self.asking.is_waiting else IDLE_WAIT_S
        dues = [self.output.next_due_s(), self.status.next_due_s()]
        if self.is_held:
            dues.append(self.in_step.due_s)
        due_s = min((due for due in dues if due is not None), default=None)
        if due_s is not None:
            wait_s = min(wait_s, max(0.0, due_s - clock()))
        try:
            self.take(self.cell.events.get(timeout=wait_s), clock())
            for _ in range(EVENTS_AT_ONCE):
                if not self.running:
                    break
                self.take(self.cell.events.get_nowait(), clock())
        except queue.Empty:
            pass
        self.cell.end_overdue(self.running)
        now_s = clock()
        self.output.show(self.running, now_s)
        self.asking.step(self.running, now_s)
        self.cell.waiting = self.asking.waiting
        self.status.step(self.running, self.asking.waiting, self.outcome.lost, now_s)
        if self.resender is not None:
            is_stopping = self.n_stops > 0 or self.stopping.has_begun
            self.resender.step(self.running, now_s, is_stopping=is_stopping)

    def take(self, event: Event, now_s: float) -> None:
        if isinstance(event, Text):
            self.outcome.texts[event.rank].add(event.text)
            self.output.text(event, now_s)
        elif isinstance(event, Display):
            if event.is_result:
                self.outcome.results[event.rank] = event
            self.output.display(event, now_s)
        elif isinstance(event, Drawn):
            event.tell()
        elif isinstance(event, Clear):
            self.output.display(event, now_s)
        elif isinstance(event, NeedLine):
            self.asking.need(event.rank, event.need, now_s)
        elif isinstance(event, StopSwallowed):
            self.stopping.swallowed.add(event.rank)
        elif isinstance(event, StopReported):
            self.in_step.take(event.rank, event.report)
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
        elif isinstance(event, TopologyUpdate):
            self.status.take(event.topology)
        elif isinstance(event, CellStatusUpdate):
            if self.resender is not None:
                self.resender.take(event.status, event.asked_s, self.running, now_s)
        elif isinstance(event, StacksUpdate):
            self.stopping.take(event.stacks)
        elif isinstance(event, NoticeEvent):
            self.notice(event.text)
        elif isinstance(event, Interrupted):
            if not self.stopping.stop(self.running, now_s) and not self.stop_again():
                self.sender.interrupt_cell(self.cell.name, tuple(sorted(self.running)))
        elif isinstance(event, OwnershipLost):
            self.outcome.taken = event.text
            self.running.clear()
        elif isinstance(event, StopRequest):
            self.n_stops += 0 if self.stop_again() else 1

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
    resend: ResendActions | None = None,
    typed: Iterable[TypedLine] = (),
    clock: Callable[[], float] = time.monotonic,
) -> CellOutcome:
    """Wait until all ranks end the cell, showing output and prompts.

    A Ctrl-C (the stop button) or the end of ``timeout_s`` stops the ranks, at the same operation if
    they reach one in time (`StopInStep`). The loop then waits for all ranks to be idle, so that the
    next cell can run. A second Ctrl-C interrupts held ranks at once. After the interrupt, one more
    Ctrl-C ends the waiting, and so do ranks that do not react (`Stopping`); the ranks that still
    run are named.

    Parameters
    ----------
    cell : Cell
        The cell; its messages are routed to it already.
    view : View
        Shows output and asks prompts.
    sender : CellSender
        Sends typed lines and stops to the ranks.
    timeout_s : float, optional
        Seconds after which the ranks are stopped; None: no limit.
    max_lines : int
        Lines of output to show.
    look : callable, optional
        Asks the root for the topology, for the status line of a long cell. The answer is an event.
    see : callable, optional
        Asks the root for the stacks of ranks. The answer is an event.
    resend : ResendActions, optional
        Sends again what a broken connection lost.
    typed : iterable of TypedLine, optional
        Lines typed so far for a cell that another client began.
    clock : callable
        The clock, in seconds.

    Returns
    -------
    CellOutcome
        How the cell ended on each rank.
    """
    view.begin(cell.ranks)
    output = CellOutput(view, max_lines)
    started_s = clock()
    ask = None if look is None else lambda: look(lambda seen: cell.events.put(TopologyUpdate(seen)))
    status = CellStatusLine(cell.ranks, view, ask, started_s)
    loop = _CellLoop(cell, view, sender, output, status, see, typed)
    if resend is not None:
        see_cells = resend.see_cells

        def ask_how_it_stands() -> None:
            asked_s = clock()
            see_cells(lambda status: cell.events.put(CellStatusUpdate(status, asked_s)))

        loop.resender = RequestResender(cell, ask_how_it_stands, resend, loop.notice, started_s)
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
            loop.keep_in_step(now_s)
        if loop.running and loop.stop_again():  # leave no rank held
            loop.keep_in_step(now_s)
        loop.asking.close()
        status.close(clock())
        output.finish()
        loop.say_missing()
        loop.say_places()
    stopping.say(loop.running)
    outcome = loop.outcome
    outcome.places = stopping.before
    outcome.abandoned = tuple(sorted(loop.running))
    # The loop is in a cycle of callbacks. What ranks printed is not to wait for the collector.
    del loop.outcome
    return outcome


@dataclass(frozen=True)
class RankResult:
    """A rank's result of a cell.

    ``value`` is the text of the last expression, as shown (None without one). ``object`` is a copy
    of the value itself, or a `DistributedError` that says why the value was not sent. ``text`` is
    what the rank printed in the cell: the last MiB of it.
    """

    rank: int
    value: str | None
    object: Any = field(default=None, repr=False, compare=False)
    text: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True)
class RankError:
    """The error that a debugger finds on a rank.

    ``is_of_last_cell``: no cell has run since the error.
    """

    rank: int
    ename: str
    evalue: str
    is_of_last_cell: bool


def results_of(
    outcome: CellOutcome, ranks: Iterable[int], values: Mapping[int, Any] | None = None
) -> list[RankResult]:
    """Return the results by rank; ``values`` are the fetched values."""
    results = []
    for rank in ranks:
        display, text = outcome.results.get(rank), str(outcome.texts[rank])
        if display is None:
            results.append(RankResult(rank, None, text=text))
            continue
        unsent = DistributedError(f"rank {rank}: the value was not fetched; ws.pull fetches one")
        value = unsent if values is None else values.get(rank, unsent)
        results.append(RankResult(rank, display.data.get("text/plain"), value, text))
    return results


def _say_ended(outcome: CellOutcome) -> str:
    """Describe the ranks that had ended before the time limit."""
    ended = set(outcome.ranks).difference(outcome.places, outcome.lost)
    failed = sorted(ended.intersection(outcome.failures))
    parts = [
        f"rank {rank} had ended with {outcome.failures[rank].ename}: {outcome.failures[rank].evalue}"
        for rank in failed
    ]
    if done := ended.difference(failed):
        parts.append(f"done: {name_ranks(done)}")
    return "".join(f"; {part}" for part in parts)


def raise_for(outcome: CellOutcome, timeout: float | None = None) -> None:
    """Raise the error in which a cell ended, if any.

    The order is: a lost workspace, because nothing else is known then; a dead rank, because the
    other ranks' errors follow from its death; a stop; a time limit; the ranks' own errors.
    """
    if outcome.taken:
        raise DistributedError(outcome.taken)
    if outcome.lost and not outcome.was_stopped:
        lost = next(iter(outcome.lost.values()))
        raise RankFailure(lost.rank, lost.host, lost.reason)
    if outcome.was_stopped:
        raise KeyboardInterrupt
    if outcome.has_timed_out:
        where = f": {say_where(outcome.places)}{_say_ended(outcome)}" if outcome.places else ""
        msg = f"the cell ran longer than {timeout:g} s; its ranks were stopped{where}"
        raise TimeoutError(msg)
    if outcome.failures:
        raise cell_error(
            {
                rank: (failure.ename, failure.evalue, failure.traceback)
                for rank, failure in sorted(outcome.failures.items())
            }
        )
    if outcome.abandoned:
        msg = f"rank {format_ranks(outcome.abandoned)} did not end the cell"
        raise DistributedError(msg)
