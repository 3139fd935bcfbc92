"""Merge the ranks' flight recorders on one clock; write trace files.

Records are handled in columns of plain Python numbers: reading a field of a numpy record costs 100
times as much. 64 busy ranks have 262,144 records (measured on two cores: 41 s with numpy records, 4
s in columns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from phalanx.distributed.recorder import RECORD, Records, records_of
from phalanx.errors import naming
from phalanx.protocol import HostClock, TraceIs, name_ranks

Event = dict[str, Any]

_COLUMNS = (
    "rank", "host", "op", "entered_ns", "arrived_ns", "done_ns", "seq", "epoch", "algorithm",
    "element", "bytes", "group", "state", "peer", "failure",
)  # fmt: skip

_MERGED = np.dtype([("rank", "i4"), ("host", "i4"), *RECORD.descr])
_TIMES = ("entered_ns", "arrived_ns", "done_ns")


def events_of(trace: Trace, origin: int) -> Iterator[Event]:
    """Yield the name events, then the operations in order of entry."""
    records = trace.records
    done = np.where(records.done_ns > 0, records.done_ns, trace.now_ns)
    ends: list[int] = done.tolist()
    lanes = _lanes(records["rank"].tolist(), records.entered_ns.tolist(), ends)
    yield from _names(trace, lanes)
    columns = [records[name].tolist() for name in _COLUMNS]
    for lane, end, row in zip(lanes, ends, zip(*columns, strict=True), strict=True):
        yield from _operation(row, lane * len(trace.dropped), end, origin)


def _lanes(ranks: Sequence[int], begun: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Assign each record a lane of its rank, free of overlaps."""
    free_at: dict[int, list[int]] = {}  # by rank: the time at which each lane gets free
    found = []
    for rank, begin, end in zip(ranks, begun, ends, strict=True):
        free = free_at.setdefault(rank, [])
        lane = next((i for i, at in enumerate(free) if at <= begin), len(free))
        free[lane:] = [end] if lane == len(free) else [end, *free[lane + 1 :]]
        found.append(lane)
    return found


def _names(trace: Trace, lanes: Sequence[int]) -> Iterator[Event]:
    host_of = dict(zip(trace.records["rank"].tolist(), trace.records["host"].tolist(), strict=True))
    for index, host in enumerate(trace.hosts):
        dropped = sum(trace.dropped[rank] for rank, its in host_of.items() if its == index)
        name = _process_name(host.name, host.uncertainty_ns, dropped)
        yield _meta("process_name", index, 0, name=name)
    known = {(host_of[rank], rank, lane) for rank, lane in _pairs(trace, lanes)}
    for host_index, rank, lane in sorted(known):
        tid = rank + lane * len(trace.dropped)
        name = f"rank {rank}" + (f", beside it {lane}" if lane else "")
        yield _meta("thread_name", host_index, tid, name=name)
        yield _meta("thread_sort_index", host_index, tid, sort_index=rank * 1000 + lane)


def _pairs(trace: Trace, lanes: Sequence[int]) -> set[tuple[int, int]]:
    return set(zip(trace.records["rank"].tolist(), lanes, strict=True))


def _process_name(host: str, uncertainty_ns: int, dropped: int) -> str:
    """Return a host's name with its clock error and dropped operations.

    They are put into the name because Perfetto shows no other metadata: neither ``process_labels``
    nor ``otherData``.
    """
    clock = f"clock ±{uncertainty_ns / 1000:.0f} us" if uncertainty_ns else ""
    older = f"{dropped} older operations dropped" if dropped else ""
    notes = ", ".join(filter(None, (clock, older)))
    return f"{host} ({notes})" if notes else host


