"""Replace ranks: start a new process for a dead or ended rank.

The rank keeps its number, host and slot; only its engine is new. The new process joins the group
when the next epoch begins. The workspace brings the new rank to the state of the others.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence

from phalanx.protocol import (
    AddStartupCell,
    Failed,
    FromRoot,
    RankLost,
    RankStack,
    Replaced,
    ReplacementsReady,
    Restart,
    Restarted,
    name_ranks,
)
from phalanx.protocol.host import GiveBack, Spawn

from ..hosts.host_set import HostSet
from ..world.membership import MembershipCoordinator
from ..world.ranks import RESTARTED
from ..world.state import WorldState
from .ending import RankEnding

KILL_S = 5.0  # a process that the kernel blocks for longer (dead file server) cannot be killed
START_S = 60.0  # the same limit as for the first ranks of a workspace


class ReplacementBacklog:
    """Keep the replaced ranks that no client has prepared, and startup cells.

    Examples
    --------
    >>> missed = ReplacementBacklog()
    >>> missed.add(Replaced(2, "its engine", "killed", 10.0, 20.0))
    >>> missed.settle(ReplacementsReady(("its engine",)))
    >>> missed.returns
    ()
    """

    def __init__(self) -> None:
        self._returns: list[Replaced] = []
        self._kept: dict[str, tuple[int, ...] | None] = {}

    def add(self, replaced: Replaced) -> None:
        """Keep a replacement until a client has prepared the rank."""
        self._returns.append(replaced)

    def settle(self, settled: ReplacementsReady) -> None:
        """Drop the handled returns, and older ones of the same ranks."""
        handled = {
            its.rank: place
            for place, its in enumerate(self._returns)
            if its.engine in settled.engines
        }
        self._returns = [
            its for place, its in enumerate(self._returns) if place > handled.get(its.rank, -1)
        ]

    def keep(self, cell: AddStartupCell) -> None:
        """Keep a startup cell."""
        self._kept.pop(cell.code, None)
        self._kept[cell.code] = cell.ranks

    @property
    def returns(self) -> tuple[Replaced, ...]:
        """Return the replacements that no client has settled."""
        return tuple(self._returns)

    @property
    def every_start(self) -> tuple[AddStartupCell, ...]:
        return tuple(AddStartupCell(code, ranks) for code, ranks in self._kept.items())


# A rank that dies this often within this time is not replaced automatically any more. 300 s covers
# a rank that loads data for a minute and then dies each time.
MOST_DEATHS, DEATHS_WITHIN_S = 5, 300.0


def refusal_of(
    ranks: Sequence[int],
    size: int,
    dead: Collection[int],
    starting: Collection[int],
    *,
    force: bool,
) -> str:
    """Return the reason why these ranks cannot be restarted, or "".

    Examples
    --------
    >>> refusal_of((1, 2), 4, {2}, (), force=False)
    'rank 1 is alive; --force replaces it, and its variables are lost'

    Ranks in ``starting`` are already being restarted; the request waits for that restart.
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


