"""What all ranks did last, on one clock, and as a file that Perfetto and Chrome show.

Pure but for `Trace.save`; how the records are fetched it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from phalanx.distributed import RECORD, Records, records_of
from phalanx.protocol import HostClock, TraceIs, name_ranks

__all__ = ["Trace", "merged", "say_trace"]

Event = dict[str, Any]

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
        return msgspec.json.encode(
            {
                "traceEvents": [*_names(self), *_events(self, origin)],
                "displayTimeUnit": "ns",
                "otherData": {
                    "origin_ns": origin,
                    "hosts": [msgspec.to_builtins(host) for host in self.hosts],
                    "dropped": {str(rank): count for rank, count in self.dropped.items()},
                },
            }
        )

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


def _lanes(trace: Trace) -> Iterator[tuple[Any, int]]:
    """Each record with its lane among those of its rank: in one, none overlaps with another."""
    free_at: dict[int, list[int]] = {}  # by rank, when each lane is free
    for record in trace.records:
        lanes = free_at.setdefault(int(record.rank), [])
        begun, end = int(record.entered_ns), int(record.done_ns) or trace.now_ns
        lane = next((i for i, free in enumerate(lanes) if free <= begun), len(lanes))
        lanes[lane:] = [end] if lane == len(lanes) else [end, *lanes[lane + 1 :]]
        yield record, lane


def _tid(trace: Trace, rank: int, lane: int) -> int:
    return rank + lane * len(trace.dropped)


def _names(trace: Trace) -> Iterator[Event]:
    for index, host in enumerate(trace.hosts):
        yield _meta("process_name", index, 0, name=host.name)
    lanes = {(int(record.host), int(record.rank), lane) for record, lane in _lanes(trace)}
    for host_index, rank, lane in sorted(lanes):
        tid = _tid(trace, rank, lane)
        name = f"rank {rank}" + (f", beside it {lane}" if lane else "")
        yield _meta("thread_name", host_index, tid, name=name)
        yield _meta("thread_sort_index", host_index, tid, sort_index=rank * 1000 + lane)


def _meta(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _events(trace: Trace, origin: int) -> Iterator[Event]:
    for record, lane in _lanes(trace):
        begun, end = int(record.entered_ns), int(record.done_ns) or trace.now_ns
        row = {"ph": "X", "pid": int(record.host), "tid": _tid(trace, int(record.rank), lane)}
        args = {
            "seq": int(record.seq),
            "epoch": int(record.epoch),
            "algorithm": str(record.algorithm),
            "dtype": str(record.element),
            "nbytes": int(record.bytes),
            # As text: JavaScript's numbers end at 2**53.
            "group": "world" if not record.group else str(int(record.group)),
            "state": str(record.state),
        }
        if record.peer >= 0:
            args["peer"] = int(record.peer)
        if record.failure:
            args["failure"] = str(record.failure)
        name, category = (
            str(record.op),
            "message" if record.op in ("send", "recv") else "collective",
        )
        yield {**row, "name": name, "cat": category, **_span(begun, end, origin), "args": args}
        arrived = int(record.arrived_ns) or (end if record.op != "send" else 0)
        if arrived > begun:
            who = "sender" if record.op == "recv" else "last rank"
            times = _span(begun, arrived, origin)
            yield {**row, "name": f"wait for the {who}", "cat": "wait", **times}


def _span(begun: int, end: int, origin: int) -> Event:
    """Microseconds, as the format has it."""
    return {"ts": (begun - origin) / 1000, "dur": max(end - begun, 0) / 1000}
