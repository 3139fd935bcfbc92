"""Replacing ranks: a new process in the place of one that is dead, or that is ended for it.

A rank keeps its number, its host and its slot; only its engine is new. The world takes the new
process in when its next epoch begins. What its cells need is the workspace's business.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence

from phalanx.protocol import (
    Failed,
    FromRoot,
    RankLost,
    Replaced,
    Restart,
    Restarted,
    name_ranks,
)

from ._any_host import Host
from ._world import World

__all__ = ["RESTARTED", "Restarts", "refusal_of"]

RESTARTED = "is being restarted"  # why a rank is gone meanwhile
KILL_S = 5.0  # what the kernel holds for longer (a dead file server) cannot be ended by us
START_S = 60.0  # as long as the first ranks of a workspace have


def refusal_of(
    ranks: Sequence[int],
    size: int,
    dead: Collection[int],
    starting: Collection[int],
    *,
    force: bool,
) -> str:
    """Say why these ranks cannot be restarted, "" if they can.

    Examples
    --------
    >>> refusal_of((1, 2), 4, {2}, (), force=False)
    'rank 1 is alive; --force replaces it, and its variables are lost'

    One of ``starting`` is being restarted already: whoever asks for it waits for that.
    """
    unknown = [rank for rank in ranks if not 0 <= rank < size]
    if unknown:
        return f"there is no rank {unknown[0]}: the ranks are 0 to {size - 1}"
    if not ranks:
        return "no rank is dead; to replace one that is alive, name it with --force"
    alive = sorted(set(ranks) - set(dead) - set(starting))
    if alive and not force:
        is_one = len(alive) == 1
        verb, them, their = ("is", "it", "its") if is_one else ("are", "them", "their")
        return f"{name_ranks(alive)} {verb} alive; --force replaces {them}, and {their} variables are lost"
    return ""


class Restarts:
    """Restarts ranks, several at a time, and says how that went.

    Parameters
    ----------
    engines : list of str
        By rank; a new rank's is put there.
    spawn : callable
        Starts the process of a rank.
    lose, revive : callable
        Frees everyone who waits for a rank that is gone; takes its successor in.
    tell : callable
        Gets what the workspace is to know.
    """

    def __init__(
        self,
        world: World,
        host: Host,
        engines: list[str],
        *,
        spawn: Callable[[int], None],
        lose: Callable[[int, str], None],
        revive: Callable[[int], None],
        tell: Callable[[FromRoot], None],
    ) -> None:
        self._world = world
        self._host = host
        self._engines = engines
        self._spawn = spawn
        self._lose = lose
        self._revive = revive
        self._tell = tell
        self._replaced: set[int] = set()
        self._ending: set[int] = set()
        # By rank: why it could not be started, "" when it takes cells.
        self._starting: dict[int, asyncio.Future[str]] = {}
        self._under_way: dict[int, asyncio.Future[str]] = {}  # what `replace` is to return

    def is_replacement(self, rank: int) -> bool:
        """Whether the process that is this rank is not its first."""
        return rank in self._replaced

    async def restart(self, request: Restart) -> Restarted | Failed:
        """Replace ranks; the answer comes when all of them take cells, or cannot."""
        dead = self._world.dead
        ranks = tuple(sorted(set(request.ranks) or {*dead, *self._under_way}))
        refusal = refusal_of(ranks, self._world.size, dead, self._under_way, force=request.force)
        if refusal:
            return Failed(request.id, refusal)
        joined = tuple(rank for rank in ranks if rank in self._under_way)
        for rank in ranks:  # before anything waits: another request may be next
            self.claim(rank)
        # Shielded: a restart that several wait for is not one's to cancel.
        waits: list[Awaitable[str]] = [asyncio.shield(self._under_way[rank]) for rank in joined]
        waits += [self.replace(rank) for rank in ranks if rank not in joined]
        order = (*joined, *(rank for rank in ranks if rank not in joined))
        problems = dict(zip(order, await asyncio.gather(*waits), strict=True))
        failed = {rank: problems[rank] for rank in ranks if problems[rank]}
        new = tuple(rank for rank in ranks if rank not in failed)
        return Restarted(request.id, new, failed, joined)

    def claim(self, rank: int) -> bool:
        """Reserve a rank for a `replace` that follows; False if it is being replaced already."""
        if rank in self._under_way:
            return False
        self._under_way[rank] = asyncio.get_running_loop().create_future()
        return True

    async def replace(self, rank: int) -> str:
        """Put a new process in the place of a rank; "" when it takes cells, else why it does not."""
        problem = "the restart was broken off"
        try:
            problem = await self._replace(rank)
        finally:
            self._under_way.pop(rank).set_result(problem)
        return problem

    async def _replace(self, rank: int) -> str:
        reason = self._world.dead.get(rank, RESTARTED)
        if self._host.status(rank) is None and not await self._end(rank):
            self._world.dead[rank] = "does not end"
            return f"its process {self._host.pid(rank)} could not be ended within {KILL_S:g} s"
        self._world.dead[rank] = RESTARTED
        problem = await self._start(rank)
        if not problem and self._host.status(rank) is not None:
            problem = "ended right after its start"
        if problem:
            self._world.dead[rank] = problem
            return problem
        self._revive(rank)
        self._tell(Replaced(rank, self._engines[rank], reason))
        return ""

    async def _end(self, rank: int) -> bool:
        """Free whoever waits for a rank, and end it."""
        self._lose(rank, RESTARTED)
        self._tell(RankLost(rank, self._host.layout.name_of(rank), RESTARTED, "", will_return=True))
        self._ending.add(rank)
        try:
            is_over = await self._host.kill(rank, KILL_S)
        finally:
            self._ending.discard(rank)
        if is_over:
            self._host.give_back(rank)
        return is_over

    async def _start(self, rank: int) -> str:
        self._engines[rank] = str(uuid.uuid4())
        self._replaced.add(rank)
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._starting[rank] = ready
        try:
            self._spawn(rank)
            return await asyncio.wait_for(ready, START_S)
        except OSError as error:
            return f"could not be started: {error}"
        except asyncio.TimeoutError:
            await self._host.kill(rank, KILL_S)
            return f"did not take cells within {START_S:g} s of its start"
        finally:
            del self._starting[rank]

    async def settled(self, ranks: Collection[int], timeout_s: float) -> None:
        """Wait until none of these ranks is being replaced, or time is over."""
        waits = [self._under_way[rank] for rank in ranks if rank in self._under_way]
        if waits:  # not cancelled when time is over: the cell runs without, which is told
            await asyncio.wait(waits, timeout=timeout_s)

    def on_ready(self, rank: int) -> bool:
        """Take the news that a rank takes cells; False if it is no replacement that is awaited."""
        ready = self._starting.get(rank)
        if ready is None:
            return False
        if not ready.done():
            ready.set_result("")
        return True

    def on_lost(self, rank: int, reason: str, tail: str) -> bool:
        """Take the news of a process's end; False if it was no part of a restart."""
        if rank in self._ending:
            return True
        ready = self._starting.get(rank)
        if ready is None:
            return False
        if not ready.done():
            is_start = "could not be started" in reason
            ready.set_result(reason if is_start else f"{reason} while starting\n{tail}".rstrip())
        return True
