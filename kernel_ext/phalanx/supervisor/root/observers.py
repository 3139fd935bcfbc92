"""Watch running ranks for stalls and deadlocks, and report where ranks are.

`StallWatcher` and `DeadlockWatch` poll the ranks' activity pages. `RankInspector` turns activities
and stack dumps into text. `Samplers` samples all ranks while a client watches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from phalanx.distributed.summaries import ClockInfo, Lateness, StragglerReport
from phalanx.protocol import (
    SHOWS_ERROR,
    RankSample,
    RankStack,
    Samples,
    Waiting,
    name_ranks,
)
from phalanx.protocol.host import HostAnswer, HostSamples, SampleRanks, WatchRanks

from ..health.deadlock import Deadlock, DeadlockSearch, find_deadlock
from ..health.impossible_waits import WORLD, ImpossibleWait, ImpossibleWaitSearch
from ..health.slow_operations import LongWait, SlowOperationDetector, waits_now
from ..health.stacks import parse_dump, place_of
from ..hosts.host_set import HostSet
from ..tasks import LogOnceOnError
from ..world.state import WorldState

if TYPE_CHECKING:
    from ..hosts.local_host import LocalHost
    from ..hosts.remote_host import RemoteHost
    from .clients import Client

LOOK_EVERY_S = 0.05  # one poll reads two cache lines per rank; only while a cell is partly over

DEADLOCK_LOOK_S = 0.25  # this, the following checks and SEND_S end a deadlock within 2 s
LOOK_AGAIN_S = 0.06  # after a suspicious check: waiting ranks update their activity every 50 ms
# On one machine a full socket buffer drains at once, or at the kernel's second probe (after 0.2 s
# and another 0.4 s).
SEND_S = 1.0

BETWEEN_CELLS = "between cells"
SLOW_LOOK_S = 1.0  # one poll reads two cache lines per rank
SECOND_LOOK_S = 0.2  # delay after the first stack dump: running Python code has moved on by then
MAX_LOOKS = 32  # most missing ranks to inspect for one line of text


# One sample of two ranks with 550 operations each takes 0.8 ms of a core, sending included. The
# ranks keep both cores busy, so little of the needed data is cached (with numpy it took 3.1 ms).
# At this interval that is 0.4 % of a core here and 0.3 % in the watching client, in processor time.
INTERVAL_S = 1 / 3
FAR_S = 0.1  # how long to wait for other hosts; a later answer goes into the next sample
LEASE_S = 10.0  # a client must renew its request to watch at least this often


class StallWatcher:
    """Call ``on_impossible_wait`` once an operation can never complete.

    ``running`` returns the ranks that run user code, ``gone`` those that join no operation of them.
    """

    def __init__(
        self,
        world: WorldState,
        host: HostSet,
        running: Callable[[], Collection[int]],
        gone: Callable[[], Collection[int]],
        on_impossible_wait: Callable[[ImpossibleWait], None],
    ) -> None:
        self._world = world
        self._host = host
        self._running = running
        self._gone = gone
        self._on_impossible_wait = on_impossible_wait
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._search = ImpossibleWaitSearch()
        self._errors = LogOnceOnError("a look for operations that nobody can complete")

    def look(self) -> None:
        """Check now, and again while ranks run and ranks are gone."""
        self.stop()
        # A rank that waits in px.recover() joins no operation until all others wait there too.
        asking = self._world.asking
        running, gone = set(self._running()) - asking, set(self._gone()) | asking
        if not running or not gone:
            return
        self._timer = self._loop.call_later(LOOK_EVERY_S, self.look)
        self._host.take(WatchRanks(is_on=True))  # the activity of ranks on other hosts matters now
        with self._errors.look():
            found = self._search.look(
                {rank: self._host.activity(rank) for rank in running | gone},
                now_s=self._loop.time(),
                epoch=self._world.epoch,
                running=running,
                gone=gone,
                splits=self._world.splits,
                ended=self._world.dead.keys(),
            )
            if found is not None:
                self._on_impossible_wait(found)

    def stop(self) -> None:
        """Stop checking until the next `look`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DeadlockWatch:
    """Call ``on_deadlock`` once ranks wait for each other.

    Parameters
    ----------
    heartbeat_timeout_s : float
        How long a network between hosts may fail while a large message may be in transit.
    """

    def __init__(
        self,
        world: WorldState,
        host: HostSet,
        heartbeat_timeout_s: float,
        on_deadlock: Callable[[Deadlock], None],
    ) -> None:
        self._world = world
        self._host = host
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._on_deadlock = on_deadlock

    async def run(self, running: Callable[[], Collection[int]]) -> None:
        """Check until cancelled; ``running`` returns the ranks that run user code."""
        errors = LogOnceOnError("a look for ranks that wait for each other")
        while True:
            await asyncio.sleep(DEADLOCK_LOOK_S)
            with errors.look():
                await self._look(running)

    async def _look(self, running: Callable[[], Collection[int]]) -> None:
        """Check once, and repeat while the ranks look deadlocked."""
        if sum(self._host.activity(rank).wait is not None for rank in running()) < 2:
            return
        is_one_host = len(self._host.layout.names) == 1
        search = DeadlockSearch(
            SEND_S if is_one_host else max(SEND_S, self._heartbeat_timeout_s - SEND_S)
        )
        now_s = asyncio.get_running_loop().time
        while chosen := set(running()) - self._world.asking:
            alive = set(self._host.ranks) - self._world.dead.keys()
            found = search.look(
                {rank: self._host.activity(rank) for rank in sorted(alive)},
                now_s=now_s(),
                epoch=self._world.epoch,
                running=chosen,
                splits=self._world.splits,
            )
            if found is not None:
                self._on_deadlock(found)
            if found is not None or not search.is_suspicious:
                return
            await asyncio.sleep(LOOK_AGAIN_S)
            if not await self._host.refresh():
                return  # the data of another host may be out of date


