"""Decide when a cell may begin, and record how it went.

The record: which ranks ran it, when, and with which result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from phalanx.distributed import AbortKind
from phalanx.protocol import (
    ENTRY,
    BeginCell,
    CancelCell,
    CellAllowed,
    CellEnded,
    CellStatus,
    CellTime,
    Entered,
    EnterWorld,
    Failed,
    LineNeed,
    LineNotNeeded,
    StopCell,
    TypedLine,
    TypeLine,
    name_ranks,
    say_busy,
)
from phalanx.protocol.host import WatchRanks

from ..hosts.host_set import HostSet
from ..membership import MembershipCoordinator
from ..world_state import RankDirectory, WorldState
from .observers import RankInspector, StallWatcher
from .replacement import Restarts

RESTART_WAIT_S = 5.0  # how long a cell waits for replacements; clients wait longer for permission
ENTRY_S = 35.0  # a rank itself gives up after 30 s
REFUSED_S = 5.0  # if a rank cannot enter, the others are freed at once
UNFINISHED_WAIT_S = 2.0  # how long a new cell waits for ranks that still run the last one
KEPT_NS = 2_000_000_000  # six samples: a client that misses some still gets the end of each cell


class WorldEntry:
    """Have all ranks enter the present epoch, and wait for them.

    ``missing`` has the ranks that have not answered. If one cannot enter, the others are freed.
    """

    def __init__(self, world: WorldState, host: HostSet, membership: MembershipCoordinator) -> None:
        self.missing: set[int] = set()
        self._world = world
        self._host = host
        self._membership = membership
        self._number = 0
        self._failed: dict[int, tuple[str, str]] = {}
        self._changed = asyncio.Event()
        world.ranks.subscribe(lost=self._on_lost)

    async def run(self) -> dict[int, tuple[str, str]]:
        """Order the ranks to enter; return the errors by rank."""
        self._number += 1
        self.missing, self._failed = self._world.alive, {}
        for rank in self.missing:
            self._host.send(rank, EnterWorld(self._number))
        while self.missing:
            self._changed.clear()
            limit_s = REFUSED_S if self._failed else ENTRY_S
            try:
                await asyncio.wait_for(self._changed.wait(), limit_s)
            except asyncio.TimeoutError:
                late = "DistributedError", "it did not join the group in time"
                return {**dict.fromkeys(self.missing, late), **self._failed}
        return self._failed

    def take(self, rank: int, entered: Entered) -> None:
        """Record a rank's answer."""
        if entered.id == self._number:
            if entered.ename:
                why = f"could not join: {entered.ename}: {entered.evalue}"
                self._membership.abort(AbortKind.RANK_FAILURE, why, rank)
            self._end(rank, entered.ename, entered.evalue)

    def _on_lost(self, rank: int) -> None:
        self._end(rank, "RankFailure", self._world.dead[rank])

    def _end(self, rank: int, ename: str, evalue: str) -> None:
        if rank in self.missing:
            self.missing = self.missing - {rank}
            if ename:
                self._failed[rank] = ename, evalue
            self._changed.set()

    def stop(self) -> None:
        """Interrupt the ranks that are entering."""
        for rank in self.missing:
            self._host.send(rank, StopCell(ENTRY, f"entry {self._number}"))


