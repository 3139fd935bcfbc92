"""Wait for a cell while showing output, prompting and handling stops."""

from __future__ import annotations

import math
import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from phalanx.errors import DistributedError, cell_error
from phalanx.protocol import (
    CellEnded,
    CellStatusReply,
    GetCellStatus,
    GetStacks,
    GetTopology,
    LineNeed,
    LineNotNeeded,
    Notice,
    RankLost,
    RankNews,
    RankSays,
    RankStack,
    RootRequest,
    StacksAre,
    StopReport,
    TopologyIs,
    format_ranks,
    name_ranks,
    say_where,
)
from phalanx.rank import unpack_values

from ..connection.root_client import Answer, RootClient
from ..connection.transport import ctrl_c
from ..output.front_end import Clear, Display, Text, View
from ..output.notices import say_lost
from ..output.printer import MAX_LINES, CellOutput
from ..output.status_line import CellStatusLine
from .cell import (
    CallInLoop,
    Cell,
    Ended,
    Event,
    Interrupted,
    OwnershipLost,
    StopRequest,
    failure_of_rank,
)
from .dispatch import RequestResender
from .prompting import PromptController
from .stopping import Stopping

MOST_TEXT = 1 << 20  # characters of a rank's output that `Workspace.run` returns
IDLE_WAIT_S = 0.25  # longest sleep without an event: bounds how late a deadline is noticed
PROMPT_POLL_S = 0.02
# Events taken before due output is shown. Ranks that print without a pause always supply another
# event, and lines that are not shown yet take 10 times the memory of their text.
EVENTS_AT_ONCE = 16


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
        self.failures: dict[int, CellEnded] = {}
        self.lost: dict[int, RankLost] = {}
        self.results: dict[int, Display] = {}
        self.texts = {rank: TextTail() for rank in ranks}
        self.values: dict[int, Any] = {}  # of a call, packed; or of a task or last expression
        self.abandoned: tuple[int, ...] = ()  # ranks that still ran when the waiting ended
        self.was_stopped = False
        self.taken = ""  # why the workspace was lost meanwhile; empty: it was not lost
        self.has_timed_out = False
        self.places: dict[int, RankStack] = {}  # stacks of ranks at the time limit


