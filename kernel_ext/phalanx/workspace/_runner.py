"""Running cells on the ranks of a booted world, one at a time.

It knows the root's leave to run, the ranks' dispatch and the loop that waits; it starts and
stops no process.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Collection
from typing import Any

from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import Booted, FromRoot, Notice, RankLost, Replaced, say_busy

from ._arrivals import prepare
from ._catch_up import CatchUp
from ._cell import Cell
from ._ctrl_c import ctrl_c
from ._dispatch import Dispatch
from ._events import Event, Interrupted, Lost, StopRequest, TakenAway, Told
from ._io import SocketThread
from ._newcomers import EveryStart, Newcomers, Wish, say_failed, say_without
from ._outcome import RankResult, raise_for, results_of
from ._output import MAX_LINES
from ._ranks import name_ranks
from ._root_client import RootClient
from ._run import CellOutcome, run_cell
from ._start import wait_answering
from ._turns import Turn, Turns
from ._values import Call
from ._view import QuietView, View

__all__ = ["CellRunner"]

ANSWER_S = 60.0  # ranks that have started answer in milliseconds
ENTER_CODE = "get_ipython().kernel.enter_world()"
INTRODUCE_CODE = "get_ipython().kernel.introduce({size})"


class CellRunner:
    """Runs cells; made when the ranks are up. `begin` waits until all of them answer.

    `run` is for one thread at a time (another is refused); `interrupt`, `on_news` and `output`
    may be called by any.
    """

    def __init__(self, name: str, thread: SocketThread, root: RootClient, booted: Booted) -> None:
        # Other clients have given names as well; one is never given twice.
        self._name = f"{name}:{booted.client}"
        self._root = root
        self._ranks = tuple(range(len(booted.engines)))
        self._numbers = itertools.count(1)
        self._turns = Turns()
        self._lost: dict[int, Lost] = {}
        self._left: set[int] = set()  # ranks that were left to a cell they did not end
        self._dispatch = Dispatch(thread, booted.connection, booted.engines, booted.session)
        self.help, self.waiting = self._dispatch.help, self._dispatch.waiting
        self._newcomers = Newcomers()
        self._every_start = EveryStart()
        self._missed: CatchUp | None = None

    def begin(self, *, is_new: bool) -> None:
        """Meet the ranks, whose news reach `on_news`; not new: `join` follows what they run."""
        if not is_new:
            missed = CatchUp(self._name, self._dispatch, self._root, len(self._ranks))
            for lost in missed.deaths:
                self._lost[lost.rank] = lost
                self._dispatch.on_lost(lost)
            if missed.cell is not None and missed.running:
                self._turns.leave(Turn(missed.cell.name, missed.running))
            self._missed = missed
        else:
            name, gone = f"{self._name}:ping", lambda: tuple(self._lost)
            wait_answering(self._dispatch, name, len(self._ranks), ANSWER_S, gone=gone)
            for lost in self._lost.values():
                raise RankFailure(lost.rank, lost.host, f"{lost.reason} while starting")
        if self._missed is None or not self._missed.has_entered:
            self._enter()

    def _enter(self) -> None:
        """Have every rank join the world as it stands."""
        cell = Cell(f"{self._name}:enter:{next(self._numbers)}", self._ranks)
        raise_for(self._execute(cell, ENTER_CODE, QuietView(), silent=True))

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
    ) -> list[RankResult]:
        """Run a cell; see `Workspace.run`. ``ranks`` None: all that live; ``what``: its name."""
        if every_start:
            self._every_start.add(code, ranks)
        chosen = self._ranks if ranks is None else ranks
        name = f"{self._name}:{next(self._numbers)}"
        # From the announcement on, a Ctrl-C must not fall between two steps: it is kept for the
        # cell, which then is stopped as it begins.
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        with (
            self._turns.take(Turn(name, chosen, what or "a cell", "" if what else code)),
            ctrl_c(lambda: events.put(StopRequest())),
        ):
            self._settle(QuietView, view.notice)
            here, lost = self._announce(name, chosen, view, is_all=ranks is None)
            if self._newcomers:  # one came back while the root was asked
                self._root.forget_cell(name)
                self._settle(QuietView, view.notice)
                here, lost = self._announce(name, chosen, view, is_all=ranks is None)
            cell = Cell(name, here, events, lost)
            outcome = self._execute(cell, code, view, timeout=timeout, max_lines=max_lines)
        raise_for(outcome, timeout)
        return results_of(outcome, here)

    def join(self, view: View) -> list[RankResult]:
        """Show what was missed, and wait for the cell that runs; see `Workspace.join`."""
        missed, self._missed = self._missed, None
        if missed is None:
            return []
        missed.tell(view)
        if missed.cell is None or not missed.running:
            missed.show(view)
            return []
        with self._turns.take(Turn(missed.cell.name, missed.running)):
            cell = missed.begin_cell()
            try:
                outcome = run_cell(
                    cell,
                    view,
                    self._dispatch,
                    look=self._root.look,
                    see=self._root.see,
                    typed=missed.typed,
                )
                self._left.update(outcome.abandoned)
            finally:
                self._dispatch.forget(cell)
        raise_for(outcome)
        return results_of(outcome, cell.ranks)

    def taken(self, text: str) -> None:
        """Leave the cell that runs: the ranks are another process's now."""
        self._dispatch.tell(TakenAway(text))

    @property
    def is_running(self) -> bool:
        """Whether a cell is waited for."""
        return self._turns.is_taken

    def check_idle(self) -> None:
        """Refuse, as `run` would, while something runs."""
        self._turns.check()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is waited for; False when time is over."""
        return self._turns.wait(timeout_s)

    def _announce(
        self, name: str, chosen: tuple[int, ...], view: View, *, is_all: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Announce a cell and get the world ready for it; who can run it, and all the dead."""
        allowed = self._root.begin_cell(name, chosen)
        here = tuple(rank for rank in chosen if rank not in allowed.dead)
        # A cell that will not be sent must be taken back, or the next would wait for its end.
        if not here:
            self._root.forget_cell(name)
            lost = self._lost.get(chosen[0])
            raise RankFailure(chosen[0], lost.host if lost else "", allowed.dead[chosen[0]])
        try:
            self._meet(is_reformed=allowed.reform)
        except BaseException:
            self._root.forget_cell(name)
            raise
        if allowed.dead and is_all:
            view.notice(say_without(allowed.dead))
        return here, tuple(allowed.dead)

    # -- ranks that are replaced --------------------------------------------------------------

    def restart(
        self,
        ranks: tuple[int, ...] | None,
        wish: Wish,
        *,
        force: bool,
        make_view: Callable[[], View],
        tell: Callable[[str], None],
    ) -> tuple[int, ...]:
        """Replace ranks; see `Workspace.restart`. ``ranks`` None: those that are dead."""
        wished = self._ranks if ranks is None else ranks
        self._newcomers.wish(wished, wish)
        try:
            answer = self._root.restart(ranks or (), force=force)
        except DistributedError:
            self._newcomers.unwish(wished)
            raise
        self._newcomers.unwish(wished)
        if answer.ranks and not self._turns.is_taken:
            name = f"{self._name}:restart:{next(self._numbers)}"
            with self._turns.take(Turn(name, answer.ranks, "a restart")):
                error = self._settle(make_view, tell)
            if error is not None:
                raise error
        elif answer.ranks:
            tell(f"{name_ranks(answer.ranks)} will take part from the next cell on")
        if answer.failed:
            raise DistributedError(say_failed(answer.failed))
        return answer.ranks

    def _settle(
        self, make_view: Callable[[], View], tell: Callable[[str], None]
    ) -> DistributedError | None:
        """Have ranks that were replaced meet the others, and get what they were wished."""
        absent = tuple(sorted(self._newcomers.absent))
        if absent:
            name = f"{self._name}:meet:{next(self._numbers)}"
            allowed = self._root.begin_cell(name, absent)
            try:
                self._meet(is_reformed=allowed.reform)
            finally:
                self._root.forget_cell(name)
        if not self._newcomers:
            return None
        return prepare(self, self._newcomers, self._every_start, make_view=make_view, tell=tell)

    def _meet(self, *, is_reformed: bool) -> None:
        """Wait for newcomers' first answer, then have all ranks join if the world is formed anew."""
        absent = self._newcomers.absent
        if absent:
            name, size = f"{self._name}:ping:{next(self._numbers)}", len(self._ranks)
            wait_answering(
                self._dispatch, name, size, ANSWER_S, ranks=absent, gone=lambda: tuple(self._lost)
            )
        here = tuple(sorted(absent - self._lost.keys()))
        if is_reformed:
            self._enter()
        elif here:
            cell = Cell(f"{self._name}:introduce:{next(self._numbers)}", here)
            code = INTRODUCE_CODE.format(size=len(self._ranks))
            raise_for(self._execute(cell, code, QuietView(), silent=True))
        self._newcomers.met(absent)

    def part(self, code: str, ranks: tuple[int, ...], view: View, *, silent: bool = False) -> None:
        """Run a cell of our own as a step of something else, which holds the ranks."""
        name = f"{self._name}:{next(self._numbers)}"
        here, _ = self._announce(name, ranks, view, is_all=False)
        for lost in (self._lost[rank] for rank in ranks if rank not in here):
            self._root.forget_cell(name)
            raise RankFailure(lost.rank, lost.host, lost.reason)
        raise_for(self._execute(Cell(name, here), code, view, silent=silent))

    def _execute(
        self,
        cell: Cell,
        code: str,
        view: View,
        *,
        silent: bool = False,
        timeout: float | None = None,
        max_lines: int = MAX_LINES,
    ) -> CellOutcome:
        try:
            for rank in cell.ranks:
                self._dispatch.execute(cell, rank, code, silent=silent)
                if rank in self._lost:  # since it was chosen
                    cell.on_lost(self._lost[rank])
            outcome = run_cell(
                cell,
                view,
                self._dispatch,
                timeout_s=timeout,
                max_lines=max_lines,
                look=self._root.look,
                see=self._root.see,
            )
            self._left.update(outcome.abandoned)
            return outcome
        finally:
            self._dispatch.forget(cell)

    def call(self, ranks: tuple[int, ...] | None, buffers: list[Any]) -> dict[int, Any]:
        """Call a function (packed by `_values`) on ranks; what came back, by rank."""
        chosen = self._ranks if ranks is None else ranks
        name = f"{self._name}:call:{next(self._numbers)}"
        with self._turns.take(Turn(name, chosen, "an exchange")):
            self._settle(QuietView, lambda text: None)
            lost = {rank: self._lost[rank] for rank in chosen if rank in self._lost}
            if lost and ranks is not None:
                first = next(iter(lost.values()))
                raise RankFailure(first.rank, first.host, first.reason)
            self._check_left(chosen)
            return self.ask(tuple(rank for rank in chosen if rank not in lost), buffers)

    def ask(self, ranks: tuple[int, ...], buffers: list[Any]) -> dict[int, Any]:
        """Call a function on ranks as a step of something that holds them."""
        call = Call(f"{self._name}:call:{next(self._numbers)}", ranks)
        try:
            for rank in ranks:
                self._dispatch.apply(call, rank, buffers)
            outcome = run_cell(call, QuietView(), self._dispatch, see=self._root.see)
        finally:
            self._dispatch.forget(call)
        raise_for(outcome)
        return call.values

    def _check_left(self, ranks: Collection[int]) -> None:
        """Refuse what would wait behind a cell that a rank was left to and still runs."""
        if not self._left:
            return
        states = {info.rank: info.state for info in self._root.topology().ranks}
        self._left = {rank for rank in self._left if states[rank] == "busy"}
        busy = self._left.intersection(ranks)
        if busy:
            raise DistributedError(say_busy(self._root.stacks(tuple(sorted(busy)))))

    def interrupt(self) -> None:
        """Stop the cell that runs; without one, do nothing."""
        running = self._turns.turn
        if running is not None:
            self._dispatch.interrupt_cell(running.name, running.ranks)
            self._dispatch.tell(Interrupted())

    def on_news(self, message: FromRoot) -> None:
        """Tell the cell that runs of a rank's death, or what else the root has to say."""
        if isinstance(message, RankLost):
            lost = Lost(
                message.rank, message.host, message.reason, message.tail, message.will_return
            )
            self._lost.setdefault(lost.rank, lost)
            self._newcomers.lose(lost.rank)
            self._dispatch.on_lost(lost)
        elif isinstance(message, Replaced):
            self._dispatch.on_replaced(message.rank, message.engine)
            self._lost.pop(message.rank, None)
            self._left.discard(message.rank)
            self._newcomers.add(message)
        elif isinstance(message, Notice):
            self._dispatch.tell(Told(message.text))
