"""Read the records of the flight recorder as numpy arrays.

The layout of a record is in native/monitoring/recorder.hpp. `summaries` reads them without numpy.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .summaries import FAILURES, NAMES

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
    """Return an array of names by number, "" for undefined numbers."""
    return np.array([names.get(number, "") for number in range(256)])


_OPS, _ALGORITHMS, _DTYPES = (_table(NAMES[field]) for field in ("op", "algorithm", "dtype"))
_FAILURES = _table(FAILURES)


def records_of(packed: bytes) -> Records:
    """Unpack a recorder's records; see `px.trace` for the fields.

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
    records["peer"] = np.where(
        np.isin(records["op"], _WITH_PEER), (what >> 40 & 0xFFFF).astype(np.int64), -1
    )
    records["entered_ns"] = words["entered"]
    records["arrived_ns"] = words["arrived"]
    records["done_ns"] = np.where(runs, 0, words["ended"])
    records["state"] = np.where(runs, "running", np.where(failure == 0, "done", "failed"))
    records["failure"] = np.where(runs, "", _FAILURES[failure])
    return records.view(np.recarray)
