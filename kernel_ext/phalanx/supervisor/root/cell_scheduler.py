"""Decide when a cell may begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from phalanx.distributed.control import AbortKind
from phalanx.protocol import (
    ENTRY,
    BeginCell,
    CancelCell,
    CellAllowed,
    CellEnded,
    Entered,
    EnterWorld,
    Failed,
    StopCell,
    name_ranks,
    say_busy,
)

from ..hosts.host_set import HostSet
from ..world.membership import MembershipCoordinator
from ..world.state import WorldState
from .inspector import RankInspector
from .replacement import Restarts

RESTART_WAIT_S = 5.0  # how long a cell waits for replacements; clients wait longer for permission
ENTRY_S = 35.0  # a rank itself gives up after 30 s
REFUSED_S = 5.0  # if a rank cannot enter, the others are freed at once
UNFINISHED_WAIT_S = 2.0  # how long a new cell waits for ranks that still run the last one


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
        world.subscribe(self._on_lost)

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
    """Decide when cells may begin."""

    def __init__(
        self,
        world: WorldState,
        host: HostSet,
        membership: MembershipCoordinator,
        restarts: Restarts,
        inspector: RankInspector,
    ) -> None:
        self._world = world
        self._host = host
        self._membership = membership
        self._restarts = restarts
        self._inspector = inspector
        self.entry = WorldEntry(world, host, membership)
        self._has_ended = asyncio.Event()  # a rank has become free
        self._announced: set[str] = set()  # cells that wait for permission to begin
        world.subscribe(lambda _rank: self.ended())

    def announce(self, cell: str) -> None:
        self._announced.add(cell)

    async def begin(
        self, request: BeginCell, still_wanted: Callable[[], bool]
    ) -> CellAllowed | Failed:
        """Let a cell begin once its ranks are free; return the reply."""

        def busy() -> set[int]:
            return (self.entry.missing | self._world.unfinished()).intersection(request.ranks)

        async def wait() -> None:
            while busy():
                self._has_ended.clear()
                await self._has_ended.wait()

        if unknown := set(request.ranks) - set(range(self._world.size)):  # the cell would never end
            self._announced.discard(request.cell)
            return Failed(f"there is no {name_ranks(unknown)}")
        await self._restarts.settled(request.ranks, RESTART_WAIT_S)
        await self._host.refresh()  # the host of a rank may have aborted the epoch
        try:
            await asyncio.wait_for(wait(), UNFINISHED_WAIT_S)
        except asyncio.TimeoutError:
            stacks = await self._inspector.stacks(busy(), is_twice=True)
            if busy():
                self._announced.discard(request.cell)
                return Failed(say_busy(stacks))
        is_wanted = request.cell in self._announced and still_wanted()
        self._announced.discard(request.cell)
        if not is_wanted:
            return Failed("the cell was taken back")
        self._membership.take_abort()
        allowed = self._world.begin_cell(request.cell, request.ranks, request.title)
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
            if self._world.cells.forget(message.cell):
                self.entry.stop()
        never = CellEnded(message.cell, ok=False, ename="CellLost", evalue="it was never sent here")
        for rank in set(message.ranks).intersection(range(self._world.size)):
            self._world.end_cell(rank, never)
        self.ended()

    def end(self, rank: int, message: CellEnded) -> None:
        self._world.end_cell(rank, message)
        self.ended()
        self._membership.look()

    def entered(self, rank: int, message: Entered) -> None:
        """Record that a rank has entered the epoch, or why not."""
        self.entry.take(rank, message)
        self.ended()

    def ended(self) -> None:
        """Wake the waiting cells, which then check again which ranks are busy."""
        self._has_ended.set()