class RankInspector:
    """Inspect the ranks from outside, without waiting for their Python.

    Parameters
    ----------
    slow_operation_s : float
        How long an operation may last before it is reported.
    cwd : str
        Working directory in which the ranks were started; file names are shown relative to it.
    tell : callable
        Receives each line of text for the clients.
    """

    def __init__(
        self,
        host: HostSet,
        world: WorldState,
        *,
        slow_operation_s: float,
        cwd: str,
        tell: Callable[[str], None],
    ) -> None:
        self._host = host
        self._world = world
        self._slow_operation_s = slow_operation_s
        self._cwd = cwd
        self._tell = tell
        self._slow_operations = SlowOperationDetector(slow_operation_s)
        self._reported: frozenset[object] = frozenset()  # waits of the last deadlock

    async def stacks(self, ranks: Iterable[int], *, is_twice: bool = False) -> dict[int, RankStack]:
        """Return the stacks of those ``ranks`` that exist.

        With ``is_twice`` a second dump shows which ranks stay where they are (``is_still``).
        """
        chosen = tuple(set(ranks).intersection(self._host.ranks))
        first = await self._look(chosen)
        if not is_twice:
            return first
        await asyncio.sleep(SECOND_LOOK_S)
        second = await self._look(chosen)
        return {
            rank: msgspec.structs.replace(
                now, is_still=now == first[rank] and now.doing != SHOWS_ERROR
            )
            for rank, now in second.items()
        }

    async def _look(self, ranks: tuple[int, ...]) -> dict[int, RankStack]:
        # All at once: each rank that does not answer costs 0.5 s.
        found = await asyncio.gather(*(self._stack(rank) for rank in ranks))
        return dict(zip(ranks, found, strict=True))

    async def _stack(self, rank: int) -> RankStack:
        if rank in self._world.dead and self._host.statuses[rank] is not None:
            return RankStack(note=f"dead: {self._world.dead[rank]}")
        looked = await self._host.look(rank)
        dump = looked.dump
        if looked.is_stopped:
            return RankStack(note="stopped (frozen)", is_silent=True)
        doing = self._host.activity(rank).doing
        if dump is None:
            return RankStack(doing, note="in a program that has not called px.init()")
        if not dump:
            return RankStack(doing, note="without an answer from its Python", is_silent=True)
        place = place_of(parse_dump(dump), self._cwd)
        if place.is_showing:
            return RankStack(SHOWS_ERROR)
        if place.is_asking:
            doing = "waiting for input"
        if place.text:
            return RankStack(doing, place.text, place.frames)
        is_idle = self._world.has_cells and self._world.state(rank) == "idle"
        return RankStack(doing, note=BETWEEN_CELLS if is_idle else "in no code of yours")

    async def watch(self, ranks: Callable[[], Collection[int]]) -> None:
        """Report each slow operation while there are ``ranks`` to check."""
        errors = LogOnceOnError("a look for long operations")
        while True:
            await asyncio.sleep(min(SLOW_LOOK_S, self._slow_operation_s / 4))
            with errors.look():
                await self._tell_of_waits(ranks())

    async def _tell_of_waits(self, ranks: Collection[int]) -> None:
        if not ranks:
            return
        await self._host.refresh()  # the data of other hosts may be out of date
        activities = {rank: self._host.activity(rank) for rank in ranks}
        epoch, splits = self._world.epoch, self._world.splits
        waits = self._slow_operations.look(
            activities, epoch=epoch, splits=splits, now_s=asyncio.get_running_loop().time()
        )
        for wait in waits:
            self._tell(await self._line(wait))
        if not waits:
            return
        found = find_deadlock(
            activities, epoch=epoch, running=ranks, splits=splits, with_threads=True
        )
        if found is not None and found.acting and found.waits != self._reported:
            self._reported = found.waits
            others = f"{name_ranks(found.acting)} may go on in another thread"
            self._tell(f"{found}; nothing is raised, as {others}")

    async def _line(self, wait: LongWait) -> str:
        verb = "has" if len(wait.waiting) == 1 else "have"
        who = f"{name_ranks(wait.waiting)} {verb}"
        if not wait.missing:
            return f"{who} been in {wait.what} for {self._slow_operation_s:g} s; nobody is missing"
        stacks = await self.stacks(wait.missing[:MAX_LOOKS])
        parts: dict[str, list[int]] = {}
        for rank in wait.missing:
            words = [stacks[rank].summary] if rank in stacks else []
            words += [wait.last[rank]] if rank in wait.last else []
            parts.setdefault(", ".join(words), []).append(rank)
        missing = "; ".join(f"{name_ranks(ranks)}, {words}" for words, ranks in parts.items())
        return f"{who} waited {self._slow_operation_s:g} s in {wait.what}; missing: {missing}"


