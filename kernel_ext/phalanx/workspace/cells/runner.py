"""Run one cell or call at a time on the ranks.

`CellRunner` takes the `ExecutionSlot`, asks the root for permission, prepares replaced ranks, sends
the cell and waits for its end.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from phalanx.errors import DistributedError, RankFailure, cell_error
from phalanx.protocol import (
    AddStartupCell,
    Booted,
    CellAllowed,
    Replaced,
    ReplacementsReady,
    name_ranks,
    say_busy,
)
from phalanx.rank import (
    POST_MORTEM,
    CopyReport,
    ErrorOfCell,
    copy_variables,
    last_error,
    value_of_cell,
)

from ..connection.root_client import RootClient
from ..connection.transport import SocketThread, ctrl_c
from ..output.front_end import View
from ..output.notices import say_copied, say_joined, say_unasked, say_without
from ..output.printer import MAX_LINES, LateOutput
from .attach import AttachSync
from .cell import (
    Cell,
    CellRuns,
    Event,
    ExecutionSlot,
    Interrupted,
    OwnershipLost,
    Pack,
    Packed,
    StopRequest,
    failure_of_rank,
    make_task,
)
from .dispatch import Dispatch
from .loop import CellLoop, CellOutcome, RankError, RankResult, load_values, raise_for, results_of

# Largest value of a cell's last expression that a rank sends. A cell may end in a call that returns
# its model, which the user may not want here. Eight ranks of one machine send this much in 0.1 s.
MOST_VALUE_NBYTES = 16 << 20


class CellRunner:
    """Runs cells on ranks that are up.

    One thread at a time may call `run` (another is refused). Any thread may call `interrupt`. The
    socket thread calls `on_news`.
    """

    def __init__(self, name: str, thread: SocketThread, root: RootClient, booted: Booted) -> None:
        # With the client's number no two clients of a workspace give the same name to a cell.
        self._name = f"{name}:{booted.client}"
        self._root = root
        self._ranks = tuple(range(len(booted.engines)))
        self._numbers = itertools.count(1)
        self.slot = ExecutionSlot()
        self._left: set[str] = set()  # engines that were abandoned in a cell they had not ended
        self._dispatch = Dispatch(thread, booted, root.order)
        self._shown: set[str] = set()  # engines of the replaced ranks that an attach has shown
        self._is_stopped: Callable[[], bool] = lambda: False  # asked before a cell runs
        self.help, self.waiting = self._dispatch.help, self._dispatch.waiting
        self.debuggers, self.client = self._dispatch.debuggers, self._dispatch.client
        self.on_news, self.close = self._dispatch.on_news, self._dispatch.close
        self._missed: AttachSync | None = None
        self._last_cell = ""  # the last cell of a person; empty: none from here yet
        self._dispatch.wait_subscribed()

    def _next(self) -> str:
        return f"{self._name}:{next(self._numbers)}"

    def _cell(
        self,
        ranks: tuple[int, ...] | None,
        work: str | Pack,
        what: str = "a cell",
        **options: Any,
    ) -> Cell:
        chosen = self._ranks if ranks is None else ranks
        return Cell(self._next(), chosen, work, what=what, is_all=ranks is None, **options)

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the engine of each rank.

        A replaced rank has a new engine.
        """
        return self._dispatch.engines

    def _announce(self, cell: Cell, view: View, *, needs_all: bool) -> None:
        """Announce a cell, and keep the ranks that can run it.

        If the user named no ranks, the view tells which are dead. ``needs_all``: a dead rank is an
        error.
        """
        if cell.is_announced:
            holder = self.slot.cell
            title = (holder.title or holder.what) if holder else ""
            dead = self._begin(cell.name, cell.ranks, title).dead
        else:
            self._check_left(cell.ranks)
            dead = {rank: its.reason for rank, its in self._dispatch.lost.items()}
        here = tuple(rank for rank in cell.ranks if rank not in dead)
        if not here or (needs_all and len(here) < len(cell.ranks)):
            first = next(rank for rank in cell.ranks if rank in dead)
            lost = self._dispatch.lost.get(first)
            raise RankFailure(first, lost.host if lost else "", dead[first])
        if dead and cell.is_all and cell.is_announced:
            view.notice(say_without(dead))
        cell.ranks, cell.lost = here, tuple(dead)

    def _begin(self, name: str, ranks: tuple[int, ...], title: str = "") -> CellAllowed:
        """Announce a cell; raise the error of ranks that did not join."""
        allowed = self._root.begin_cell(name, ranks, title, self._is_stopped)
        for rank in allowed.failed.keys() & self._dispatch.lost.keys():
            raise failure_of_rank(self._dispatch.lost[rank])
        if allowed.failed:
            raise cell_error({rank: (*its, ()) for rank, its in allowed.failed.items()})
        return allowed

    def _take_back(self, name: str, ranks: tuple[int, ...] = ()) -> None:
        """Cancel a cell that was not sent (to these ranks).

        Otherwise the next cell would wait for the end of this one.
        """
        with contextlib.suppress(DistributedError):  # the caller already raises an error
            self._root.forget_cell(name, ranks)

    @contextlib.contextmanager
    def _taken_back_on_error(self, cell: Cell) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._take_back(cell.name)
            raise

    def _execute(
        self,
        cell: Cell,
        view: View,
        *,
        timeout_s: float | None = None,
        max_lines: int = MAX_LINES,
    ) -> CellOutcome:
        """Send a cell, wait for it, and forget it.

        Its late output is shown below it.
        """
        outcome: CellOutcome | None = None
        try:
            if not cell.is_attached:
                self._send(cell)
            loop = CellLoop(cell, view, self._root, self._dispatch.resend, max_lines=max_lines)
            outcome = loop.run(timeout_s)
            self._left.update(self.engines[rank] for rank in outcome.abandoned)
            return outcome
        finally:
            below = view.later() if outcome is not None and not outcome.taken else None
            late = None if below is None else LateOutput(below, cell.ranks).take
            self._dispatch.forget(cell, late)

    def _send(self, cell: Cell) -> None:
        """Send a cell to all its ranks, or let none run it.

        If a send fails, the cell is cancelled on the ranks that lack it and interrupted on the
        others.
        """
        sent: list[int] = []
        try:
            if callable(cell.work):
                cell.packed, cell.work = cell.work(cell.ranks), None  # which holds values
            for rank in cell.ranks:
                self._dispatch.execute(cell, rank)
                sent.append(rank)
                if rank in self._dispatch.lost:  # since the ranks were chosen
                    cell.put(self._dispatch.lost[rank])
        except BaseException:
            if cell.is_announced:
                self._take_back(cell.name, cell.ranks[len(sent) :] if sent else ())
                self._root.stop_cell(cell.name, sent)
            raise

    def _part(
        self, work: str | Pack, ranks: tuple[int, ...], view: View, *, is_task: bool = False
    ) -> CellOutcome:
        """Run code or a task within work that holds the ranks."""
        cell = Cell(self._next(), ranks, work, is_task=is_task)
        with self._taken_back_on_error(cell):
            self._announce(cell, view, needs_all=True)
        return self._end(cell, self._execute(cell, view))

    def _end(self, cell: Cell, outcome: CellOutcome, timeout: float | None = None) -> CellOutcome:
        """Take the values of a cell; raise its error, if any."""
        if cell.is_task:
            load_values(cell, outcome)
        else:
            outcome.values = cell.values
        raise_for(outcome, timeout)
        return outcome

    def _enter(self) -> None:
        """Have the root form the group, without a cell."""
        name = self._next()
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
        if not self._dispatch.has_new_ranks:
            return None
        self._enter()
        self._dispatch.has_new_ranks = False
        status = self._root.cell_status()
        dead = {death.rank for death in status.deaths}
        newest = {its.rank: its for its in status.returns if its.rank not in dead}
        fresh = [its for _, its in sorted(newest.items())]
        for its in fresh:
            if not its.is_asked and its.engine not in self._shown:
                tell(say_unasked(its.rank, its.reason))
        try:
            self._copy(fresh, tell)
            return self._run_startup(fresh, status.every_start, make_view, tell)
        finally:
            self._root.send(ReplacementsReady(tuple(its.engine for its in fresh)))

    def _copy(self, fresh: Sequence[Replaced], tell: Callable[[str], None]) -> None:
        """Copy the names that were requested for replaced ranks (``restart --from``)."""
        by_source: dict[int, list[int]] = {}
        for its in fresh:
            if its.copy_from is not None:
                by_source.setdefault(its.copy_from, []).append(its.rank)
        for source, ranks in by_source.items():
            task = make_task(copy_variables, source, tuple(ranks))
            try:
                outcome = self._part(task, (source, *ranks), View(), is_task=True)
            except DistributedError as error:
                tell(f"{name_ranks(ranks)} got nothing of rank {source}: {error}")
                continue
            # Every rank gets the same names; which of them it could load may differ.
            reports: list[CopyReport] = [outcome.values[rank][""] for rank in ranks]
            problems: dict[str, str] = {}
            for _, lacking in reports:
                problems.update(lacking)
            copied = min(number for number, _ in reports)
            tell(say_copied(source, ranks, copied, problems))

    def _run_startup(
        self,
        fresh: Sequence[Replaced],
        every_start: Sequence[AddStartupCell],
        make_view: Callable[[], View],
        tell: Callable[[str], None],
    ) -> DistributedError | None:
        """Run the cells of ``%%distributed --every-start`` on replaced ranks.

        Returns the first error: the ranks can be used all the same.
        """
        first: DistributedError | None = None
        inits = [its.rank for its in fresh if its.init]
        for cell in every_start:
            ranks = tuple(rank for rank in inits if cell.ranks is None or rank in cell.ranks)
            if not ranks:
                continue
            try:
                self._part(cell.code, ranks, make_view())
            except DistributedError as error:
                first = first or error
                line = cell.code.strip().partition("\n")[0]
                tell(f"a cell of --every-start failed ({line!r}): {error}")
        return first

    def form(self) -> None:
        """Have new ranks form their group; raise `RankFailure` if one died."""
        self._enter()
        for lost in self._dispatch.lost.values():
            raise RankFailure(lost.rank, lost.host, f"{lost.reason} while starting")

    def attach(self) -> None:
        """Fetch how the ranks stand; `join` follows the cell that they run.

        News that come meanwhile must be taken after this: the last message about a rank counts.
        """
        # The root knows the epoch and the ranks that entered it, and tells the first cell.
        self._missed = missed = AttachSync(self._dispatch, self._root, len(self._ranks))
        self._shown = {its.engine for its in missed.status.returns}
        for lost in missed.status.deaths:
            self.on_news(lost)
        self._dispatch.has_new_ranks = bool(self._shown)
        if missed.cell is not None and missed.running:
            self.slot.cell = Cell(missed.cell.name, missed.running)

    def run(
        self,
        code: str,
        ranks: tuple[int, ...] | None,
        view: View,
        *,
        timeout: float | None,
        max_lines: int,
        every_start: bool = False,
        has_values: bool = False,
    ) -> list[RankResult]:
        """Run a cell; see `Workspace.run`. ``ranks`` None: all live ranks."""
        if every_start:
            self._root.send(AddStartupCell(code, ranks))
        cell = self._cell(ranks, code)
        outcome = self._run(cell, view, timeout=timeout, max_lines=max_lines, has_values=has_values)
        return results_of(outcome)

    def perform(
        self,
        task: Pack,
        view: View,
        what: str = "an exchange",
        *,
        ranks: tuple[int, ...] | None = None,
        events: queue.SimpleQueue[Event] | None = None,
        check: Callable[[], object] | None = None,
        is_announced: bool = True,
    ) -> dict[int, dict[str, Any]]:
        """Perform a task as a cell; return its named values by rank.

        ``ranks`` None: all live ranks. ``what`` names the task where a cell is refused meanwhile. An
        event in ``events`` stops it. With ``check``, which raises to end the wait, it waits for its
        turn; else it is refused while a cell runs. Unless it ``is_announced``, the root does not know
        it, and forms no group for it.
        """
        options = {"events": events, "is_task": True, "is_announced": is_announced}
        return self._run(self._cell(ranks, task, what, **options), view, check=check).values

    def _run(
        self,
        cell: Cell,
        view: View,
        *,
        check: Callable[[], object] | None = None,
        timeout: float | None = None,
        max_lines: int = MAX_LINES,
        has_values: bool = False,
    ) -> CellOutcome:
        """Run a cell, and return its end.

        With ``has_values`` the values of its last expression are fetched before anything else runs.
        With ``check`` the cell waits for its turn, until ``check`` raises or an event stops it.
        """

        def check_wait() -> None:
            if check is not None:
                check()
            if not cell.events.empty():
                raise KeyboardInterrupt

        # From the announcement on, a Ctrl-C must not interrupt between two steps. So it becomes an
        # event of the cell: the cell is stopped as it begins, and a wait for replaced ranks ends.
        wait = None if check is None else check_wait
        with self.slot.take(cell, view.notice, wait), ExitStack() as until_it_is_over:
            until_it_is_over.enter_context(ctrl_c(lambda: cell.events.put(StopRequest())))
            with self._taken_back_on_error(cell):
                self._begin_cell(cell, view)
            if not cell.is_task and cell.code.strip() != POST_MORTEM:
                self._last_cell = cell.name
            outcome = self._execute(cell, view, timeout_s=timeout, max_lines=max_lines)
            until_it_is_over.close()
            self._end(cell, outcome, timeout)
            if has_values:
                self._fetch_values(cell, outcome)
            return outcome

    def _fetch_values(self, cell: Cell, outcome: CellOutcome) -> None:
        """Fetch the values of the cell's last expression, by rank.

        Only ranks with a result are asked. A value that does not arrive is replaced by the error
        that says why.
        """
        if not (ranks := tuple(sorted(outcome.results))):
            return
        task = make_task(value_of_cell, cell.name, MOST_VALUE_NBYTES)
        asking = Cell(self._next(), ranks, task, is_task=True, is_announced=False)
        asked = self._execute(asking, View())
        load_values(asking, asked)
        if asked.was_stopped or asked.taken:
            raise_for(asked)
        for rank, failure in asked.failures.items():
            outcome.values[rank] = cell_error({rank: (failure.ename, failure.evalue, ())})
        for rank, lost in asked.lost.items():
            outcome.values[rank] = failure_of_rank(lost)
        outcome.values |= {rank: named[""] for rank, named in asked.values.items()}

    def _begin_cell(self, cell: Cell, view: View) -> None:
        """Prepare the ranks for a cell and announce it.

        A call needs all ranks that the user named.
        """
        needs_all = cell.is_call and not cell.is_all
        chosen, self._is_stopped = cell.ranks, lambda: not cell.events.empty()
        try:
            while True:
                self._settle(View, view.notice)
                self._announce(cell, view, needs_all=needs_all)
                if not self._dispatch.has_new_ranks:
                    break
                self._root.forget_cell(cell.name)  # a rank was replaced during the announcement
                cell.ranks = chosen
        finally:
            self._is_stopped = lambda: False
        cell.number = view.cell_number

    def make_call(self, ranks: tuple[int, ...] | None, function: str, pack: Pack) -> Cell:
        """Make a call, which `apply` runs."""
        return self._cell(ranks, pack, "a call", code=function)

    def apply(self, call: Cell, view: View, check: Callable[[], object]) -> Packed:
        """Run a call when its turn comes.

        All ranks that the user named must be alive. ``check`` raises to end the wait. Returns the
        packed values by rank.
        """
        return self._run(call, view, check=check).values

    def join(self, view: View) -> list[RankResult]:
        """Show what was missed, and wait for the running cell.

        See `Workspace.join`.
        """
        missed, self._missed = self._missed, None
        if missed is None:
            return []
        missed.tell(view)
        cell = missed.cell
        if cell is None or not missed.running:
            missed.show(view)
            return []
        self._last_cell = cell.name
        with self.slot.take(Cell(cell.name, missed.running)):
            missed.join_cell(cell)
            outcome = self._end(cell, self._execute(cell, view))
            self._fetch_values(cell, outcome)
            return results_of(outcome)

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
            try:
                with self.slot.take(Cell(self._next(), answer.ranks, what="a restart")):
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

    def last_errors(self, ranks: tuple[int, ...] | None) -> list[RankError]:
        errors = []
        answers = self.perform(make_task(last_error), View(), ranks=ranks, is_announced=False)
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
        infos = [its for its in self._root.topology().ranks if its.state == "busy"]
        busy = [its.rank for its in infos if self.engines[its.rank] in self._left]
        self._left = {self.engines[rank] for rank in busy}
        if its := tuple(sorted(set(busy).intersection(ranks))):
            raise DistributedError(say_busy(self._root.stacks(its)))

    def interrupt(self) -> tuple[int, ...]:
        """Stop the running cell, else callbacks; return their ranks."""
        running = self.slot.cell
        if running is None:
            return self.interrupt_callbacks()
        # A loop that waits for the cell stops it as at Ctrl-C. Without such a loop (the cell is not
        # sent yet, or was abandoned) the ranks are interrupted here.
        if not self._dispatch.is_under_way(running.name):
            self._root.stop_cell(running.name, running.ranks)
        self._dispatch.tell(Interrupted())
        return running.ranks

    def interrupt_callbacks(self) -> tuple[int, ...]:
        """Stop callbacks of widgets that run; return their ranks."""
        running = self._dispatch.widgets.running()
        for rank, callback in running.items():
            self._root.stop_cell(callback, (rank,))
        return tuple(sorted(running))
