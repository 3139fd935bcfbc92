"""What a client does with the ranks of a booted world: begin, run, join, restart, call, stop.

It knows the steps and their order; it starts and stops no process.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection
from typing import Any

from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import Booted, KeepCell, say_busy

from ._catch_up import CatchUp
from ._cell import Cell
from ._ctrl_c import ctrl_c
from ._events import Event, Interrupted, StopRequest, TakenAway
from ._io import SocketThread
from ._newcomers import Wish
from ._outcome import RankResult, raise_for, results_of
from ._ranks import name_ranks
from ._root_client import RootClient
from ._run import run_cell
from ._sayings import say_failed, say_joined
from ._start import wait_answering
from ._steps import ANSWER_S, Steps
from ._turns import Turn
from ._view import QuietView, View

__all__ = ["CellRunner"]


class CellRunner(Steps):
    """Runs cells; made when the ranks are up. `begin` waits until all of them answer.

    `run` is for one thread at a time (another is refused); `interrupt`, `on_news` and `output`
    may be called by any.
    """

    def __init__(self, name: str, thread: SocketThread, root: RootClient, booted: Booted) -> None:
        super().__init__(name, thread, root, booted)
        self.help, self.waiting = self._dispatch.help, self._dispatch.waiting
        self._missed: CatchUp | None = None

    def begin(self, *, is_new: bool) -> None:
        """Meet the ranks, whose news reach `on_news`; not new: `join` follows what they run."""
        if is_new:
            with self._news_lock:
                self._heard = None
            name, gone = f"{self._name}:ping", lambda: tuple(self._lost)
            wait_answering(self._dispatch, name, len(self._ranks), ANSWER_S, gone=gone)
            for lost in self._lost.values():
                raise RankFailure(lost.rank, lost.host, f"{lost.reason} while starting")
            self._enter()
            return
        # What epoch it is, and who has entered it, the root knows: the first cell is told.
        self._missed = missed = CatchUp(self._name, self._dispatch, self._root, len(self._ranks))
        for kept in missed.standing.every_start:
            self._every_start.add(kept.code, kept.ranks)
        with self._news_lock:
            for lost in missed.deaths:
                self._lost[lost.rank] = lost
                self._dispatch.on_lost(lost)
            for its in missed.standing.returns:
                if its.rank not in self._lost:
                    self._newcomers.add(its.rank, its.engine, its.reason, is_told=True)
            # News that came meanwhile, in their order: the last word on a rank is the newest.
            heard, self._heard = self._heard or [], None
            for message in heard:
                self._on_news(message)
        if missed.cell is not None and missed.running:
            self._turns.leave(Turn(missed.cell.name, missed.running))

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
            self._root.keep(KeepCell(code, ranks))
        chosen = self._ranks if ranks is None else ranks
        name = self._next()
        # From the announcement on, a Ctrl-C must not fall between two steps: it is kept for the
        # cell, which then is stopped as it begins, and ends a wait for ranks that are new.
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        with (
            self._turns.take(Turn(name, chosen, what or "a cell", "" if what else code)),
            ctrl_c(lambda: events.put(StopRequest())),
        ):
            self._is_stopped = lambda: not events.empty()
            try:
                self._settle(QuietView, view.notice)
                here, lost = self._announce(name, chosen, view, is_all=ranks is None)
                if self._newcomers:  # one came back while the root was asked
                    self._root.forget_cell(name)
                    self._settle(QuietView, view.notice)
                    here, lost = self._announce(name, chosen, view, is_all=ranks is None)
            finally:
                self._is_stopped = lambda: False
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
                    mend=self._mend(cell),
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
        finally:
            self._newcomers.unwish(wished, wish)
        if answer.joined:
            tell(say_joined(answer.joined))
        if answer.ranks:
            error = None
            turn = Turn(self._next("restart"), answer.ranks, "a restart")
            with self._turns.take_if_free(turn) as is_free:
                if is_free:
                    error = self._settle(make_view, tell)
            if not is_free:
                tell(f"{name_ranks(answer.ranks)} will take part from the next cell on")
            if error is not None:
                raise error
        if answer.failed:
            raise DistributedError(say_failed(answer.failed))
        return answer.ranks

    def call(
        self, ranks: tuple[int, ...] | None, buffers: list[Any], tell: Callable[[str], None]
    ) -> dict[int, Any]:
        """Call a function (packed by `_values`) on ranks; what came back, by rank."""
        chosen = self._ranks if ranks is None else ranks
        with self._turns.take(Turn(self._next("call"), chosen, "an exchange")):
            self._settle(QuietView, tell)
            lost = {rank: self._lost[rank] for rank in chosen if rank in self._lost}
            if lost and ranks is not None:
                first = next(iter(lost.values()))
                raise RankFailure(first.rank, first.host, first.reason)
            self._check_left(chosen)
            return self.ask(tuple(rank for rank in chosen if rank not in lost), buffers)

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
