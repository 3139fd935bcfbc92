"""The steps that running anything on the ranks is made of: hold, announce, meet, send, wait.

It knows the root's leave to run, the ranks' dispatch and the ranks that are dead or new; what is
run, and for whom, is the runner's.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import Booted, FromRoot, Notice, RankLost, Replaced

from ._again import Mend
from ._arrivals import prepare
from ._cell import Cell, UnannouncedCell
from ._dispatch import Dispatch
from ._events import Lost, Told
from ._io import SocketThread
from ._newcomers import EveryStart, Newcomers
from ._outcome import raise_for
from ._output import MAX_LINES
from ._root_client import RootClient
from ._run import CellOutcome, run_cell
from ._sayings import say_without
from ._start import wait_answering
from ._turns import Turns
from ._values import Call
from ._view import QuietView, View

__all__ = ["ANSWER_S", "Steps", "lost_of"]

ANSWER_S = 60.0  # ranks that have started answer in milliseconds
ENTER_CODE = "get_ipython().kernel.enter_world()"
INTRODUCE_CODE = "get_ipython().kernel.introduce({size})"


def lost_of(message: RankLost) -> Lost:
    """Turn the root's news of a death into what cells are told."""
    return Lost(message.rank, message.host, message.reason, message.tail, message.will_return)


class Steps:
    """What all that runs on the ranks goes through; one thread at a time holds them.

    News come on the socket thread, under a lock of their own.
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
        self._newcomers = Newcomers()
        self._every_start = EveryStart()
        self._is_stopped: Callable[[], bool] = lambda: False  # asked while nothing runs yet
        self._news_lock = threading.Lock()
        self._heard: list[FromRoot] | None = []  # news, until it is known how things stood

    def _next(self, what: str = "") -> str:
        """Give a name to a cell."""
        return f"{self._name}:{what}{':' if what else ''}{next(self._numbers)}"

    # -- holding ------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether a cell is waited for."""
        return self._turns.is_taken

    @property
    def n_ended(self) -> int:
        """How often something that was waited for has ended."""
        return self._turns.n_ended

    @property
    def engines(self) -> tuple[str, ...]:
        """Whose process each rank is now, by name: that of a replaced rank is another."""
        return self._dispatch.engines

    def check_idle(self) -> None:
        """Refuse, as `run` would, while something runs."""
        self._turns.check()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is waited for; False when time is over."""
        return self._turns.wait(timeout_s)

    # -- cells --------------------------------------------------------------------------------

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
                mend=self._mend(cell),
            )
            self._left.update(outcome.abandoned)
            return outcome
        finally:
            self._dispatch.forget(cell)

    def _mend(self, cell: Cell) -> Mend:
        """What it takes to have a cell go on that a connection has lost something of."""

        def send_again(rank: int, is_whole: bool, is_stopped: bool) -> None:
            self._dispatch.again(cell, rank, is_whole=is_whole, is_stopped=is_stopped)

        def stop_again(ranks: tuple[int, ...]) -> None:
            self._dispatch.interrupt_again(cell.name, ranks)

        return Mend(self._root.see_cells, send_again, stop_again)

    def part(self, code: str, ranks: tuple[int, ...], view: View, *, silent: bool = False) -> None:
        """Run a cell of our own as a step of something else, which holds the ranks."""
        name = self._next()
        here, _ = self._announce(name, ranks, view, is_all=False)
        for lost in (self._lost[rank] for rank in ranks if rank not in here):
            self._root.forget_cell(name)
            raise RankFailure(lost.rank, lost.host, lost.reason)
        raise_for(self._execute(Cell(name, here), code, view, silent=silent))

    def ask(self, ranks: tuple[int, ...], buffers: list[Any]) -> dict[int, Any]:
        """Call a function on ranks as a step of something that holds them."""
        call = Call(self._next("call"), ranks, sum(memoryview(buffer).nbytes for buffer in buffers))
        try:
            for rank in ranks:
                self._dispatch.apply(call, rank, buffers)
            outcome = run_cell(
                call, QuietView(), self._dispatch, see=self._root.see, mend=self._mend(call)
            )
        finally:
            self._dispatch.forget(call)
        raise_for(outcome)
        return call.values

    # -- ranks that are new -------------------------------------------------------------------

    def _enter(self) -> None:
        """Have every rank join the world as it stands."""
        cell = UnannouncedCell(self._next("enter"), self._ranks)
        raise_for(self._execute(cell, ENTER_CODE, QuietView(), silent=True))

    def _settle(
        self, make_view: Callable[[], View], tell: Callable[[str], None]
    ) -> DistributedError | None:
        """Have ranks that were replaced meet the others, and get what they were wished."""
        absent = tuple(sorted(self._newcomers.absent))
        if absent:
            name = self._next("meet")
            allowed = self._root.begin_cell(name, absent)
            try:
                self._meet(is_reformed=allowed.reform)
            finally:
                self._root.forget_cell(name)
        fresh = self._newcomers.take()
        if not fresh:
            return None
        error = prepare(self, fresh, self._every_start, make_view=make_view, tell=tell)
        self._root.settled([newcomer.engine for newcomer in fresh])
        return error

    def _meet(self, *, is_reformed: bool) -> None:
        """Wait for newcomers' first answer, then have all ranks join if the world is formed anew."""
        absent = self._newcomers.absent
        if absent:
            wait_answering(
                self._dispatch,
                self._next("ping"),
                len(self._ranks),
                ANSWER_S,
                ranks=absent,
                gone=lambda: tuple(self._lost),
                stopped=self._is_stopped,
            )
        here = tuple(sorted(absent - self._lost.keys()))
        if is_reformed:
            self._enter()
        elif here:
            cell = UnannouncedCell(self._next("introduce"), here)
            code = INTRODUCE_CODE.format(size=len(self._ranks))
            raise_for(self._execute(cell, code, QuietView(), silent=True))
        self._newcomers.met(absent)

    # -- news ---------------------------------------------------------------------------------

    def on_news(self, message: FromRoot) -> None:
        """Tell the cell that runs of a rank's death, or what else the root has to say."""
        with self._news_lock:
            if self._heard is not None:
                self._heard.append(message)
            self._on_news(message)

    def _on_news(self, message: FromRoot) -> None:
        if isinstance(message, RankLost):
            lost = lost_of(message)
            self._lost.setdefault(lost.rank, lost)
            self._newcomers.lose(lost.rank)
            self._dispatch.on_lost(lost)
        elif isinstance(message, Replaced):
            self._dispatch.on_replaced(message.rank, message.engine)
            self._lost.pop(message.rank, None)
            self._left.discard(message.rank)
            self._newcomers.add(message.rank, message.engine, message.reason)
        elif isinstance(message, Notice):
            self._dispatch.tell(Told(message.text))
