"""Describe the last operations of one rank, newest first.

The data come from the flight recorders (`phalanx.workspace.Trace`).
"""

from __future__ import annotations

from typing import Any

from phalanx.workspace import Trace

from .tables import format_size
from .world import say_ms

MOST = 12  # as many lines as a person reads


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
