"""What the ranks of one host did since the last look, from the page that they share with it.

It needs nothing of the ranks: they may be busy, frozen or dead. Who wants to know, and how it gets
there, it does not know.
"""

from __future__ import annotations

import time

from phalanx.distributed import SpanReader
from phalanx.protocol import RankSample

from ._host import HostSupervisor

__all__ = ["RankReader"]

# Who is told takes no more (`protocol.host_samples`), and any process may have written the page.
MOST_NS = (1 << 62) - 1


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