class Deaths:
    """Count deaths of ranks, to limit automatic replacement."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}

    def add(self, rank: int, now_s: float) -> str:
        """Count a death; return why the rank stays dead ("": replace it).

        Examples
        --------
        >>> deaths = Deaths()
        >>> [deaths.add(1, now_s) for now_s in (0.0, 6.0, 12.0, 18.0)]
        ['', '', '', '']
        >>> deaths.add(1, 24.0)
        'it has died 5 times in 24 s and is not replaced unasked any more'
        """
        times = self._times.setdefault(rank, deque(maxlen=MOST_DEATHS))
        times.append(now_s)
        took_s = now_s - times[0]
        if len(times) < MOST_DEATHS or took_s > DEATHS_WITHIN_S:
            return ""
        return f"it has died {MOST_DEATHS} times in {took_s:.0f} s and is not replaced unasked any more"

    def forget(self, ranks: Collection[int]) -> None:
        """Reset the counts of ranks that a client asked to restart."""
        for rank in ranks:
            self._times.pop(rank, None)


class Restarts:
    """Restart ranks, several at a time, and report each result.

    Parameters
    ----------
    engines : list of str
        Engine uuids by rank; the uuid of a new engine is stored here.
    backlog : ReplacementBacklog
        Gets each replacement.
    tell : callable
        Sends a message to the clients.
    """

    def __init__(
        self,
        world: WorldState,
        membership: MembershipCoordinator,
        host: HostSet,
        engines: list[str],
        rank_ending: RankEnding,
        backlog: ReplacementBacklog,
        *,
        tell: Callable[[FromRoot], None],
    ) -> None:
        self._world = world
        self._membership = membership
        self._host = host
        self._engines = engines
        self._tell = tell
        self._rank_ending = rank_ending
        self._backlog = backlog
        self._cut_off: dict[int, RankStack] = {}  # ranks that were killed after the grace time
        self.deaths = Deaths()
        self._ending: set[int] = set()
        # By rank: the result of a start; "" once the rank takes cells, else why it did not start.
        self._starting: dict[int, asyncio.Future[str]] = {}
        self._under_way: dict[int, asyncio.Future[str]] = {}  # by rank: the result of `replace`
        self._requests: dict[int, Restart] = {}  # by rank: the first request for the one under way

    async def restart(self, request: Restart) -> Restarted | Failed:
        """Replace ranks; return when each of them takes cells or has failed."""
        dead = self._world.dead
        ranks = tuple(sorted(set(request.ranks) or {*dead, *self._under_way}))
        refusal = refusal_of(ranks, self._world.size, dead, self._under_way, force=request.force)
        if refusal:
            return Failed(refusal)
        self.deaths.forget(ranks)
        joined = tuple(rank for rank in ranks if rank in self._under_way)
        if request.force:  # again: the first request gives the ranks time to end
            self._rank_ending.hurry(self._ending.intersection(joined))
        for rank in ranks:  # before the first await: another request may come meanwhile
            self.claim(rank)
            self._requests.setdefault(rank, request)
        # Shielded: several requests may wait for this restart, and one of them must not
        # cancel it.
        waits: list[Awaitable[str]] = [asyncio.shield(self._under_way[rank]) for rank in joined]
        waits += [self.replace(rank) for rank in ranks if rank not in joined]
        order = (*joined, *(rank for rank in ranks if rank not in joined))
        problems = dict(zip(order, await asyncio.gather(*waits), strict=True))
        failed = {rank: problems[rank] for rank in ranks if problems[rank]}
        new = tuple(rank for rank in ranks if rank not in failed)
        killed = {rank: self._cut_off.pop(rank) for rank in ranks if rank in self._cut_off}
        return Restarted(new, failed, joined, self._rank_ending.say(killed))

    def claim(self, rank: int) -> bool:
        """Reserve a rank for `replace`; False if a replacement is under way."""
        if rank in self._under_way:
            return False
        self._under_way[rank] = asyncio.get_running_loop().create_future()
        return True

    async def replace(self, rank: int) -> str:
        """Start a new process for a rank; return "" on success.

        Otherwise return why the rank does not take cells.
        """
        problem = "the restart was broken off"
        try:
            problem = await self._replace(rank)
        finally:
            self._requests.pop(rank, None)
            self._under_way.pop(rank).set_result(problem)
        return problem

    async def _replace(self, rank: int) -> str:
        ranks = self._world.ranks
        if self._host.statuses[rank] is None and not await self._end(rank):
            ranks.mark_not_replaced(rank, "does not end")
            pid = self._host.report(rank).pid
            return f"its process {pid} could not be ended within {KILL_S:g} s"
        ranks.mark_replacing(rank)
        problem = await self._start(rank)
        if not problem and self._host.statuses[rank] is not None:
            problem = "ended right after its start"
        if problem:
            ranks.mark_not_replaced(rank, problem)
            return problem
        loss, asked = ranks.loss(rank), self._requests.get(rank)
        self._world.revive(rank)
        replaced = Replaced(
            rank,
            self._engines[rank],
            loss.reason,
            loss.at_s,
            time.time(),
            is_asked=asked is not None,
            copy_from=asked.copy_from if asked else None,
            init=asked.init if asked else True,
        )
        self._backlog.add(replaced)
        self._tell(replaced)
        return ""

    async def _end(self, rank: int) -> bool:
        """Free the ranks that wait for a rank, and end it."""
        self._membership.lose(rank, RESTARTED)
        self._tell(RankLost(rank, self._host.layout.name_of(rank), RESTARTED, "", will_return=True))
        self._ending.add(rank)
        try:
            self._cut_off.update(await self._rank_ending.end((rank,)))
            is_over = await self._host.kill(rank, KILL_S)
        finally:
            self._ending.discard(rank)
        if is_over:
            self._host.take(GiveBack(rank))
        return is_over

    async def _start(self, rank: int) -> str:
        self._engines[rank] = str(uuid.uuid4())
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._starting[rank] = ready
        try:
            self._host.take(Spawn(rank))
            return await asyncio.wait_for(ready, START_S)
        except asyncio.TimeoutError:
            await self._host.kill(rank, KILL_S)
            return f"did not take cells within {START_S:g} s of its start"
        finally:
            del self._starting[rank]

    async def settled(self, ranks: Collection[int], timeout_s: float) -> None:
        """Wait until none of these ranks is being replaced (or the timeout)."""
        waits = [self._under_way[rank] for rank in ranks if rank in self._under_way]
        if waits:  # not cancelled after the timeout: the cell runs without these ranks, and says so
            await asyncio.wait(waits, timeout=timeout_s)

    def on_ready(self, rank: int) -> bool:
        """Record that a rank takes cells; False if no restart awaits it."""
        ready = self._starting.get(rank)
        if ready is None:
            return False
        if not ready.done():
            ready.set_result("")
        return True

    def on_lost(self, rank: int, reason: str, tail: str) -> bool:
        """Record a process's end; False if no restart caused it."""
        if rank in self._ending:
            return True
        ready = self._starting.get(rank)
        if ready is None:
            return False
        if not ready.done():
            is_start = "could not be started" in reason
            ready.set_result(reason if is_start else f"{reason} while starting\n{tail}".rstrip())
        return True
