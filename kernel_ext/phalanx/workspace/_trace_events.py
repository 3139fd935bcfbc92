"""The events of a trace file, in the Trace Event format ("Trace Event Format", Google, 2016).

Pure. Records come in columns of Python's own numbers: a field of a numpy record costs 100 times as
much, and 64 busy ranks have 262,144 records (measured on two cores: 41 s so, 4 s in columns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._trace import Trace

__all__ = ["Event", "events_of"]

Event = dict[str, Any]

_COLUMNS = (
    "rank", "host", "op", "entered_ns", "arrived_ns", "done_ns", "seq", "epoch", "algorithm",
    "element", "bytes", "group", "state", "peer", "failure",
)  # fmt: skip


def events_of(trace: Trace, origin: int) -> Iterator[Event]:
    """Names first, then the operations in the order in which they were entered."""
    records = trace.records
    done = np.where(records.done_ns > 0, records.done_ns, trace.now_ns)
    ends: list[int] = done.tolist()
    lanes = _lanes(records["rank"].tolist(), records.entered_ns.tolist(), ends)
    yield from _names(trace, lanes)
    columns = [records[name].tolist() for name in _COLUMNS]
    for lane, end, row in zip(lanes, ends, zip(*columns, strict=True), strict=True):
        yield from _operation(row, lane * len(trace.dropped), end, origin)


def _lanes(ranks: Sequence[int], begun: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The lane of each record among those of its rank: in one, none overlaps with another."""
    free_at: dict[int, list[int]] = {}  # by rank, when each lane is free
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
    """A host with what its times and its beginning do not tell.

    Of all that a file can hold beside events, Perfetto draws names only: no ``process_labels``, no
    ``otherData``.
    """
    clock = f"clock ±{uncertainty_ns / 1000:.0f} us" if uncertainty_ns else ""
    older = f"{dropped} older operations dropped" if dropped else ""
    told = ", ".join(filter(None, (clock, older)))
    return f"{host} ({told})" if told else host


def _meta(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _operation(row: tuple[Any, ...], beside: int, end: int, origin: int) -> Iterator[Event]:
    """An operation, and in it the wait for the last rank."""
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
    """Microseconds, as the format has it."""
    return {"ts": (begun - origin) / 1000, "dur": max(end - begun, 0) / 1000}