class CellScheduler:
    """Decide when cells may begin, and record their ends.

    Parameters
    ----------
    spawn_task : callable
        Runs a coroutine as a task of the root, cancelled when the root ends.
    """

    def __init__(
        self,
        world: WorldState,
        host: HostSet,
        membership: MembershipCoordinator,
        restarts: Restarts,
        inspector: RankInspector,
        history: CellHistory,
        watch: StallWatcher,
        spawn_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._world = world
        self._host = host
        self._membership = membership
        self._restarts = restarts
        self._inspector = inspector
        self._history = history
        self._watch = watch
        self._spawn_task = spawn_task
        self.entry = WorldEntry(world, host, membership)
        self._ended = asyncio.Condition()
        self._announced: set[str] = set()  # cells that wait for permission to begin
        world.ranks.subscribe(lost=lambda _rank: self.ended())

    def announce(self, cell: str) -> None:
        """Record that a cell waits for permission; `begin` must follow."""
        self._announced.add(cell)

    async def begin(
        self, request: BeginCell, still_wanted: Callable[[], bool]
    ) -> CellAllowed | Failed:
        """Let a cell begin once its ranks are free; return the reply."""

        def busy() -> set[int]:
            return (self.entry.missing | self._world.unfinished()).intersection(request.ranks)

        async def wait() -> None:
            async with self._ended:
                await self._ended.wait_for(lambda: not busy())

        if unknown := set(request.ranks) - set(range(self._world.size)):  # the cell would never end
            self._announced.discard(request.cell)
            return Failed(request.id, f"there is no {name_ranks(unknown)}")
        await self._restarts.settled(request.ranks, RESTART_WAIT_S)
        try:
            await asyncio.wait_for(wait(), UNFINISHED_WAIT_S)
        except asyncio.TimeoutError:
            stacks = await self._inspector.stacks(busy(), is_twice=True)
            if busy():
                self._announced.discard(request.cell)
                return Failed(request.id, say_busy(stacks))
        is_wanted = request.cell in self._announced and still_wanted()
        self._announced.discard(request.cell)
        if not is_wanted:
            return Failed(request.id, "the cell was taken back")
        self._membership.take_abort()
        self._history.begin(request.cell, request.ranks, request.title)
        allowed = self._world.begin_cell(request.id, request.cell, request.ranks)
        self._host.take(WatchRanks(is_on=True))
        if allowed.reform:  # also for threads that outlived the previous cell
            self._membership.welcome_asking()
            failed = await self.entry.run()
            return msgspec.structs.replace(allowed, failed=failed)
        return allowed

    def forget(self, message: CancelCell) -> None:
        """Cancel an announced cell on ranks that were not sent it.

        Without ``message.ranks`` the cell was sent to no rank.
        """
        if not message.ranks:
            self._announced.discard(message.cell)
            if self._world.forget_cell(message.cell):
                self.entry.stop()
            self._history.forget(message.cell)
        for rank in set(message.ranks).intersection(range(self._world.size)):
            self._world.end_cell(rank, message.cell, ok=False)
            never = CellEnded(
                message.cell, ok=False, ename="CellLost", evalue="it was never sent here"
            )
            self._history.end(rank, never)
        self.ended()
        self._watch.look()

    def end(self, rank: int, message: CellEnded) -> None:
        """Record that a rank's part of a cell is over."""
        self._world.end_cell(
            rank, message.cell, ok=message.ok, has_background_threads=message.has_background_threads
        )
        self._history.end(rank, message)
        self.ended()
        self._membership.look()
        self._watch.look()

    def entered(self, rank: int, message: Entered) -> None:
        """Record that a rank has entered the epoch, or why not."""
        self.entry.take(rank, message)
        self.ended()

    def ended(self) -> None:
        """Wake the waiting cells, which then check again which ranks are busy."""
        self._host.take(WatchRanks(is_on=bool(self._world.unfinished())))
        self._spawn_task(self._notify_ended())

    async def _notify_ended(self) -> None:
        async with self._ended:
            self._ended.notify_all()


class CellTimeline:
    """Record when each cell began and when each rank ended it.

    Examples
    --------
    >>> times = CellTimeline(iter(range(100)).__next__)
    >>> times.begin("a", (0, 1))
    >>> times.end("a", 1)
    >>> times.recent()
    (CellTime(cell='a', begun_ns=1, ranks=(0, 1), ended_ns={1: 2}, title=''),)
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._cells: dict[str, CellTime] = {}

    def begin(self, cell: str, ranks: Iterable[int], title: str = "") -> None:
        """Record that a cell begins now."""
        self._forget_old()
        self._cells[cell] = CellTime(cell, self._clock(), tuple(ranks), {}, title)

    def forget(self, cell: str) -> None:
        """Drop a cell that did not begin after all."""
        self._cells.pop(cell, None)

    def end(self, cell: str, rank: int) -> None:
        """Record that a rank has ended its part of a cell."""
        its = self._cells.get(cell)
        if its is not None and rank in its.ranks:
            its.ended_ns.setdefault(rank, self._clock())

    def end_all(self, rank: int) -> None:
        """Record that a rank has ended its part of every cell."""
        for cell in self._cells:
            self.end(cell, rank)

    def recent(self) -> tuple[CellTime, ...]:
        """Return the running cells and those that ended less than `KEPT_NS` ago."""
        self._forget_old()
        return tuple(self._cells.values())

    def running(self, rank: int) -> tuple[str, float]:
        """Return title and seconds so far of a rank's cell.

        Returns ``("", 0.0)`` for a rank that runs no cell.
        """
        for its in reversed(self._cells.values()):
            if rank in its.ranks and rank not in its.ended_ns:
                return its.title, (self._clock() - its.begun_ns) / 1e9
        return "", 0.0

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_NS
        over = [
            cell
            for cell, its in self._cells.items()
            if len(its.ended_ns) == len(its.ranks)
            and max(its.ended_ns.values(), default=0) < oldest
        ]
        for cell in over:
            del self._cells[cell]


class CellHistory:
    r"""Record the unfinished cells and the last cell that all ranks ended.

    Examples
    --------
    >>> log = CellHistory(RankDirectory(2))
    >>> log.begin("a", (0, 1))
    >>> log.end(0, CellEnded("a", ok=True))
    >>> [[*cell.ended] for cell in log.unfinished()]
    [[0]]
    """

    def __init__(self, ranks: RankDirectory) -> None:
        self.times = CellTimeline()
        self._dead = ranks.dead
        ranks.subscribe(lost=self._on_lost, alive=self._on_alive)
        self._cells: dict[str, tuple[tuple[int, ...], dict[int, CellEnded]]] = {}
        self._last = ""  # the cell that ended last
        self.begun: dict[int, str] = {}  # the cell that each rank began last
        self.is_end_seen = True  # whether the owner knows of the end of the last cell
        self._typed: dict[str, list[TypedLine]] = {}  # by cell
        self._needs: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command

    def begin(self, cell: str, ranks: tuple[int, ...], title: str = "") -> None:
        """Record a cell that its owner is about to send."""
        self.is_end_seen = True
        self._cells.pop(self._last, None)
        self._last = ""
        self._cells[cell] = tuple(rank for rank in ranks if rank not in self._dead), {}
        self.times.begin(cell, self._cells[cell][0], title)

    def forget(self, cell: str) -> None:
        """Drop a cell that was announced and never sent."""
        self._cells.pop(cell, None)
        self.times.forget(cell)

    def end(self, rank: int, notice: CellEnded) -> None:
        """Record how a rank's part of a cell ended."""
        self.times.end(notice.cell, rank)
        if notice.cell in self._cells:
            self._cells[notice.cell][1][rank] = notice
            self._look(notice.cell)

    def type_line(self, order: TypeLine) -> None:
        """Record a line that was typed for a cell."""
        if order.cell in self._cells:
            self._typed = {order.cell: [*self._typed.get(order.cell, ()), order.entry]}

    def ask_line(self, rank: int, news: LineNeed | LineNotNeeded) -> None:
        """Record whether a rank waits for a line."""
        if isinstance(news, LineNeed):
            self._needs[rank, news.is_command] = news
        else:
            self._needs.pop((rank, False), None)

    def _on_lost(self, rank: int) -> None:
        self.times.end_all(rank)
        for cell in list(self._cells):
            self._look(cell)

    def _on_alive(self, rank: int) -> None:
        """Leave a rank out that was replaced: the successor runs no cell."""
        self.begun.pop(rank, None)
        for cell, (ranks, ended) in self._cells.items():
            if rank not in ended:
                self._cells[cell] = tuple(r for r in ranks if r != rank), ended

    def _look(self, cell: str) -> None:
        if cell != self._last and self._is_over(cell):
            self._cells.pop(self._last, None)
            self._last = cell

    def _is_over(self, cell: str) -> bool:
        ranks, ended = self._cells[cell]
        return not set(ranks) - ended.keys() - self._dead.keys()

    def unfinished(self) -> tuple[CellStatus, ...]:
        """Return the running cells, and the last until its end is seen."""
        return tuple(
            CellStatus(
                cell,
                ranks,
                dict(ended),
                tuple(self._typed.get(cell, ())),
                tuple(
                    (rank, need)
                    for (rank, _), need in self._needs.items()
                    if need.cell == cell and rank not in ended
                ),
            )
            for cell, (ranks, ended) in self._cells.items()
            if not (self.is_end_seen and self._is_over(cell))
        )
