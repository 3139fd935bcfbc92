"""Sample the ranks of a host, local or remote.

`RankReader` reads the ranks' shared page, so it works while ranks are busy, frozen or dead.
`SampleAnswers` answers the root's requests on a remote host, and `RemoteSampler` sends the
requests. `Samplers` compares ranks and decides when to sample.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from phalanx.distributed import ENTRY, TraceSummarizer
from phalanx.protocol import RankSample
from phalanx.protocol.host import HostSample, HostSamples, SampleRanks, said_of

from ..tasks import LogOnceOnError
from .local_host import LocalHost

if TYPE_CHECKING:
    from .connection import HostConnection

# Limit for times: the receiver accepts no more (`protocol.host_samples`), and any process may have
# written the page.
MOST_NS = (1 << 62) - 1

LAST_NS = (1 << 62) - 1  # the latest time that a client accepts


class RankReader:
    """Read samples of one host's ranks from their page.

    The root adds each rank's state and its description.
    """

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self._spans = {rank: TraceSummarizer() for rank in host.ranks}
        # by rank: process id, and number of completed operations
        self._seen: dict[int, tuple[int, int]] = {}

    def _is_news(self, rank: int, slot: int, pid: int) -> bool:
        """Whether a rank's flight recorder has changed since the last sample.

        Reading the recorder is most of a sample's cost. An operation that begins and fails between
        two samples is seen with the next operation.
        """
        if self._spans[rank].has_open or self._seen.get(rank) != (
            pid,
            self._host.memory.counters(slot)[0],
        ):
            return True
        activity = self._host.memory.activity(slot)
        return bool(activity.pair[1]) or any(its.op for its in activity.groups.values())

    def read(self) -> tuple[RankSample, ...]:
        """Sample every rank."""
        return tuple(self._read(rank, slot) for slot, rank in enumerate(self._host.ranks))

    def _read(self, rank: int, slot: int) -> RankSample:
        memory, pid = self._host.memory, self._host.report(rank).pid
        # Read the records before the counters: an operation that ends in between is then counted
        # twice, for one sample only.
        is_news = self._is_news(rank, slot, pid)
        packed, _ = memory.trace(slot, self._spans[rank].since) if is_news else (b"", 0)
        now_ns = time.monotonic_ns()
        operations, arena_nbytes, inside_ns, waiting_ns, wires = memory.counters(slot)
        found = self._spans[rank].read(packed)
        self._seen[rank] = pid, operations
        for span in found.spans:
            if not span.done_ns:
                ran_ns = max(0, now_ns - span.begun_ns)
                inside_ns += ran_ns
                waiting_ns += ran_ns if span.wait_ns < 0 else span.wait_ns
        return RankSample(
            rank,
            pid,
            "starting",
            "",
            operations,
            arena_nbytes,
            min(inside_ns, MOST_NS),
            min(waiting_ns, MOST_NS),
            wires,
            *found,
        )


class SampleAnswers:
    """Answer the root's requests for samples on a remote host.

    A new sample is delayed after a slow one. ``report`` reports the ranks' operations, so that the
    wait-for graph is as new as the sample.
    """

    def __init__(
        self,
        host: LocalHost,
        report: Callable[[], None],
        say: Callable[[HostSamples], None],
    ) -> None:
        self._reader = RankReader(host)
        self._report = report
        self._say = say
        self._errors = LogOnceOnError("a sample of the ranks")
        self._loop = asyncio.get_running_loop()
        self._not_before_s = 0.0

    async def answer(self) -> None:
        """Sample all ranks and send the result."""
        await asyncio.sleep(max(0.0, self._not_before_s - self._loop.time()))
        begun_s = self._loop.time()
        found: tuple[HostSample, ...] = ()
        with self._errors.look():
            found = tuple(said_of(its) for its in self._reader.read())
            self._report()
        self._say(HostSamples(found))
        # Limit sampling to a fifth of this process's time, as the root does.
        now_s = self._loop.time()
        self._not_before_s = now_s + 4 * (now_s - begun_s)


class RemoteSampler:
    """Request samples from a remote host, at the root.

    Parameters
    ----------
    ranks : sequence of int
        Ranks of this host.
    size : int
        Number of ranks of the world.
    line : callable
        Returns the newest connection to the host; None before the first.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        size: int,
        line: Callable[[], HostConnection | None],
    ) -> None:
        self.ranks = tuple(ranks)
        self._size = size
        self._line = line
        self._is_asked = False
        self._come: HostSamples | None = None
        self._last: dict[int, RankSample] = {}
        self._n_forgiven = 0  # answers with `missed` of a time without a viewer
        self.answered = asyncio.Event()
        self.unsure_ns = 0

    def _clock(self) -> tuple[int, int] | None:
        line = self._line()
        return None if line is None else line.clock()

    @property
    def is_up(self) -> bool:
        """Whether the host can be asked."""
        return self._clock() is not None

    @property
    def is_asked(self) -> bool:
        """Whether an answer is pending."""
        return self._is_asked

    def begin(self) -> None:
        """Start to watch: ignore operations that were missed before now."""
        self._n_forgiven = 1 + (self._is_asked or self._come is not None)

    def ask(self) -> bool:
        """Request a sample, unless one is pending; return whether it was requested."""
        line = self._line()
        if self._is_asked or self._come is not None or line is None or line.clock() is None:
            return False
        self._is_asked = True
        self.answered.clear()
        line.send(SampleRanks())
        return True

    def come(self, message: HostSamples) -> str:
        """Take an answer; return what is wrong with it, or ""."""
        if not self._is_asked:
            return "answered what it was not asked"
        if len(message.ranks) > len(self.ranks) or not all(map(self._makes_sense, message.ranks)):
            return "it has said what its root cannot understand"
        self._is_asked, self._come = False, message
        self.answered.set()
        return ""

    def _makes_sense(self, its: HostSample) -> bool:
        return not len(its.entries) % ENTRY.itemsize and max(its.wires, default=0) < self._size

    def lose(self) -> None:
        """Stop waiting for an answer, and keep the last values."""
        self._is_asked, self._come = False, None
        self._last = {
            rank: msgspec.structs.replace(its, spans=(), uses=())
            for rank, its in self._last.items()
        }
        self.answered.set()

    def take(self) -> dict[int, RankSample]:
        """Return the newest samples by rank, with times in the root's clock.

        Without a new answer the last sums are returned, and ended spans are left out.
        """
        come, clock = self._come, self._clock()
        self._come = None
        if come is None or clock is None:
            return {rank: _still(its) for rank, its in self._last.items()}
        offset_ns, self.unsure_ns = clock
        self._last = {its.rank: _in_our_time(its, offset_ns) for its in come.ranks}
        if self._n_forgiven:
            self._n_forgiven -= 1
            self._last = {
                rank: msgspec.structs.replace(its, missed=0) for rank, its in self._last.items()
            }
        return self._last


