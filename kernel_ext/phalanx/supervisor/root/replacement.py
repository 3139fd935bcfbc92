"""End ranks in order, and start new processes for them.

The rank keeps its number, host and slot; only its engine is new. The new process joins the group
when the next epoch begins. The workspace brings the new rank to the state of the others.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from phalanx.protocol import (
    AddStartupCell,
    EndRank,
    Failed,
    FromRoot,
    Notice,
    RankLost,
    RankStack,
    Replaced,
    ReplacementsReady,
    Restart,
    Restarted,
    name_ranks,
    say_killed,
    say_killed_at_once,
)
from phalanx.protocol.host import GiveBack, SignalRank, Spawn

from ..hosts.host_set import HostSet
from ..tasks import TaskSet
from ..world.membership import MembershipCoordinator
from ..world.state import RESTARTED, WorldState
from .inspector import BETWEEN_CELLS, RankInspector

KILL_S = 5.0  # a process that the kernel blocks for longer (dead file server) cannot be killed
START_S = 60.0  # the same limit as for the first ranks of a workspace

LOOK_S = 1.0  # of the grace: two looks at ranks in C code take 0.2 s and up to 0.6 s each
AT_ONCE = RankStack(note="at the second stop")  # of a rank that `RankEnding.hurry` has killed


class RankEnding:
    """End ranks at a stop or a restart, within ``grace_s``."""

    def __init__(self, host: HostSet, inspector: RankInspector, grace_s: float) -> None:
        self._host = host
        self._inspector = inspector
        self._grace_s = grace_s
        self._hurried: set[tuple[int, int]] = set()  # rank and process that `hurry` has killed

    def hurry(self, ranks: Collection[int]) -> None:
        """Kill ranks that are being ended: a second request came.

        It may come before `end` has begun.
        """
        for rank in self._alive(ranks):
            self._hurried.add((rank, self._host.report(rank).pid))
            self._host.take(SignalRank(rank, signal.SIGKILL))

    async def end(self, ranks: Collection[int]) -> dict[int, RankStack]:
        """Let ranks end; return those that were killed, with their places."""
        pids = {rank: self._host.report(rank).pid for rank in self._alive(ranks)}
        for rank in pids:
            self._host.send(rank, EndRank())
        look_s = min(LOOK_S, self._grace_s / 2)
        found: dict[int, RankStack] = {}
        if late := await self._host.wait_ended(pids, self._grace_s - look_s):
            seeing = asyncio.ensure_future(self._inspector.stacks(late, is_twice=True))
            try:
                late = await self._host.wait_ended(late, look_s)
                found = seeing.result() if seeing.done() else {}
            finally:
                seeing.cancel()
        for rank in late:
            self._host.take(SignalRank(rank, signal.SIGKILL))
        killed = {rank: _at_end(found.get(rank)) for rank in late}
        return {**killed, **{r: AT_ONCE for r, pid in pids.items() if (r, pid) in self._hurried}}

    def say(self, killed: dict[int, RankStack]) -> str:
        """Name in one line the ranks that `end` has killed."""
        if AT_ONCE in killed.values():
            return say_killed_at_once(killed)
        return say_killed(killed, self._grace_s) if killed else ""

    def _alive(self, ranks: Collection[int]) -> list[int]:
        return [rank for rank in sorted(ranks) if self._host.statuses[rank] is None]


def _at_end(stack: RankStack | None) -> RankStack:
    """Return where a rank is that was asked to end."""
    if stack is None:  # the look takes longer than the grace
        return RankStack(note="at an unknown place")
    return RankStack(note="in atexit") if stack.summary == BETWEEN_CELLS else stack


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


@dataclass
class _Replacement:
    """One replacement under way.

    ``request`` is the first client's request for it; None: nobody has asked. ``task`` ends with the
    reason why the rank takes no cells, or "". ``ready`` is there while the new process starts: it
    gets "" once that takes cells, else why it does not. ``killed`` is where the old process was, if
    it was killed after the grace time.
    """

    request: Restart | None
    task: asyncio.Task[str] = field(init=False)
    is_ending: bool = False
    killed: RankStack | None = None
    ready: asyncio.Future[str] | None = None


class Restarts:
    """Restart ranks, several at a time, and report each result.

    ``engines`` are the engines' uuids by rank; those of new engines are stored there.
    """

    def __init__(
        self,
        world: WorldState,
        membership: MembershipCoordinator,
        host: HostSet,
        engines: list[str],
        rank_ending: RankEnding,
        backlog: ReplacementBacklog,
        tasks: TaskSet,
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
        self._spawn = tasks.spawn
        self.deaths = Deaths()
        self._under_way: dict[int, _Replacement] = {}  # by rank

    async def restart(self, request: Restart) -> Restarted | Failed:
        """Replace ranks; return when each of them takes cells or has failed."""
        dead, under_way = self._world.dead, self._under_way
        ranks = tuple(sorted(set(request.ranks) or {*dead, *under_way}))
        refusal = refusal_of(ranks, self._world.size, dead, under_way, force=request.force)
        if refusal:
            return Failed(refusal)
        self.deaths.forget(ranks)
        joined = tuple(rank for rank in ranks if rank in under_way)
        if request.force:  # again: the first request gives the ranks time to end
            self._rank_ending.hurry([rank for rank in joined if under_way[rank].is_ending])
        its = {rank: self.begin(rank, request) for rank in ranks}
        # Shielded: several requests may wait for one restart, and none of them must cancel it.
        waits = [asyncio.shield(one.task) for one in its.values()]
        problems = dict(zip(ranks, await asyncio.gather(*waits), strict=True))
        failed = {rank: problem for rank, problem in problems.items() if problem}
        new = tuple(rank for rank in ranks if rank not in failed)
        killed: dict[int, RankStack] = {}
        for rank, one in its.items():  # reported to the first that has waited
            if one.killed is not None:
                killed[rank], one.killed = one.killed, None
        return Restarted(new, failed, joined, self._rank_ending.say(killed))

    def begin(self, rank: int, request: Restart | None = None) -> _Replacement:
        """Replace a rank, unless that is under way."""
        its = self._under_way.get(rank)
        if its is None:
            its = self._under_way[rank] = _Replacement(request)
            its.task = self._spawn(self._run(rank, its))
        its.request = its.request or request
        return its

    async def _run(self, rank: int, its: _Replacement) -> str:
        try:
            problem = await self._replace(rank, its)
        finally:
            del self._under_way[rank]
        if problem and its.request is None:
            self._tell(Notice(f"rank {rank} could not be replaced: {problem}"))
        return problem

    async def _replace(self, rank: int, its: _Replacement) -> str:
        world = self._world
        if self._host.statuses[rank] is None and not await self._end(rank, its):
            world.mark_not_replaced(rank, "does not end")
            pid = self._host.report(rank).pid
            return f"its process {pid} could not be ended within {KILL_S:g} s"
        world.mark_replacing(rank)
        problem = await self._start(rank, its)
        if not problem and self._host.statuses[rank] is not None:
            problem = "ended right after its start"
        if problem:
            world.mark_not_replaced(rank, problem)
            return problem
        loss, asked = world.loss(rank), its.request
        world.revive(rank)
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

    async def _end(self, rank: int, its: _Replacement) -> bool:
        """Free the ranks that wait for a rank, and end it."""
        self._membership.lose(rank, RESTARTED)
        self._tell(RankLost(rank, self._host.layout.name_of(rank), RESTARTED, will_return=True))
        its.is_ending = True
        try:
            its.killed = (await self._rank_ending.end((rank,))).get(rank)
            is_over = await self._host.kill(rank, KILL_S)
        finally:
            its.is_ending = False
        if is_over:
            self._host.take(GiveBack(rank))
        return is_over

    async def _start(self, rank: int, its: _Replacement) -> str:
        if problem := await self._host.boot_again(rank):
            return f"its host could not be started: {problem}"
        self._engines[rank] = str(uuid.uuid4())
        its.ready = asyncio.get_running_loop().create_future()
        try:
            self._host.take(Spawn(rank))
            return await asyncio.wait_for(its.ready, START_S)
        except asyncio.TimeoutError:
            await self._host.kill(rank, KILL_S)
            return f"did not take cells within {START_S:g} s of its start"
        finally:
            its.ready = None

    async def settled(self, ranks: Collection[int], timeout_s: float) -> None:
        """Wait until none of these ranks is being replaced (or the timeout)."""
        waits = [self._under_way[rank].task for rank in ranks if rank in self._under_way]
        if waits:  # not cancelled after the timeout: the cell runs without these ranks, and says so
            await asyncio.wait(waits, timeout=timeout_s)

    def on_ready(self, rank: int) -> bool:
        """Record that a rank takes cells; False if no restart awaits it."""
        return self._on_started(rank, "")

    def on_lost(self, rank: int, reason: str, tail: str) -> bool:
        """Record a process's end; False if no restart caused it."""
        its = self._under_way.get(rank)
        is_start = "could not be started" in reason
        why = reason if is_start else f"{reason} while starting\n{tail}".rstrip()
        return (its is not None and its.is_ending) or self._on_started(rank, why)

    def _on_started(self, rank: int, problem: str) -> bool:
        its = self._under_way.get(rank)
        if its is None or its.ready is None:
            return False
        if not its.ready.done():
            its.ready.set_result(problem)
        return True
