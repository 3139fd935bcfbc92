"""Samples of all ranks for those who watch, four times a second, and nothing for nobody.

It reads the page that ranks and supervisors share, so it needs nothing of the ranks: they may be
busy, frozen or dead. What a sample looks like on a screen it does not know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from phalanx.distributed import Lateness, SpanReader
from phalanx.protocol import RankSample, Samples, Span, Waiting

from ._cell_times import CellTimes
from ._hopeless import Activity
from ._host import HostSupervisor
from ._quiet import waits_now
from ._steady import Steady
from ._world import World

__all__ = ["RankReader", "Samplers"]

# A look costs the supervisor some 0.5 ms for each rank that has done much (the flight recorder is
# read as a whole): so often, 4 busy ranks on 2 cores lose less than a hundredth to it.
INTERVAL_S = 0.25
LEASE_S = 10.0  # the longest that who watches need not say so again


class RankReader:
    """Samples of the ranks of one host, from their page; state and words are the root's to add."""

    def __init__(self, host: HostSupervisor) -> None:
        self._host = host
        self._spans = {rank: SpanReader() for rank in host.ranks}
        self._seen: dict[int, tuple[int, int]] = {}  # process, and operations completed

    def _is_news(self, rank: int, slot: int, pid: int) -> bool:
        """Whether a rank's recorder has changed: reading it costs most of a look.

        An operation that begins and fails between two looks is seen with the next that is there.
        """
        if self._spans[rank].has_open or self._seen.get(rank) != (
            pid,
            self._host.memory.counters(slot)[0],
        ):
            return True
        activity = self._host.memory.activity(slot)
        return bool(activity.pair[1]) or any(its.op for its in activity.groups.values())

    def read(self) -> tuple[RankSample, ...]:
        """Look at every rank."""
        return tuple(self._read(rank, slot) for slot, rank in enumerate(self._host.ranks))

    def _read(self, rank: int, slot: int) -> RankSample:
        memory, pid = self._host.memory, self._host.pid(rank)
        # First the records: what is over between these two is counted twice for one sample.
        is_news = self._is_news(rank, slot, pid)
        packed, _ = memory.trace(slot) if is_news else (b"", 0)
        now_ns = time.monotonic_ns()
        operations, arena_nbytes, inside_ns, waiting_ns, wires = memory.counters(slot)
        spans, missed, entries = self._spans[rank].read(packed)
        self._seen[rank] = pid, operations
        for span in spans:
            if not span.done_ns:
                inside_ns += now_ns - span.begun_ns
                waiting_ns += now_ns - span.begun_ns if span.wait_ns < 0 else span.wait_ns
        return RankSample(
            rank,
            pid,
            "starting",
            "",
            operations,
            arena_nbytes,
            inside_ns,
            waiting_ns,
            wires,
            spans,
            missed,
            entries,
        )


class Samplers:
    """Sends samples to the clients that watch; `run` is its task while there are any.

    Parameters
    ----------
    readers : sequence of RankReader
        Of the hosts whose pages are seen from here; ranks of others are only named.
    activity : callable
        What a rank is in.
    is_ready : callable
        Whether a rank has started.
    send : callable
        Sends to a client.
    """

    def __init__(
        self,
        world: World,
        cells: CellTimes,
        readers: Sequence[RankReader],
        *,
        activity: Callable[[int], Activity],
        is_ready: Callable[[int], bool],
        send: Callable[[bytes, Samples], None],
    ) -> None:
        self._world = world
        self._cells = cells
        self._readers = tuple(readers)
        self._activity = activity
        self._is_ready = is_ready
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._until_s: dict[bytes, float] = {}  # client -> when its lease ends
        self._lateness = Lateness()
        self._number = 0
        self._is_running = False

    def watch(self, identity: bytes, seconds: float) -> bool:
        """Take a client's wish; True: `run` is needed from now on."""
        if seconds <= 0:
            self._until_s.pop(identity, None)
            return False
        self._until_s[identity] = self._loop.time() + min(seconds, LEASE_S)
        is_first, self._is_running = not self._is_running, True
        return is_first

    async def run(self) -> None:
        """Sample until nobody watches any more."""
        steady = Steady("a sample of the ranks")
        try:
            while self._watching():
                begun_s = self._loop.time()
                with steady.look():
                    samples = self.take()
                    for identity in self._until_s:
                        self._send(identity, samples)
                # A look that takes long, of very many ranks, must not become all there is to do.
                took_s = self._loop.time() - begun_s
                await asyncio.sleep(max(INTERVAL_S - took_s, 4 * took_s))
        finally:
            self._is_running = False

    def _watching(self) -> bool:
        now_s = self._loop.time()
        self._until_s = {who: until_s for who, until_s in self._until_s.items() if until_s > now_s}
        return bool(self._until_s)

    def take(self) -> Samples:
        """Look at all ranks once."""
        self._number += 1
        now_ns = time.monotonic_ns()
        seen = {its.rank: its for reader in self._readers for its in reader.read()}
        entries = {rank: its.entries for rank, its in seen.items()}
        compared, late = self._lateness.take(entries, now_ns)
        every = (seen.get(rank) or _unseen(rank) for rank in range(self._world.size))
        return Samples(
            number=self._number,
            now_ns=now_ns,
            time=time.time(),
            epoch=self._world.epoch,
            ranks=tuple(self._told(its) for its in every),
            cells=self._cells.recent(),
            compared=compared,
            late=late,
            waits=self._waits({rank: its.spans for rank, its in seen.items()}, now_ns),
        )

    def _told(self, its: RankSample) -> RankSample:
        world = self._world
        state = world.state(its.rank) if self._is_ready(its.rank) else "starting"
        detail = world.dead.get(its.rank) or its.detail
        return msgspec.structs.replace(its, state=state, detail=detail, entries=b"")

    def _waits(self, spans: Mapping[int, tuple[Span, ...]], now_ns: int) -> tuple[Waiting, ...]:
        activities = {
            rank: self._activity(rank)
            for rank in range(self._world.size)
            if rank not in self._world.dead
        }
        found = waits_now(activities, epoch=self._world.epoch, splits=self._world.splits)
        told = []
        for wait in found:
            runs = [
                span for rank in wait.waiting for span in spans.get(rank, ()) if not span.done_ns
            ]
            own = [span for span in runs if wait.what == f"{span.op} #{span.seq}"]
            since_ns = min((span.begun_ns for span in own or runs), default=now_ns)
            told.append(Waiting(wait.waiting, wait.missing, wait.what, since_ns))
        return tuple(told)


def _unseen(rank: int) -> RankSample:
    return RankSample(rank, 0, "starting", "its host sends no samples yet", 0, 0, 0, 0)