class CellLoop:
    """Waits for one cell; one thread, usually the notebook's main thread.

    The messages of the cell are routed to it already. ``resend`` is `Dispatch.resend`. Answers of the
    root come on another thread, and are taken as events.
    """

    def __init__(
        self,
        cell: Cell,
        view: View,
        root: RootClient,
        resend: Callable[..., bool],
        *,
        max_lines: int = MAX_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cell = cell
        self.view = view
        self.root = root
        self.clock = clock
        self.started_s = clock()
        self.running = set(cell.ranks)
        self.outcome = CellOutcome(cell.ranks)
        self.n_taken = 0  # events
        self.missing: set[int] = set()  # ranks that lost a part of their output on the way
        self.output = CellOutput(view, max_lines)
        self.status = CellStatusLine(cell.ranks, view, self.look, self.started_s)
        self.asking = PromptController(
            cell.name,
            cell.ranks,
            view,
            partial(root.order, cell.ranks),
            self.output.break_here,
            cell.typed,
        )
        self.resender = RequestResender(cell, self.see_cells, resend, self.notice, self.started_s)
        self.stopping = Stopping(
            cell.name, root.order, self.see_stacks, self.notice, self.asking.stop
        )
        cell.emit = self.take

    def run(self, timeout_s: float | None = None) -> CellOutcome:
        """Wait until all ranks end the cell, showing output and prompts.

        A Ctrl-C (the stop button) or the end of ``timeout_s`` stops the ranks, at the same operation
        if they reach one in time (`StopInStep`). The loop then waits for all ranks to be idle, so
        that the next cell can run. A second Ctrl-C interrupts held ranks at once. After the
        interrupt, one more Ctrl-C ends the waiting, and so do ranks that do not react (`Stopping`);
        the ranks that still run are named.
        """
        self.view.begin(self.cell.ranks)
        deadline_s = math.inf if timeout_s is None else self.started_s + timeout_s
        is_over = False
        with ctrl_c(lambda: self.cell.events.put(StopRequest())):
            for event in self.cell.missed:
                self.take(event)
            while self.running and not is_over:
                self.step()
                now_s = self.clock()
                if now_s > deadline_s:
                    self.stopping.time_is_up(self.running, now_s)
                is_over = self.stopping.step(self.running, now_s)
            self.stopping.release(self.running, self.clock())
            self.asking.close()
            self.status.close(self.clock())
            self.output.finish()
            self.say_missing()
            self.say_places()
        self.stopping.say(self.running)
        outcome = self.outcome
        # The loop is in a cycle of callbacks. What ranks printed is not to wait for the collector.
        del self.outcome
        outcome.was_stopped = self.stopping.was_pressed
        outcome.has_timed_out = self.stopping.has_timed_out
        outcome.results = self.output.results
        outcome.places = self.stopping.before
        outcome.abandoned = tuple(sorted(self.running))
        return outcome

    def step(self) -> None:
        """Take events or wait for one, then show output and prompts."""
        wait_s = PROMPT_POLL_S if self.asking.waiting else IDLE_WAIT_S
        dues = [self.output.next_due_s(), self.status.next_due_s(), self.stopping.due_s]
        due_s = min((due for due in dues if due is not None), default=None)
        if due_s is not None:
            wait_s = min(wait_s, max(0.0, due_s - self.clock()))
        n_taken, until_s = self.n_taken, self.clock() + wait_s
        try:
            for _ in range(EVENTS_AT_ONCE):
                self.cell.take(self.cell.events.get(timeout=wait_s))
                if not self.running:
                    break
                # An event that `Cell` keeps, such as the first half of an end, ends no wait.
                wait_s = 0.0 if self.n_taken > n_taken else max(0.0, until_s - self.clock())
        except queue.Empty:
            pass
        self.cell.end_overdue(self.running)
        now_s = self.clock()
        self.output.show(self.running, now_s)
        self.asking.step(self.running, now_s)
        self.cell.waiting = self.asking.waiting
        self.status.step(self.running, self.asking.waiting, self.outcome.lost, now_s)
        self.resender.step(self.running, now_s, is_stopping=self.stopping.has_begun)

    def take(self, event: Event) -> None:
        """Take an event that `Cell.take` has passed on."""
        now_s = self.clock()
        self.n_taken += 1
        if isinstance(event, Text):
            self.outcome.texts[event.rank].add(event.text)
            self.output.text(event, now_s)
        elif isinstance(event, Display | Clear):
            self.output.display(event, now_s)
        elif isinstance(event, CallInLoop):
            event.call()
        elif isinstance(event, RankSays):
            self.take_news(event.rank, event.news, now_s)
        elif isinstance(event, Ended):
            self.end(event.rank)
            if event.failure is not None:
                self.outcome.failures[event.rank] = event.failure
            if event.n_missing:
                self.missing.add(event.rank)
        elif isinstance(event, RankLost):
            if event.rank in self.running:
                self.end(event.rank)
                self.outcome.lost[event.rank] = event
                self.notice(say_lost(event.rank, event.reason, will_return=event.will_return))
                if event.tail:
                    self.output.text(Text(event.rank, "stderr", event.tail), now_s)
        elif isinstance(event, Notice):
            self.notice(event.text)
        elif isinstance(event, Interrupted):
            self.stopping.stop(self.running, now_s)
        elif isinstance(event, OwnershipLost):
            self.outcome.taken = event.text
            self.running.clear()
        elif isinstance(event, StopRequest):
            self.stopping.press()

    def take_news(self, rank: int, news: RankNews, now_s: float) -> None:
        if isinstance(news, LineNeed):
            self.asking.need(rank, news, now_s)
        elif isinstance(news, LineNotNeeded):
            self.asking.forget(rank, commands=False)
        elif isinstance(news, StopReport):
            self.stopping.in_step.take(rank, news)
        else:
            self.stopping.swallowed.add(rank)

    def end(self, rank: int) -> None:
        self.running.discard(rank)
        self.asking.forget(rank)

    # -- questions to the root ----------------------------------------------------------------

    def ask(
        self, question: RootRequest, kind: type[Answer], take: Callable[[Answer], None]
    ) -> None:
        """Ask the root; take its answer as an event of the cell."""
        put = self.cell.put
        self.root.ask_later(question, kind, lambda answer: put(CallInLoop(lambda: take(answer))))

    def look(self) -> None:
        self.ask(GetTopology(), TopologyIs, lambda its: self.status.take(its.topology))

    def see_stacks(self, ranks: tuple[int, ...], is_twice: bool) -> None:
        question = GetStacks(ranks, is_twice)
        self.ask(question, StacksAre, lambda its: self.stopping.take(its.stacks))

    def see_cells(self) -> None:
        asked_s = self.clock()
        self.ask(
            GetCellStatus(),
            CellStatusReply,
            lambda status: self.resender.take(status, asked_s, self.running, self.clock()),
        )

    # -- notices ------------------------------------------------------------------------------

    def notice(self, text: str) -> None:
        self.output.break_here()
        self.view.notice(text)

    def say_missing(self) -> None:
        if self.missing:
            where = f"%distributed output {min(self.missing)} shows it all"
            self.notice(f"some output of {name_ranks(self.missing)} was lost on its way; {where}")

    def say_places(self) -> None:
        """Report where ranks stopped, unless they stopped in step."""
        ended = set(self.cell.ranks).difference(self.running)
        failures = self.outcome.failures
        ends = {rank: failures[rank].ename if rank in failures else "" for rank in ended}
        ends |= dict.fromkeys(self.outcome.lost, "its process")
        line = self.stopping.in_step.line(self.cell.ranks, ends)
        if line and not self.outcome.taken:
            self.notice(line)


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


def load_values(cell: Cell, outcome: CellOutcome) -> None:
    """Load a task's values.

    One that cannot be loaded is a failure of its rank.
    """
    for rank, packed in sorted(cell.values.items()):
        try:
            outcome.values[rank] = unpack_values(packed, "here")
        except TypeError as error:
            text = str(error)
            failure = CellEnded(cell.name, ok=False, ename="TypeError", evalue=text)
            outcome.failures[rank] = failure


def results_of(outcome: CellOutcome) -> list[RankResult]:
    """Return the results by rank."""
    results = []
    for rank in outcome.ranks:
        display, text = outcome.results.get(rank), str(outcome.texts[rank])
        if display is None:
            results.append(RankResult(rank, None, text=text))
            continue
        unsent = DistributedError(f"rank {rank}: the value was not fetched; ws.pull fetches one")
        value = outcome.values.get(rank, unsent)
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
        raise failure_of_rank(next(iter(outcome.lost.values())))
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
