"""The last operations of one rank in words, a line each, the newest first.

Pure: the flight recorders (`phalanx.workspace.Trace`) in, text out.
"""

from __future__ import annotations

from typing import Any

from phalanx.workspace import Trace

from ._table import format_size
from ._world import say_ms

__all__ = ["say_operations"]

MOST = 12  # as many as a person reads


def say_operations(trace: Trace, rank: int, *, most: int = MOST, is_dead: bool = False) -> str:
    """Say what a rank did last: operation, bytes, algorithm, how long, of that waiting, and when."""
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
    whom = "its peer" if is_message else "the last rank"
    arrived = int(record["arrived_ns"])
    if record["state"] == "running" and is_dead:  # when that was, its recorder does not know
        late = "" if arrived else f": {whom} had not come"
        return f"had not ended when the rank died{late}"
    if record["state"] == "running":
        since = say_ms((now_ns - entered) / 1e6)
        return f"runs for {since}" + ("" if arrived else f": {whom} has not come")
    took = say_ms((done - entered) / 1e6)
    if record["failure"]:
        took += f" until it failed ({record['failure']})"
    elif arrived > entered and record["op"] != "send":
        took += f", of which {say_ms(min(arrived, done) / 1e6 - entered / 1e6)} waiting for {whom}"
    return f"{took}; {say_ms((now_ns - done) / 1e6)} ago"