class Samplers:
    """Send samples of all ranks to the clients that watch.

    `run` is the sampling task; it runs while at least one client watches.

    Parameters
    ----------
    hosts : HostSet
        The hosts to ask for samples.
    send : callable
        Sends samples to a client.
    """

    def __init__(
        self,
        world: WorldState,
        hosts: HostSet,
        send: Callable[[Client, Samples], None],
    ) -> None:
        self._world = world
        self._hosts = hosts
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._until_s: dict[Client, float] = {}  # client -> when its lease ends
        self._asked: dict[LocalHost | RemoteHost, asyncio.Task[HostAnswer | None]] = {}
        self._seen: dict[int, RankSample] = {}  # the newest of each rank
        self._lateness = Lateness()
        self._up: list[bool] | None = None
        self._number = 0
        self._is_running = False

    def watch(self, client: Client, seconds: float) -> bool:
        """Start, renew or end a client's lease; True: `run` must be started."""
        if seconds <= 0:
            self._until_s.pop(client, None)
            return False
        self._until_s[client] = self._loop.time() + min(seconds, LEASE_S)
        is_first, self._is_running = not self._is_running, True
        return is_first

    async def run(self) -> None:
        """Sample until no client watches any more."""
        errors = LogOnceOnError("a sample of the ranks")
        try:
            while self._watching():
                begun_s = self._loop.time()
                await self._ask()
                with errors.look():
                    samples = self.take()
                    for client in self._until_s:
                        self._send(client, samples)
                # A slow sample (of very many ranks) must not take all of a supervisor's time.
                took_s = self._loop.time() - begun_s
                await asyncio.sleep(max(INTERVAL_S - took_s, 4 * took_s))
        finally:
            self._is_running = False
            for asked in self._asked.values():
                asked.cancel()
            self._asked.clear()

    def _watching(self) -> bool:
        now_s = self._loop.time()
        self._until_s = {who: until_s for who, until_s in self._until_s.items() if until_s > now_s}
        return bool(self._until_s)

    async def _ask(self) -> None:
        """Ask each host that has answered before, and wait up to `FAR_S`."""
        new = {
            host: self._loop.create_task(host.answer(SampleRanks()))
            for host in self._hosts.every
            if host not in self._asked
        }
        self._asked.update(new)
        if new:
            await asyncio.wait(new.values(), timeout=FAR_S)

    def take(self) -> Samples:
        """Take the answers that have come as one sample of all ranks."""
        self._number += 1
        now_ns = time.monotonic_ns()
        clocks = {host: host.clock() for host in self._hosts.every}
        up = {rank for host, clock in clocks.items() if clock is not None for rank in host.ranks}
        seen = {rank: _again(its, rank in up) for rank, its in self._seen.items()}
        for host in [host for host, asked in self._asked.items() if asked.done()]:
            answer = self._asked.pop(host).result()
            if isinstance(answer, HostSamples):
                seen.update((its.rank, its) for its in answer.ranks)
        self._seen = seen
        compared = self._compare(clocks, now_ns)
        return Samples(
            number=self._number,
            now_ns=now_ns,
            time=time.time(),
            epoch=self._world.epoch,
            ranks=tuple(self._with_state(rank) for rank in range(self._world.size)),
            cells=self._world.cells.recent(),
            compared=compared.n_compared,
            late=compared.late,
            waits=self._waits(now_ns),
            unsure=compared.n_unsure,
            unsure_ns=compared.unsure_ns,
        )

    def _compare(
        self, clocks: Mapping[LocalHost | RemoteHost, tuple[int, int] | None], now_ns: int
    ) -> StragglerReport:
        up = [clock is not None for clock in clocks.values()]
        if self._up not in (None, up):  # the last operations of a lost host's ranks are unknown
            self._lateness.restart(now_ns)
        self._up = up
        # Hosts are not read at the same moment: short recorders may have overwritten some entries.
        members = {number: len(ranks) for number, ranks in self._world.splits.items()}
        return self._lateness.take(
            {rank: its.entries for rank, its in self._seen.items()},
            now_ns,
            clocks={
                rank: ClockInfo(number, clock[1])
                for number, (host, clock) in enumerate(clocks.items())
                if clock is not None
                for rank in host.ranks
            },
            members={**members, WORLD: self._world.size},
            is_whole=not self._asked,
        )

    def _with_state(self, rank: int) -> RankSample:
        world, its = self._world, self._seen.get(rank)
        detail = "" if its is not None else "its host sends no samples yet"
        return msgspec.structs.replace(
            its or RankSample(rank, 0, "starting", "", 0, 0, 0, 0),
            state=world.state(rank) if world.ranks.is_ready(rank) else "starting",
            detail=world.dead.get(rank) or detail,
            entries=b"",
        )

    def _waits(self, now_ns: int) -> tuple[Waiting, ...]:
        activities = {
            rank: self._hosts.activity(rank)
            for rank in range(self._world.size)
            if rank not in self._world.dead
        }
        waits = []
        for wait in waits_now(activities, epoch=self._world.epoch, splits=self._world.splits):
            runs = [
                span
                for rank in wait.waiting
                if rank in self._seen
                for span in self._seen[rank].spans
                if not span.done_ns
            ]
            own = [span for span in runs if wait.what == f"{span.op} #{span.seq}"]
            since_ns = min((span.begun_ns for span in own or runs), default=now_ns)
            waits.append(Waiting(wait.waiting, wait.missing, wait.what, since_ns))
        return tuple(waits)


def _again(its: RankSample, is_up: bool) -> RankSample:
    """Return a rank's last sample, to be sent again.

    Ended spans are reported once, running spans in each sample while the host is up.
    """
    spans = tuple(span for span in its.spans if is_up and not span.done_ns)
    return msgspec.structs.replace(its, spans=spans, missed=0, entries=b"", uses=())
