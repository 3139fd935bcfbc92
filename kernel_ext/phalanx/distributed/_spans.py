"""A rank's flight recorder, read again and again: what is new in it, in few spans.

It knows the words of a record (as `_trace`); whose recorder it is and who wants to know it does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phalanx.protocol import Span

from ._trace import _FAILURES, _OPS, _PACKED, _WITH_PEER

__all__ = ["ENTRY", "MOST_SPANS", "SpanReader"]

MOST_SPANS = 16  # of a rank for one sample: in 0.2 s, each is wider than an eye tells apart
MOST_FIRST = 64  # after a pause, or at the first look: there is more time to tell of
PAUSE_NS = 1_000_000_000
FIRST_NS = 10_000_000_000  # how far back the first look goes: what a person sees of it at once
MOST_ENTRIES = 256  # collectives that are compared between ranks: more add nothing to a mean
ENTRY = np.dtype([("group", "u8"), ("place", "u8"), ("entered", "u8"), ("ended", "u8")])
_IS_MESSAGE = np.isin(_OPS, ("send", "recv"))
_SEQ = np.uint64((1 << 40) - 1)

Words = NDArray[np.void]


class SpanReader:
    """What is new in one rank's recorder since it was looked at last.

    Operations that run come again each time, until they are over.
    """

    def __init__(self) -> None:
        self._last = -1  # number of the newest record that was seen
        self._open: set[int] = set()

    def read(self, packed: bytes) -> tuple[tuple[Span, ...], int, bytes]:
        """Return the new spans, how many operations nobody will see, and entries to compare.

        Parameters
        ----------
        packed : bytes
            As `AbortPage.trace` gives it.

        Returns
        -------
        spans : tuple of Span
            At most `MOST_SPANS` of what is over (`MOST_FIRST` after a pause), and all that runs.
        missed : int
            Operations that were begun, over and overwritten since the last look.
        entries : bytes
            The newest collectives, in words of `ENTRY`.
        """
        words = np.frombuffer(packed, _PACKED)
        if not len(words):
            return (), 0, b""
        numbers = (words["number"] >> 1).astype(np.int64)
        if int(numbers[-1]) < self._last:  # another process is the rank
            self._last, self._open = -1, set()
        is_new = numbers > self._last
        if self._last < 0:
            is_new &= words["entered"] + FIRST_NS >= words["entered"][-1]
        if self._open:
            is_new |= np.isin(numbers, list(self._open))
        new, first = words[is_new], int(numbers[numbers > self._last][:1].sum())
        # At the first look, what is not there any more is older than anybody's interest.
        missed = max(0, first - self._last - 1) if self._last >= 0 and first else 0
        self._last = max(self._last, int(numbers[-1]))
        runs = (new["number"] & 1).astype(bool)
        self._open = set((new["number"][runs] >> 1).tolist())
        spans = [_single(record) for record in new[runs]]
        over = new[~runs]
        if len(over) <= MOST_SPANS:
            spans += [_single(record) for record in over]
        else:
            spans += _together(over)
        return tuple(spans), missed, _entries(new)


def _kinds(words: Words) -> NDArray[np.intp]:
    return (words["what"] & 0xFF).astype(np.intp)


def _single(record: np.void) -> Span:
    what = int(record["what"])
    op = str(_OPS[what & 0xFF])
    entered, arrived, ended = (int(record[name]) for name in ("entered", "arrived", "ended"))
    runs = bool(int(record["number"]) & 1)
    ended = 0 if runs else ended
    # A message that is sent waits for nobody as far as its record tells.
    waits = runs and not arrived and op != "send"
    return Span(
        number=int(record["number"]) >> 1,
        op=op,
        begun_ns=entered,
        done_ns=ended,
        inside_ns=max(0, ended - entered),
        wait_ns=-1 if waits else max(0, arrived - entered) if arrived else 0,
        nbytes=int(record["nbytes"]),
        seq=int(record["place"]) & int(_SEQ),
        group=int(record["group"]),
        peer=what >> 40 & 0xFFFF if op in _WITH_PEER else -1,
        failure=str(_FAILURES[what >> 32 & 0xFF]) if not runs and what >> 32 & 0xFF else "",
    )


def _together(over: Words) -> list[Span]:
    """Lay neighbours together: each span is a slice of the time that they took."""
    begun = over["entered"].astype(np.int64)
    length = max(1, int(begun.max() - begun.min()))
    most = MOST_FIRST if length > PAUSE_NS else MOST_SPANS
    slices = (begun - begun.min()) * most // (length + 1)
    return [_joined(over[slices == at]) for at in np.unique(slices)]


def _joined(part: Words) -> Span:
    if len(part) == 1:
        return _single(part[0])
    entered, arrived, ended = (
        part[name].astype(np.int64) for name in ("entered", "arrived", "ended")
    )
    inside = np.maximum(0, ended - entered)
    names, which = np.unique(_kinds(part), return_inverse=True)
    most = names[np.argmax(np.bincount(which, weights=inside + 1.0))]
    failures = part["what"] >> 32 & 0xFF
    failed = failures[failures != 0]
    newest = part[-1]
    is_all_one = len(names) == 1
    groups = np.unique(part["group"])
    return Span(
        number=int(newest["number"]) >> 1,
        op=str(_OPS[int(most)]),
        begun_ns=int(entered.min()),
        done_ns=int(ended.max()),
        inside_ns=int(inside.sum()),
        wait_ns=int(np.where(arrived > 0, np.maximum(0, arrived - entered), 0).sum()),
        nbytes=int(part["nbytes"].sum()),
        seq=int(newest["place"] & _SEQ) if is_all_one else 0,
        group=int(groups[0]) if len(groups) == 1 else 0,
        count=len(part),
        kinds=len(names) - 1,
        failure=str(_FAILURES[int(failed[-1])]) if len(failed) else "",
    )


def _entries(new: Words) -> bytes:
    collectives = new[~_IS_MESSAGE[_kinds(new)]][-MOST_ENTRIES:]
    entries = np.zeros(len(collectives), ENTRY)
    runs = (collectives["number"] & 1).astype(bool)
    for name in ("group", "place", "entered"):
        entries[name] = collectives[name]
    entries["ended"] = np.where(runs, 0, collectives["ended"])
    return entries.tobytes()