def _still(its: RankSample) -> RankSample:
    """Return an old sample without the events that were already reported.

    Ended spans are reported once, running spans in each sample.
    """
    spans = tuple(span for span in its.spans if not span.done_ns)
    return msgspec.structs.replace(its, spans=spans, missed=0, entries=b"", uses=())


def _in_our_time(its: HostSample, offset_ns: int) -> RankSample:
    return RankSample(
        its.rank,
        its.pid,
        "starting",
        "",
        its.operations,
        its.arena_nbytes,
        its.inside_ns,
        its.waiting_ns,
        its.wires,
        tuple(
            msgspec.structs.replace(
                span,
                begun_ns=_moved(span.begun_ns, offset_ns),
                done_ns=_moved(span.done_ns, offset_ns),
            )
            for span in its.spans
        ),
        its.missed,
        _entries(its.entries, offset_ns),
        its.uses,
    )


def _moved(ns: int, offset_ns: int) -> int:
    """Add the clock offset to a time; keep 0 ("no time")."""
    return min(max(1, ns + offset_ns), LAST_NS) if ns else 0


def _entries(packed: bytes, offset_ns: int) -> bytes:
    entries = np.frombuffer(packed, ENTRY).copy()
    for name in ("entered", "ended"):
        times = entries[name].astype(np.int64)
        entries[name] = np.where(times > 0, np.maximum(1, times + offset_ns), 0).astype(np.uint64)
    moved: bytes = entries.tobytes()
    return moved