def _meta(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _operation(row: tuple[Any, ...], beside: int, end: int, origin: int) -> Iterator[Event]:
    """Yield an operation, and inside it the wait for the last rank."""
    (rank, host, op, begun, arrived, _done, seq, epoch, algorithm,
     element, nbytes, group, state, peer, failure) = row  # fmt: skip
    where = {"ph": "X", "pid": host, "tid": rank + beside}
    args = {
        "seq": seq,
        "epoch": epoch,
        "algorithm": algorithm,
        "dtype": element,
        "nbytes": nbytes,
        # As text: JavaScript's numbers end at 2**53.
        "group": str(group) if group else "world",
        "state": state,
    }
    if peer >= 0:
        args["peer"] = peer
    if failure:
        args["failure"] = failure
    category = "message" if op in ("send", "recv") else "collective"
    yield {**where, "name": op, "cat": category, **_span(begun, end, origin), "args": args}
    last = arrived or (end if op != "send" else 0)
    if last > begun:
        who = "sender" if op == "recv" else "last rank"
        times = _span(begun, last, origin)
        yield {**where, "name": f"wait for the {who}", "cat": "wait", **times}


def _span(begun: int, end: int, origin: int) -> Event:
    """Return start and duration in microseconds, the format's unit."""
    return {"ts": (begun - origin) / 1000, "dur": max(end - begun, 0) / 1000}


@dataclass(frozen=True)
class Trace:
    """The last operations of all ranks.

    Attributes
    ----------
    records : record array
        As from `px.trace`, plus the columns ``rank`` and ``host`` (an index into ``hosts``). In
        order of entry, all on the clock of the first host.
    hosts : tuple of HostClock
        By index: the offset added to the times of each host (``offset_ns``), and the possible error
        of that offset (``uncertainty_ns``; 0 for ranks of one machine).
    dropped : dict of int to int
        Number of older operations of each rank that are no longer in ``records``.
    now_ns : int
        Time at which the trace was taken, on the same clock.
    """

    records: Records
    hosts: tuple[HostClock, ...]
    dropped: dict[int, int]
    now_ns: int

    @property
    def seconds(self) -> float:
        """Return the seconds from the first operation's start to `now_ns`."""
        return (self.now_ns - int(self.records.entered_ns[0])) / 1e9 if len(self.records) else 0.0

    def to_json(self) -> bytes:
        """Return the trace as JSON in the Trace Event format.

        https://ui.perfetto.dev and chrome://tracing open the format. There is one process per host
        and one thread per rank. Operations that a rank runs at the same time in other threads get
        further threads. The wait for the last rank is a separate event inside the operation.
        """
        origin = int(self.records.entered_ns[0]) if len(self.records) else self.now_ns
        other = {
            "origin_ns": origin,
            "hosts": [msgspec.to_builtins(host) for host in self.hosts],
            "dropped": {str(rank): count for rank, count in self.dropped.items()},
        }
        # Event by event: encoding all events in one call would hold the GIL for too long.
        events = b",".join(map(msgspec.json.encode, events_of(self, origin)))
        return b'{"traceEvents":[%b],"displayTimeUnit":"ns","otherData":%b}' % (
            events,
            msgspec.json.encode(other),
        )

    def newest(self, most: int) -> Trace:
        """Return a trace of the last ``most`` operations entered."""
        n_over = len(self.records) - most
        if n_over <= 0:
            return self
        ranks, counts = np.unique(self.records["rank"][:n_over], return_counts=True)
        over = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
        dropped = {rank: count + over.get(rank, 0) for rank, count in self.dropped.items()}
        return replace(self, records=self.records[n_over:].view(np.recarray), dropped=dropped)

    def save(self, path: str | PathLike[str]) -> None:
        """Write `to_json` to a file; raise `OSError` if that fails."""
        with naming(path):
            Path(path).write_bytes(self.to_json())


def merged(answer: TraceIs) -> Trace:
    """Put the recorders of all ranks on one clock."""
    parts = []
    for rank, (host, packed) in enumerate(zip(answer.host, answer.records, strict=True)):
        own = records_of(packed)
        part = np.zeros(len(own), _MERGED)
        for name in RECORD.names or ():
            part[name] = own[name]
        part["rank"], part["host"] = rank, host
        for name in _TIMES:  # 0 means unknown and stays 0
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
