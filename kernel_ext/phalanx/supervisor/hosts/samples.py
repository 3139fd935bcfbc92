"""Sample the ranks of a host; check other hosts' samples and clocks.

`SampleReader` reads the ranks' shared page, so it works while ranks are busy, frozen or dead.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from phalanx.distributed.summaries import ENTRY, LAST_NS, TraceSummarizer, new_spans
from phalanx.protocol import MOST_SPANS, RankSample
from phalanx.protocol.host import HostSamples

from ..tasks import LogOnceOnError

if TYPE_CHECKING:
    from .local_host import LocalHost
    from .local_rank import LocalRank


# After a longer time nobody has watched: operations overwritten meanwhile do not count as missed.
PAUSE_NS = 2_000_000_000


class SampleReader:
    """Read samples of one host's ranks from their page.

    The root adds each rank's state.
    """

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self._spans = {rank: TraceSummarizer() for rank in host.ranks}
        # by rank: process id, and number of completed operations
        self._seen: dict[int, tuple[int, int]] = {}
        self._read_ns = -PAUSE_NS
        self._errors = LogOnceOnError("a sample of the ranks")

    def read(self) -> HostSamples:
        """Sample every rank; return nothing if that fails."""
        before_ns, self._read_ns = self._read_ns, time.monotonic_ns()
        is_watched = self._read_ns < before_ns + PAUSE_NS
        samples: tuple[RankSample, ...] = ()
        with self._errors.look():
            samples = tuple(
                self._read(self._host.report(rank), is_watched) for rank in self._host.ranks
            )
        return HostSamples(samples)

    def _is_news(self, its: LocalRank) -> bool:
        """Whether a rank's flight recorder has changed since the last sample.

        Reading the recorder is most of a sample's cost. An operation that begins and fails between
        two samples is seen with the next operation.
        """
        now = its.pid, its.counters()[0]
        if self._spans[its.rank].has_open or self._seen.get(its.rank) != now:
            return True
        return any(True for _ in its.activity.operations())

    def _read(self, its: LocalRank, is_watched: bool) -> RankSample:
        rank, pid = its.rank, its.pid
        # Read the records before the counters: an operation that ends in between is then counted
        # twice, for one sample only.
        packed, _ = its.trace(self._spans[rank].since) if self._is_news(its) else (b"", 0)
        now_ns = time.monotonic_ns()
        operations, arena_nbytes, inside_ns, waiting_ns, wires = its.counters()
        found = new_spans(self._spans[rank], packed)
        self._seen[rank] = pid, operations
        for span in found.spans:
            if not span.done_ns:
                ran_ns = max(0, now_ns - span.begun_ns)
                inside_ns += ran_ns
                waiting_ns += ran_ns if span.wait_ns < 0 else span.wait_ns
        left_out = sum(span.count for span in found.spans[MOST_SPANS:])
        return RankSample(
            rank,
            pid,
            "starting",
            "",
            operations,
            arena_nbytes,
            min(inside_ns, LAST_NS),
            min(waiting_ns, LAST_NS),
            wires,
            found.spans[:MOST_SPANS],
            found.missed + left_out if is_watched else 0,
            found.entries,
        )


class ClockOffset:
    """Estimate another machine's clock offset from the fastest round trips.

    An answer holds the other clock's time at some moment of its round trip. So the error is at
    most half the round trip. Clocks drift apart (100 ppm is a high value), so the error bound of
    an answer grows with the answer's age.

    Examples
    --------
    >>> offset = ClockOffset()
    >>> offset.learn(sent_ns=1_000, came_ns=1_200, theirs_ns=501_100)
    >>> offset.at(1_200)
    (-500000, 100)
    """

    DRIFT = 1e-4

    def __init__(self) -> None:
        self._best: tuple[int, int, int] | None = None  # offset, error bound, time (ns)

    def learn(self, *, sent_ns: int, came_ns: int, theirs_ns: int) -> None:
        """Take one answer: time of request, of arrival, and the other's time."""
        half = (came_ns - sent_ns) // 2
        if half < 0:  # the other side gave a time of request that has not come yet
            return
        offset = sent_ns + half - theirs_ns
        known = self.at(came_ns)
        if known is None or half <= known[1]:
            self._best = offset, half, came_ns

    def at(self, now_ns: int) -> tuple[int, int] | None:
        """Return the offset of the other clock and its error bound (ns).

        The offset is added to the other clock's time to get local time. None: no answer has come.
        """
        if self._best is None:
            return None
        offset, uncertainty, when = self._best
        return offset, uncertainty + int((now_ns - when) * self.DRIFT)


def is_sound(samples: HostSamples, ranks: Collection[int], size: int) -> bool:
    """Whether samples are of the host's ``ranks`` and can be read."""
    seen = [its.rank for its in samples.ranks]
    return (
        len(set(seen)) == len(seen)
        and set(seen) <= set(ranks)
        and not any(len(its.entries) % ENTRY.size for its in samples.ranks)
        and all(peer < size for its in samples.ranks for peer in its.wires)
    )


def in_root_time(its: RankSample, offset_ns: int) -> RankSample:
    """Return a remote host's sample with times of the root's clock."""

    def moved(ns: int) -> int:
        return min(max(1, ns + offset_ns), LAST_NS) if ns else 0  # 0: no time

    entries = array("Q", its.entries)
    for place in (2, 3):  # when the rank entered, and when it ended
        entries[place::4] = array("Q", map(moved, entries[place::4]))
    return msgspec.structs.replace(
        its,
        spans=tuple(
            msgspec.structs.replace(
                span, begun_ns=moved(span.begun_ns), done_ns=moved(span.done_ns)
            )
            for span in its.spans
        ),
        entries=entries.tobytes(),
    )
