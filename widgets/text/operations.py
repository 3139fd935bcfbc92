"""Describe algorithms in use and last operations, from the flight recorders."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.workspace import Trace

from .tables import format_size
from .world import say_ms

MOST = 12  # as many lines as a person reads
LATELY_NS = 10_000_000_000  # used "now" means within this time, the length of a monitor lane


class UseFrame(msgspec.Struct, frozen=True, array_like=True):
    """Algorithm of an operation for messages of ``low`` to ``high`` bytes.

    ``is_split``: the group is not the world. ``is_now``: used within `LATELY_NS`.
    """

    op: str
    algorithm: str
    low: int
    high: int
    is_split: bool
    is_now: bool


def uses_of(trace: Trace) -> tuple[UseFrame, ...]:
    """Return the uses from the flight recorders, without polling."""
    records = trace.records[trace.records["algorithm"] != ""]
    is_split = records["group"] != 0
    ways = set(
        zip(records["op"].tolist(), is_split.tolist(), records["algorithm"].tolist(), strict=True)
    )
    found = []
    for op, of_split, algorithm in sorted(ways):
        is_this = (records["op"] == op) & (records["algorithm"] == algorithm)
        its = records[is_this & (is_split == of_split)]
        is_now = int(its["entered_ns"].max()) > trace.now_ns - LATELY_NS
        low, high = int(its["bytes"].min()), int(its["bytes"].max())
        found.append(UseFrame(op, algorithm, low, high, is_split=of_split, is_now=is_now))
    return tuple(found)


def say_use(use: UseFrame) -> str:
    """Describe one use: all_sum of 1 MiB to 4 MiB: ring.

    Examples
    --------
    >>> say_use(UseFrame("all_sum", "staged+ring", 8, 8, is_split=True, is_now=False))
    'all_sum in a split of 8 B: staged on each host, ring between hosts (earlier)'
    """
    sizes = f" of {format_size(use.low)}" if use.high else ""
    sizes += f" to {format_size(use.high)}" if use.high > use.low else ""
    here, _, between = use.algorithm.partition("+")
    way = f"{here} on each host, {between} between hosts" if between else here
    split, when = " in a split" if use.is_split else "", "" if use.is_now else " (earlier)"
    return f"{use.op}{split}{sizes}: {way}{when}"


def say_operations(trace: Trace, rank: int, *, most: int = MOST, is_dead: bool = False) -> str:
    """Describe a rank's last operations, one line each.

    A line has operation, bytes, algorithm, duration, waiting time and how long ago it was.
    """
    own = trace.records[trace.records["rank"] == rank][::-1]
    lines = [_say(record, trace.now_ns, is_dead=is_dead) for record in own[:most]]
    older = len(own) - len(lines) + trace.dropped.get(rank, 0)
    if older:
        lines.append(f"and {older} before: %distributed trace FILE writes what the recorder holds")
    return "\n".join(lines) or f"rank {rank} has communicated nothing yet"


def _say(record: Any, now_ns: int, *, is_dead: bool) -> str:
    op, entered, done = str(record["op"]), int(record["entered_ns"]), int(record["done_ns"])
    name = f"{op} #{int(record['seq'])}"
    peer = int(record["peer"])
    if peer >= 0:
        name += f" to rank {peer}" if op == "send" else f" from rank {peer}"
    if record["group"]:
        name += " in a split"
    what = f"{format_size(int(record['bytes']))} of {record['element']}" if record["bytes"] else ""
    how = f"by {record['algorithm']}" if record["algorithm"] else ""
    took = _took(record, entered, done, now_ns, is_dead=is_dead)
    return ", ".join(filter(None, (name, f"{what} {how}".strip(), took)))


def _took(record: Any, entered: int, done: int, now_ns: int, *, is_dead: bool) -> str:
    is_message = record["op"] in ("send", "recv")
    late_rank = "its peer" if is_message else "the last rank"
    arrived = int(record["arrived_ns"])
    if record["state"] == "running" and is_dead:  # the recorder does not know when it died
        late = "" if arrived else f": {late_rank} had not come"
        return f"had not ended when the rank died{late}"
    if record["state"] == "running":
        since = say_ms((now_ns - entered) / 1e6)
        return f"runs for {since}" + ("" if arrived else f": {late_rank} has not come")
    took = say_ms((done - entered) / 1e6)
    if record["failure"]:
        took += f" until it failed ({record['failure']})"
    elif arrived > entered and record["op"] != "send":
        took += (
            f", of which {say_ms(min(arrived, done) / 1e6 - entered / 1e6)} waiting for {late_rank}"
        )
    return f"{took}; {say_ms((now_ns - done) / 1e6)} ago"
