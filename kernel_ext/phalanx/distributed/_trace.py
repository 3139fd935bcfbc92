"""The flight recorder, as people read it: names for the engine's numbers.

It knows the words of a record (native/group/recorder.hpp); where the ring lies it does not.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import NotSupported

from ._control import AbortKind
from ._supervised import world

__all__ = ["RECORD", "Records", "records_of", "trace"]

Records: TypeAlias = "np.recarray[Any, np.dtype[np.void]]"

RECORD = np.dtype(
    [
        ("number", "i8"),
        ("epoch", "i8"),
        ("seq", "i8"),
        ("op", "U12"),
        ("algorithm", "U16"),
        ("element", "U10"),
        ("bytes", "i8"),
        ("group", "u8"),
        ("channel", "i2"),
        ("peer", "i4"),
        ("entered_ns", "i8"),
        ("arrived_ns", "i8"),
        ("done_ns", "i8"),
        ("state", "U8"),
        ("failure", "U12"),
    ]
)
_WORDS = ("number", "place", "nbytes", "group", "entered", "arrived", "ended", "what")
_PACKED = np.dtype([(name, "u8") for name in _WORDS])
_WITH_PEER = ("broadcast", "send", "recv")


def _table(names: dict[int, str]) -> NDArray[np.str_]:
    """Names by number, "" for the numbers that mean nothing."""
    return np.array([names.get(number, "") for number in range(256)])


_NAMES = _native.trace_names()
_OPS, _ALGORITHMS, _DTYPES = (_table(_NAMES[field]) for field in ("op", "algorithm", "dtype"))
_FAILURES = _table({kind.value: kind.name.lower() for kind in AbortKind})


def records_of(packed: bytes) -> Records:
    """Unpack records as the engine gives them; the meaning of the fields is told at `trace`.

    Parameters
    ----------
    packed : bytes
        What `Recorder.read` gives.

    Returns
    -------
    record array
        In the same order.

    Examples
    --------
    >>> len(records_of(b""))
    0
    """
    words = np.frombuffer(packed, _PACKED)
    records = np.zeros(len(words), RECORD)
    what = words["what"]
    failure = what >> 32 & 0xFF
    runs = (words["number"] & 1).astype(bool)
    records["number"] = words["number"] >> 1
    records["epoch"] = words["place"] >> 40
    records["seq"] = words["place"] & ((1 << 40) - 1)
    records["op"] = _OPS[what & 0xFF]
    records["algorithm"] = _ALGORITHMS[what >> 8 & 0xFF]
    records["element"] = _DTYPES[what >> 16 & 0xFF]
    records["bytes"] = words["nbytes"]
    records["group"] = words["group"]
    records["channel"] = what >> 24 & 0xFF
    records["peer"] = np.where(np.isin(records["op"], _WITH_PEER), (what >> 40 & 0xFFFF), -1)
    records["entered_ns"] = words["entered"]
    records["arrived_ns"] = words["arrived"]
    records["done_ns"] = np.where(runs, 0, words["ended"])
    records["state"] = np.where(runs, "running", np.where(failure == 0, "done", "failed"))
    records["failure"] = np.where(runs, "", _FAILURES[failure])
    return records.view(np.recarray)


def trace() -> Records:
    """Return the last operations of this rank: its flight recorder, which is always on.

    From any thread, also while an operation runs and after a failure. It holds 4096 operations of
    all groups, messages among them; the newest take the place of the oldest, but never of one
    that still runs.

    Returns
    -------
    record array, oldest first, empty in a world of one
        ``number``: counts the operations of this rank process, those that were dropped included.

        ``epoch``, ``seq``: which operation of its group it is, as errors call it (``all_sum #12``);
        of a message, of those that went that way between the two ranks.

        ``op``, ``element`` (its dtype): names. ``algorithm``: ``"inline"`` or ``"staged"`` on a host, ``"mesh"
        "direct" "ring" "chain" "pairwise"`` between hosts, or both (``"staged+ring"``); of a
        message ``"queue"`` (in shared memory) or ``"wire"``.

        ``bytes``: of the array that this rank gave (of a message: of it).

        ``group``: 0 is the world, a split has a number of its own, the same on all its ranks.
        ``channel``: the part of the shared memory it uses.

        ``peer``: the root of a broadcast, the other rank of a message (ranks of the world); else -1.

        ``entered_ns``, ``arrived_ns``, ``done_ns``: when this rank began it, when it knew that all
        ranks had (of a message: that the sender had), and when it was through with it; in
        nanoseconds of `time.monotonic_ns`, which all processes of a machine share; 0: not known,
        or not yet.

        ``state``: ``"running"``, ``"done"`` or ``"failed"``; ``failure`` says with what, like
        ``"timeout"``.

    Raises
    ------
    NotSupported
        In a world of MPI, which has its own tools.

    Notes
    -----
    Recording is three looks at the clock for each operation.

    Examples
    --------
    >>> import phalanx as px
    >>> last = px.trace()
    >>> slow = last[last.done_ns - last.entered_ns > 1e6]
    >>> waits_ms = (last.arrived_ns - last.entered_ns) / 1e6
    """
    group = world()
    if group is None or group.size() == 1:
        return records_of(b"")
    if group._family is None:
        msg = "a world of MPI has no flight recorder; run it without --backend mpi to have one"
        raise NotSupported(msg)
    packed, _ = group._family.memory.recorder.read()
    return records_of(packed)
