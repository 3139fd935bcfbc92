"""Run one cell or call at a time on the ranks.

`CellRunner` takes the `ExecutionSlot`, asks the root for permission, prepares replaced ranks, sends
the cell and waits for its end.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from phalanx.errors import DistributedError, RankFailure, cell_error
from phalanx.protocol import (
    AddStartupCell,
    Booted,
    CellAllowed,
    Evaluate,
    FromRoot,
    GiveLastError,
    GiveValue,
    Notice,
    RankCall,
    RankLost,
    RankSays,
    RankTask,
    Replaced,
    TypedLine,
    name_ranks,
    say_busy,
)
from phalanx.rank import POST_MORTEM, ErrorOfCell, unpack_values

from ..connection.root_client import RootClient
from ..connection.transport import SharedClient, SocketThread, ctrl_c
from ..output.events import Event, Failure, Interrupted, OwnershipLost, StopRequest
from ..output.notices import say_joined, say_unasked, say_without
from ..output.printer import MAX_LINES, LateOutput
from ..output.view import View
from .attach import AttachSync
from .cell import Call, Cell, failure_of_rank
from .dispatch import Dispatch
from .loop import (
    CellOutcome,
    RankError,
    RankResult,
    raise_for,
    results_of,
    run_cell,
)
from .restoring import prepare
from .slot import CellRuns, ExecutionSlot, RunningCell

if TYPE_CHECKING:
    import ipyparallel

CellWork = str | RankTask | dict[int, list[Any]]  # code, a task, or a packed call for each rank
# Largest value of a cell's last expression that a rank sends. A cell may end in a call that returns
# its model, which the user may not want here. Eight ranks of one machine send this much in 0.1 s.
MOST_VALUE_NBYTES = 16 << 20


class CellRunner:
    """Runs cells on ranks that are up.

    One thread at a time may call `run` (another is refused). Any thread may call `interrupt`,
    `on_news` and `output`.
    """

    def __init__(self, name: str, thread: SocketThread, root: RootClient, booted: Booted) -> None:
        # With the client's number no two clients of a workspace give the same name to a cell.
        self._name = f"{name}:{booted.client}"
        self._root = root
        self._ranks = tuple(range(len(booted.engines)))
        self._numbers = itertools.count(1)
        self.slot = ExecutionSlot()
        self._lost: dict[int, RankLost] = {}
        self._left: set[int] = set()  # ranks that were abandoned in a cell they had not ended
        self._dispatch = Dispatch(
            thread,
            booted.connection,
            booted.engines,
            booted.session,
            root.order,
            self._lost.keys(),
        )
        self._client = SharedClient(booted.connection)
        self._late = LateOutput()
        self._has_replaced = False  # whether the root has replaced ranks that are not prepared
        self._shown: set[str] = set()  # engines of the replaced ranks that an attach has shown
        self._is_stopped: Callable[[], bool] = lambda: False  # asked before a cell runs
        self.help, self.waiting = self._dispatch.help, self._dispatch.waiting
        self.debuggers = self._dispatch.debuggers
        self._missed: AttachSync | None = None
        self._last_cell = ""  # the last cell of a person; empty: none from here yet
        self._dispatch.wait_subscribed()

    def _next(self, what: str = "") -> str:
        return f"{self._name}:{what}{':' if what else ''}{next(self._numbers)}"

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the engine of each rank.

        A replaced rank has a new engine.
        """
        return self._dispatch.engines

    def _announce(
        self, name: str, chosen: tuple[int, ...], view: View, *, is_all: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Announce a cell and make the ranks ready.

        Returns the ranks that can run the cell, and all dead ranks.
        """
        try:
            turn = self.slot.turn
            title = (turn.title or turn.what) if turn else ""
            allowed = self._begin(name, chosen, title)
            here = tuple(rank for rank in chosen if rank not in allowed.dead)
            if here and allowed.dead and is_all:
                view.notice(say_without(allowed.dead))
        except BaseException:
            self._take_back(name)
            raise
        if not here:
            self._take_back(name)
            lost = self._lost.get(chosen[0])
            raise RankFailure(chosen[0], lost.host if lost else "", allowed.dead[chosen[0]])
        return here, tuple(allowed.dead)

    def _begin(self, name: str, ranks: tuple[int, ...], title: str = "") -> CellAllowed:
        """Announce a cell; raise the error of ranks that did not join."""
        allowed = self._root.begin_cell(name, ranks, title, self._is_stopped)
        for rank in allowed.failed.keys() & self._lost.keys():
            raise failure_of_rank(self._lost[rank])
        if allowed.failed:
            raise cell_error({rank: (*its, ()) for rank, its in allowed.failed.items()})
        return allowed

    def _take_back(self, name: str, ranks: tuple[int, ...] = ()) -> None:
        """Cancel a cell that was not sent (to these ranks).

        Otherwise the next cell would wait for the end of this one.
        """
        with contextlib.suppress(DistributedError):  # the caller already raises an error
            self._root.forget_cell(name, ranks)

    def _execute(
        self,
        cell: Cell,
        work: CellWork | None,
        view: View,
        *,
        timeout_s: float | None = None,
        max_lines: int = MAX_LINES,
        typed: Iterable[TypedLine] = (),
    ) -> CellOutcome:
        """Send a cell, wait for it, and forget it.

        Without ``work`` another client has sent it. Its late output is shown below it.
        """
        outcome: CellOutcome | None = None
        try:
            if work is not None:
                self._send(cell, work)
            outcome = run_cell(
                cell,
                view,
                self._root,
                self._dispatch.resend,
                timeout_s=timeout_s,
                max_lines=max_lines,
                typed=typed,
            )
            self._left.update(outcome.abandoned)
            return outcome
        finally:
            below = view.later() if outcome is not None and not outcome.taken else None
            late = None if below is None else self._late.of(below, cell.ranks)
            self._dispatch.forget(cell, late)

    def _send(self, cell: Cell, work: CellWork) -> None:
        """Send a cell to all its ranks, or let none run it.

        If a send fails, the cell is cancelled on the ranks that lack it and interrupted on the
        others.
        """
        for at, rank in enumerate(cell.ranks):
            try:
                if isinstance(work, dict):
                    self._dispatch.apply(cell, rank, work[rank])
                else:
                    self._dispatch.execute(cell, rank, work)
            except BaseException:
                if cell.is_announced:
                    self._take_back(cell.name, cell.ranks[at:] if at else ())
                    self._root.stop_cell(cell.name, cell.ranks[:at])
                raise
            if rank in self._lost:  # since the ranks were chosen
                cell.put(self._lost[rank])

    def part(self, work: str | RankTask, ranks: tuple[int, ...], view: View) -> str:
        """Run work as a cell within work that holds the ranks.

        Returns the cell's name.
        """
        name = self._next()
        here, _ = self._announce(name, ranks, view, is_all=False)
        for lost in (self._lost[rank] for rank in ranks if rank not in here):
            self._root.forget_cell(name)
            raise failure_of_rank(lost)
        raise_for(self._execute(Cell(name, here), work, view))
        return name

    def ask(
        self, ranks: tuple[int, ...], work: RankCall, buffers: Sequence[memoryview] = ()
    ) -> dict[int, dict[str, Any]]:
        """Call ranks within work that holds the ranks.

        Returns the named values by rank.
        """
        values, outcome = self._ask(ranks, work, buffers)
        raise_for(outcome)
        return values

    def _ask(
        self, ranks: tuple[int, ...], work: RankCall, buffers: Sequence[memoryview] = ()
    ) -> tuple[dict[int, dict[str, Any]], CellOutcome]:
        call = Call(self._next("call"), ranks, is_announced=False)
        try:
            for rank in ranks:
                self._dispatch.apply(call, rank, list(buffers), work)
                if rank in self._lost:  # since the ranks were chosen
                    call.put(self._lost[rank])
            outcome = run_cell(call, View(), self._root, self._dispatch.resend)
        finally:
            self._dispatch.forget(call)
        values: dict[int, dict[str, Any]] = {}
        for rank, answer in sorted(call.values.items()):
            try:
                values[rank] = unpack_values(answer, "here")
            except TypeError as error:
                outcome.failures[rank] = Failure("TypeError", str(error), ())
        return values, outcome

    def _enter(self) -> None:
        """Have the root form the group, without a cell."""
        name = self._next("enter")
        try:
            self._begin(name, self._ranks)
        finally:
            self._take_back(name)

    def _settle(
        self, make_view: Callable[[], View], tell: Callable[[str], None]
    ) -> DistributedError | None:
        """Bring replaced ranks into the world, and prepare them.

        Returns the first error of a startup cell, if any.
        """
        if not self._has_replaced:
            return None
        self._has_replaced = False
        try:
            self._enter()
            status = self._root.cell_status()
        except BaseException:
            self._has_replaced = True  # before the next cell, again
            raise
        dead = {death.rank for death in status.deaths}
        newest = {its.rank: its for its in status.returns if its.rank not in dead}
        fresh = [its for _, its in sorted(newest.items())]
        for its in fresh:
            if not its.is_asked and its.engine not in self._shown:
                tell(say_unasked(its.rank, its.reason))
        try:
            return prepare(self, fresh, status.every_start, make_view=make_view, tell=tell)
        finally:
            self._root.settled(its.engine for its in fresh)

    def on_news(self, message: FromRoot) -> None:
        """Take the root's news: a death, a replacement, an end.

        The running cell gets it too.
        """
        if isinstance(message, RankSays):
            self._dispatch.on_rank_says(message.rank, message.news)
        elif isinstance(message, RankLost):
            self._lost.setdefault(message.rank, message)
            self._client.lose(message.rank, self._dispatch.engines[message.rank])
            self._dispatch.on_lost(message)
        elif isinstance(message, Replaced):
            self._dispatch.on_replaced(message.rank, message.engine)
            self._lost.pop(message.rank, None)
            self._left.discard(message.rank)
            self._has_replaced = True
        elif isinstance(message, Notice):
            self._dispatch.tell(message)

    def form(self) -> None:
        """Have new ranks form their group; raise `RankFailure` if one died."""
        self._enter()
        for lost in self._lost.values():
            raise RankFailure(lost.rank, lost.host, f"{lost.reason} while starting")

    def attach(self) -> None:
        """Fetch how the ranks stand; `join` follows the cell that they run.

        News that come meanwhile must be taken after this: the last message about a rank counts.
        """
        # The root knows the epoch and the ranks that entered it, and tells the first cell.
        self._missed = missed = AttachSync(self._dispatch, self._root, len(self._ranks))
        self._shown = {its.engine for its in missed.status.returns}
        self._has_replaced = bool(self._shown)
        for lost in missed.status.deaths:
            self._lost[lost.rank] = lost
            self._dispatch.on_lost(lost)
        if missed.cell is not None and missed.running:
            self.slot.leave(RunningCell(missed.cell.name, missed.running))

    def run(
        self,
        code: str,
        ranks: tuple[int, ...] | None,
        view: View,
        *,
        timeout: float | None,
        max_lines: int,
        every_start: bool = False,
        what: str = "",
        has_values: bool = False,
    ) -> list[RankResult]:
        """Run a cell; see `Workspace.run`.

        ``ranks`` None: all live ranks. ``what`` names the cell where another cell is refused.
        """
        if every_start:
            self._root.keep(AddStartupCell(code, ranks))
        fetch = self._values if has_values else None
        outcome, values = self._run(code, ranks, view, timeout, max_lines, what, fetch)
        return results_of(outcome, outcome.ranks, values)

    def perform(self, task: RankTask, view: View, what: str) -> None:
        """Perform a task on all live ranks, as a cell.

        ``what`` names the task where a cell is refused meanwhile.
        """
        self._run(task, None, view, None, MAX_LINES, what, None)

    def evaluate(
        self, expressions: tuple[str, ...], ranks: tuple[int, ...] | None, view: View
    ) -> dict[int, dict[str, Any]]:
        """Evaluate expressions on ranks as a cell; return values by rank."""

        def fetch(name: str, outcome: CellOutcome) -> dict[int, dict[str, Any]]:
            return self.ask(outcome.ranks, GiveValue(name))

        _, values = self._run(
            Evaluate(expressions), ranks, view, None, MAX_LINES, "an exchange", fetch
        )
        return values

    def _run(
        self,
        work: str | RankTask,
        ranks: tuple[int, ...] | None,
        view: View,
        timeout: float | None,
        max_lines: int,
        what: str,
        fetch: Callable[[str, CellOutcome], dict[int, Any]] | None,
    ) -> tuple[CellOutcome, dict[int, Any]]:
        """Run code or a task, then ``fetch`` values before anything else runs."""
        chosen = self._ranks if ranks is None else ranks
        name = self._next()
        code = work if isinstance(work, str) else ""
        # From the announcement on, a Ctrl-C must not interrupt between two steps. So it becomes an
        # event of the cell: the cell is stopped as it begins, and a wait for replaced ranks ends.
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        with (
            self.slot.take(RunningCell(name, chosen, what or "a cell", "" if what else code)),
            ExitStack() as until_it_is_over,
        ):
            until_it_is_over.enter_context(ctrl_c(lambda: events.put(StopRequest())))
            here, lost = self._begin_cell(name, chosen, view, events, is_all=ranks is None)
            cell = Cell(name, here, events, lost)
            cell.number = view.cell_number
            if isinstance(work, str) and work.strip() != POST_MORTEM:
                self._last_cell = name
            outcome = self._execute(cell, work, view, timeout_s=timeout, max_lines=max_lines)
            until_it_is_over.close()
            raise_for(outcome, timeout)
            return outcome, {} if fetch is None else fetch(name, outcome)

    def _values(self, name: str, outcome: CellOutcome) -> dict[int, Any]:
        """Fetch the values of the cell's last expression, by rank.

        Only ranks with a result are asked. A value that does not arrive is replaced by the error
        that says why.
        """
        found: dict[int, Any] = {}
        if ranks := tuple(sorted(outcome.results)):
            values, asked = self._ask(ranks, GiveValue(name, MOST_VALUE_NBYTES))
            if asked.was_stopped or asked.taken:
                raise_for(asked)
            for rank, failure in asked.failures.items():
                found[rank] = cell_error({rank: (failure.ename, failure.evalue, ())})
            for rank, lost in asked.lost.items():
                found[rank] = failure_of_rank(lost)
            found |= {rank: named[""] for rank, named in values.items()}
        return found

    def _begin_cell(
        self,
        name: str,
        chosen: tuple[int, ...],
        view: View,
        events: queue.SimpleQueue[Event],
        *,
        is_all: bool,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prepare the ranks for a cell and announce it.

        Returns the ranks that can run the cell, and all dead ranks.
        """
        self._is_stopped = lambda: not events.empty()
        try:
            while True:
                self._settle(View, view.notice)
                here, lost = self._announce(name, chosen, view, is_all=is_all)
                if not self._has_replaced:
                    return here, lost
                self._root.forget_cell(name)  # a rank was replaced during the announcement
        finally:
            self._is_stopped = lambda: False

    def line_up(self, ranks: tuple[int, ...] | None, what: str, function: str) -> RunningCell:
        """Queue a call; `apply` runs it, `slot.leave_line` removes it."""
        turn = RunningCell(self._next(), self._ranks if ranks is None else ranks, what, function)
        self.slot.line_up(turn)
        return turn

    def apply(
        self,
        turn: RunningCell,
        ranks: tuple[int, ...] | None,
        pack: Callable[[tuple[int, ...]], dict[int, list[Any]]],
        view: View,
        *,
        events: queue.SimpleQueue[Event],
        check: Callable[[], None],
    ) -> dict[int, list[Any]]:
        """Call functions on ranks as a cell, when the queued turn comes.

        ``turn`` is of `line_up` with the same ``ranks``; all that are named must be alive. ``pack``
        takes the live ranks and returns the packed call of each. A `StopRequest` in ``events`` stops
        the call, and ``check`` raises to end the wait for the turn. Returns the packed values by rank.
        """

        def check_stopped() -> None:
            check()
            if not events.empty():
                raise KeyboardInterrupt

        name = turn.name
        with self.slot.take_next(turn, view.notice, check_stopped):
            here, lost = self._begin_cell(name, turn.ranks, view, events, is_all=ranks is None)
            try:
                if ranks is not None:
                    self._refuse_dead(set(ranks).difference(here))
                packed = pack(here)
            except BaseException:
                self._take_back(name)
                raise
            cell = Call(name, here, events, lost)
            self._last_cell = name
            outcome = self._execute(cell, packed, view)
        raise_for(outcome)
        return cell.values

    def _refuse_dead(self, ranks: Collection[int]) -> None:
        for rank in sorted(ranks):
            its = self._lost.get(rank)
            raise RankFailure(rank, its.host if its else "", its.reason if its else "died")

    def client(self) -> ipyparallel.Client:
        return self._client.get(self._dispatch.engines, tuple(self._lost))

    def close_client(self) -> None:
        """Close ipyparallel's client and the ranks' widgets on the page."""
        self._client.close()
        self._dispatch.widgets.close()

    def join(self, view: View) -> list[RankResult]:
        """Show what was missed, and wait for the running cell.

        See `Workspace.join`.
        """
        missed, self._missed = self._missed, None
        if missed is None:
            return []
        missed.tell(view)
        if missed.cell is None or not missed.running:
            missed.show(view)
            return []
        self._last_cell = missed.cell.name
        with self.slot.take(RunningCell(missed.cell.name, missed.running)):
            cell = missed.begin_cell()
            outcome = self._execute(cell, None, view, typed=missed.typed)
            raise_for(outcome)
            return results_of(outcome, cell.ranks, self._values(cell.name, outcome))

    def taken(self, text: str) -> None:
        """Leave the running cell: the ranks are lost to this process.

        Another process owns them now, or the connection to them broke.
        """
        self._dispatch.tell(OwnershipLost(text))

    def restart(
        self,
        ranks: tuple[int, ...] | None,
        *,
        force: bool,
        copy_from: int | None,
        init: bool,
        make_view: Callable[[], View],
        tell: Callable[[str], None],
    ) -> tuple[int, ...]:
        """Replace ranks; see `Workspace.restart`.

        ``ranks`` None: the dead ranks.
        """
        answer = self._root.restart(ranks or (), force=force, copy_from=copy_from, init=init)
        if answer.cut_off:
            tell(answer.cut_off)
        if answer.joined:
            tell(say_joined(answer.joined))
        if answer.ranks:
            turn = RunningCell(self._next("restart"), answer.ranks, "a restart")
            try:
                with self.slot.take(turn):
                    error = self._settle(make_view, tell)
            except CellRuns:
                error = None
                tell(f"{name_ranks(answer.ranks)} will take part from the next cell on")
            if error is not None:
                raise error
        if answer.failed:
            why = "; ".join(f"rank {rank} {reason}" for rank, reason in answer.failed.items())
            msg = f"not replaced: {why}"
            raise DistributedError(msg)
        return answer.ranks

    def call(
        self,
        ranks: tuple[int, ...] | None,
        work: RankCall,
        tell: Callable[[str], None],
        buffers: Sequence[memoryview] = (),
    ) -> dict[int, dict[str, Any]]:
        chosen = self._ranks if ranks is None else ranks
        with self.slot.take(RunningCell(self._next("call"), chosen, "an exchange")):
            self._settle(View, tell)
            lost = {rank: self._lost[rank] for rank in chosen if rank in self._lost}
            if lost and ranks is not None:
                raise failure_of_rank(next(iter(lost.values())))
            self._check_left(chosen)
            here = tuple(rank for rank in chosen if rank not in lost)
            return self.ask(here, work, buffers)

    def last_errors(self, ranks: tuple[int, ...] | None) -> list[RankError]:
        errors = []
        answers = self.call(ranks, GiveLastError(), View().notice)
        for rank, answer in sorted(answers.items()):
            found: ErrorOfCell | None = answer[""]
            if found is not None:
                is_of_last = found.cell == (self._last_cell or found.last_cell)
                errors.append(RankError(rank, found.ename, found.evalue, is_of_last))
        return errors

    def _check_left(self, ranks: Collection[int]) -> None:
        """Refuse to queue behind a cell that an abandoned rank still runs."""
        if not self._left:
            return
        states = {info.rank: info.state for info in self._root.topology().ranks}
        self._left = {rank for rank in self._left if states[rank] == "busy"}
        busy = self._left.intersection(ranks)
        if busy:
            raise DistributedError(say_busy(self._root.stacks(tuple(sorted(busy)))))

    def interrupt(self) -> tuple[int, ...]:
        """Stop the running cell, else callbacks; return their ranks."""
        running = self.slot.turn
        if running is None:
            return self.interrupt_callbacks()
        # A loop that waits for the cell stops it as at Ctrl-C. Without such a loop (the cell is not
        # sent yet, or was abandoned) the ranks are interrupted here.
        if not self._dispatch.is_under_way(running.name):
            self._root.stop_cell(running.name, running.ranks)
        self._dispatch.tell(Interrupted())
        return tuple(running.ranks)

    def interrupt_callbacks(self) -> tuple[int, ...]:
        """Stop callbacks of widgets that run; return their ranks."""
        running = self._dispatch.widgets.running()
        for rank, callback in running.items():
            self._root.stop_cell(callback, (rank,))
        return tuple(sorted(running))
