"""What a file in the Trace Event format has to be, for Perfetto and chrome://tracing to show all of it.

The rules of the format's description that concern our events ("Trace Event Format", Google, 2016;
https://perfetto.dev/docs/faq on slices that overlap), and JSON as RFC 8259 has it.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

_META = {
    "process_name": {"name": str},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
    "process_sort_index": {"sort_index": int},
}
_KEYS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "pid", "tid", "ts", "dur", "cat"},
}
_EXACT = 1 << 53  # whole numbers of JavaScript end there
_SLACK_US = 1e-3  # times are nanoseconds in microseconds: what floats lose is less


def _refuse(constant: str) -> None:
    msg = f"{constant} is no JSON"
    raise ValueError(msg)


def check_trace(encoded: bytes) -> list[dict[str, Any]]:
    """Check a file; returns its events."""
    found = json.loads(encoded.decode("utf-8", "strict"), parse_constant=_refuse)
    assert set(found) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert found["displayTimeUnit"] in {"ms", "ns"}
    events = found["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        _check_event(event)
    _check_names(events)
    _check_nesting(events)
    return events


def _check_event(event: dict[str, Any]) -> None:
    wanted = _KEYS[event["ph"]]  # no other phase is ours
    assert wanted <= set(event) <= wanted | {"args"}, event
    assert isinstance(event["name"], str)
    assert event["name"]
    for key in ("pid", "tid"):
        assert type(event[key]) is int, event
        assert 0 <= event[key] < 1 << 31, event
    for value in event.get("args", {}).values():
        assert type(value) in (str, int, float), event
        assert type(value) is str or abs(value) < _EXACT, event
    if event["ph"] == "M":
        assert {name: type(value) for name, value in event["args"].items()} == _META[event["name"]]
        return
    assert isinstance(event["cat"], str)
    for key in ("ts", "dur"):
        assert type(event[key]) in (int, float), event
        assert math.isfinite(event[key]), event
        assert event[key] >= 0, event


def _check_names(events: list[dict[str, Any]]) -> None:
    """Each thread that is drawn has one name, and so has its process."""
    named = [(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"]
    assert len(named) == len(set(named))
    drawn = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert drawn <= {(pid, tid) for what, pid, tid in named if what == "thread_name"}
    assert {pid for pid, _ in drawn} <= {pid for what, pid, _ in named if what == "process_name"}


def _check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of a thread lie in each other or beside; what overlaps is dropped by the viewer."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        ends: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin + _SLACK_US:
                ends.pop()
            assert not ends or end <= ends[-1] + _SLACK_US, (begin, end, ends)
            ends.append(end)
