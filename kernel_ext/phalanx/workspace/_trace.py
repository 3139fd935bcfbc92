"""What all ranks did last, on one clock, and as a file that Perfetto and Chrome show.

Pure but for `Trace.save`; how the records are fetched it does not know, nor how an event is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import msgspec
import numpy as np

from phalanx.distributed import RECORD, Records, records_of
from phalanx.protocol import HostClock, TraceIs, name_ranks

from ._trace_events import events_of

__all__ = ["Trace", "merged", "say_trace"]

_MERGED = np.dtype([("rank", "i4"), ("host", "i4"), *RECORD.descr])
_TIMES = ("entered_ns", "arrived_ns", "done_ns")


@dataclass(frozen=True)
class Trace:
    """The last operations of all ranks.

    Attributes
    ----------
    records : record array
        As `px.trace` gives them, with the columns ``rank`` and ``host`` (an index); in the order in
        which they were entered, all on the clock of the first host.
    hosts : tuple of HostClock
        By index: what was added to the times of each host (``offset_ns``), and by how much that may
        be wrong (``uncertainty_ns``): 0 for ranks of one machine.
    dropped : dict of int to int
        How many older operations of each rank are not in ``records`` any more.
    now_ns : int
        When it was taken, on the same clock.
    """

    records: Records
    hosts: tuple[HostClock, ...]
    dropped: dict[int, int]
    now_ns: int

    @property
    def seconds(self) -> float:
        """From the first operation's beginning until now."""
        return (self.now_ns - int(self.records.entered_ns[0])) / 1e9 if len(self.records) else 0.0

    def to_json(self) -> bytes:
        """Return it in the Trace Event format, for https://ui.perfetto.dev or chrome://tracing.

        A process per host, a thread per rank; what a rank does in other threads at the same time
        lies on further ones. Within an operation, the wait for the last rank is an event of its own.
        """
        origin = int(self.records.entered_ns[0]) if len(self.records) else self.now_ns
        other = {
            "origin_ns": origin,
            "hosts": [msgspec.to_builtins(host) for host in self.hosts],
            "dropped": {str(rank): count for rank, count in self.dropped.items()},
        }
        # Event by event: encoding all in one go would keep the interpreter from everybody else.
        events = b",".join(map(msgspec.json.encode, events_of(self, origin)))
        return b'{"traceEvents":[%b],"displayTimeUnit":"ns","otherData":%b}' % (
            events,
            msgspec.json.encode(other),
        )

    def newest(self, most: int) -> Trace:
        """Return what is left when only so many operations are kept, the last that were entered."""
        n_over = len(self.records) - most
        if n_over <= 0:
            return self
        ranks, counts = np.unique(self.records["rank"][:n_over], return_counts=True)
        over = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
        dropped = {rank: count + over.get(rank, 0) for rank, count in self.dropped.items()}
        return replace(self, records=self.records[n_over:].view(np.recarray), dropped=dropped)

    def save(self, path: str | PathLike[str]) -> None:
        """Write `to_json` to a file; `OSError` where that cannot be."""
        try:
            Path(path).write_bytes(self.to_json())
        except OSError as error:
            raise OSError(
                error.errno, error.strerror, str(path)
            ) from None  # its own frames say no more


def merged(answer: TraceIs) -> Trace:
    """Put the recorders of all ranks on one clock."""
    parts = []
    for rank, (host, packed) in enumerate(zip(answer.host, answer.records, strict=True)):
        own = records_of(packed)
        part = np.zeros(len(own), _MERGED)
        for name in RECORD.names or ():
            part[name] = own[name]
        part["rank"], part["host"] = rank, host
        for name in _TIMES:  # 0 stays 0: not known
            part[name] += np.where(part[name] != 0, answer.hosts[host].offset_ns, 0)
        parts.append(part)
    records = np.concatenate(parts)
    records = records[np.argsort(records["entered_ns"], kind="stable")]
    dropped = dict(enumerate(answer.dropped))
    return Trace(records.view(np.recarray), answer.hosts, dropped, answer.now_ns)


def say_trace(trace: Trace, path: str) -> str:
    """Say in one sentence what was written."""
    count, dropped = len(trace.records), sum(trace.dropped.values())
    if not count:
        return f"{path}: the ranks have communicated nothing yet"
    older = f" ({dropped} older ones were dropped)" if dropped else ""
    unsure_us = max(host.uncertainty_ns for host in trace.hosts) / 1000
    clock = f", clocks within {unsure_us:.0f} us" if unsure_us else ""
    return (
        f"{path}: {count} operations of {name_ranks(trace.dropped)}{older}, the last "
        f"{trace.seconds:.3g} s{clock}; open it at https://ui.perfetto.dev"
    )
