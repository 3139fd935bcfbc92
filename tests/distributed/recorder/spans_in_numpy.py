"""What the engine makes of records and entries, once more in numpy: slower, and easier to believe.

The reference of `test_spans_parity`; it is right for numbers that an engine writes, not for any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.distributed import ENTRY, StragglerReport
from phalanx.distributed.recorder import _ALGORITHMS, _FAILURES, _OPS, _PACKED, _WITH_PEER, NewSpans
from phalanx.protocol import LateRank, Span, Use

MOST_SPANS = 16
MOST_FIRST = 64
PAUSE_NS = 1_000_000_000
FIRST_NS = 10_000_000_000
MOST_ENTRIES = 128
_IS_MESSAGE = np.isin(_OPS, ("send", "recv"))
_SEQ = np.uint64((1 << 40) - 1)
_NEVER = np.iinfo(np.int64).max

Words = NDArray[np.void]


class NumpyTraceSummarizer:
    """What is new in one rank's recorder since it was looked at last.

    Operations that run come again each time, until they are over.
    """

    def __init__(self) -> None:
        self._last = -1  # number of the newest record that was seen
        self._open: set[int] = set()

    @property
    def has_open(self) -> bool:
        """Whether an operation ran at the last look."""
        return bool(self._open)

    @property
    def since(self) -> int:
        """Number of the oldest record that is of interest at the next look."""
        return min([*self._open, self._last + 1])

    def read(self, packed: bytes) -> NewSpans:
        """Return what is new in what `ControlPage.trace` gives, at least from `since` on."""
        words = np.frombuffer(packed, _PACKED)
        if not len(words):
            return NewSpans()
        numbers = (words["number"] >> 1).astype(np.int64)
        if int(numbers[-1]) < self._last:  # another process is the rank
            self._last, self._open = -1, set()
        is_new = numbers > self._last
        if self._last < 0:
            is_recent = words["entered"] + FIRST_NS >= words["entered"][-1]
            is_new &= is_recent | (words["number"] & 1).astype(bool)
        for number in self._open:  # few; numpy's own sets would be a fifth of a look
            is_new |= numbers == number
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
        return NewSpans(tuple(spans), missed, _entries(new), _uses(new))


def begins_of(*columns: NDArray[Any]) -> NDArray[np.intp]:
    """Return where rows begin that differ from those before them in one of the columns."""
    is_begin = np.ones(len(columns[0]), bool)
    np.not_equal(columns[0][1:], columns[0][:-1], out=is_begin[1:])
    for column in columns[1:]:
        is_begin[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_begin)


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
    if (slices[1:] < slices[:-1]).any():  # threads
        order = np.argsort(slices, kind="stable")
        over, begun, slices = over[order], begun[order], slices[order]
    starts = begins_of(slices)
    counts = np.diff(starts, append=len(over))
    arrived, ended = (over[name].astype(np.int64) for name in ("arrived", "ended"))
    inside = np.maximum(0, ended - begun)
    wait = np.where(arrived > 0, np.maximum(0, arrived - begun), 0)
    kinds, failures = _kinds(over), over["what"] >> 32 & 0xFF
    is_one = np.minimum.reduceat(kinds, starts) == np.maximum.reduceat(kinds, starts)
    is_one_group = np.minimum.reduceat(over["group"], starts) == np.maximum.reduceat(
        over["group"], starts
    )
    newest = over[starts + counts - 1]
    columns = zip(
        starts.tolist(),
        counts.tolist(),
        is_one.tolist(),
        np.minimum.reduceat(begun, starts).tolist(),
        np.maximum.reduceat(ended, starts).tolist(),
        np.add.reduceat(inside, starts).tolist(),
        np.add.reduceat(wait, starts).tolist(),
        np.add.reduceat(over["nbytes"], starts).tolist(),
        np.where(is_one_group, newest["group"], 0).tolist(),
        (newest["number"] >> 1).tolist(),
        (newest["place"] & _SEQ).tolist(),
        np.maximum.reduceat(failures, starts).tolist(),
        strict=True,
    )
    spans = []
    for start, count, one, first, last, took, waited, nbytes, group, number, seq, why in columns:
        if count == 1:
            spans.append(_single(over[start]))
            continue
        part = slice(start, start + count)
        times = None if one else np.bincount(kinds[part], weights=inside[part] + 1.0)
        spans.append(
            Span(
                number=number,
                op=str(_OPS[kinds[start] if times is None else times.argmax()]),
                begun_ns=first,
                done_ns=last,
                inside_ns=took,
                wait_ns=waited,
                nbytes=nbytes,
                seq=seq if one else 0,
                group=group,
                count=count,
                kinds=0 if times is None else int(np.count_nonzero(times)) - 1,
                failure=str(_FAILURES[why]) if why else "",
            )
        )
    return spans


def _entries(new: Words) -> bytes:
    collectives = new[~_IS_MESSAGE[_kinds(new)]][-MOST_ENTRIES:]
    entries = np.zeros(len(collectives), ENTRY)
    runs = (collectives["number"] & 1).astype(bool)
    for name in ("group", "place", "entered"):
        entries[name] = collectives[name]
    entries["ended"] = np.where(runs, 0, collectives["ended"])
    return entries.tobytes()


def _uses(new: Words) -> tuple[Use, ...]:
    # Neighbours are often alike: one number says operation, algorithm and whether it is a split's.
    alike = new["what"] & 0xFFFF | (new["group"] > 0).astype(np.uint64) << np.uint64(16)
    found = []
    for kind in sorted(set(alike.tolist())):  # numpy.unique loads numpy.ma, 0.1 s of a core
        nbytes = new["nbytes"][alike == kind]
        op, algorithm = str(_OPS[kind & 0xFF]), str(_ALGORITHMS[kind >> 8 & 0xFF])
        found.append(Use(op, algorithm, int(nbytes.min()), int(nbytes.max()), bool(kind >> 16)))
    return tuple(found)


def numpy_late_ranks(
    seen: NDArray[np.void],
    from_ns: int = -1,
    until_ns: int = int(_NEVER),
    members: dict[int, int] | None = None,
) -> StragglerReport:
    """Return how many collectives there are among ``seen``, and the ranks that came last to some."""
    if not len(seen):
        return StragglerReport()
    # An operation that ran at one look and was over at the next is there twice: the last one counts.
    seen = seen[np.lexsort((seen["ended"], seen["rank"], seen["place"], seen["group"]))]
    seen = seen[np.append(begins_of(seen["group"], seen["place"], seen["rank"])[1:], len(seen)) - 1]
    seen = seen[np.lexsort((seen["entered"], seen["place"], seen["group"]))]
    begins = begins_of(seen["group"], seen["place"])
    ends = np.append(begins[1:], len(seen))
    ended = seen["ended"].astype(np.int64)
    over = np.minimum.reduceat(np.where(ended > 0, ended, _NEVER), begins)
    counts = ends - begins
    is_due = (over > from_ns) & (over <= until_ns) & (over < _NEVER) & (counts > 1)
    for group, n_members in (members or {}).items():
        is_due &= (seen["group"][begins] != group) | (counts >= n_members)
    entered, doubt = _at_latest(seen, begins, ends)
    begins, ends, others = begins[is_due], ends[is_due], counts[is_due] - 1
    low, high = entered[begins + (others - 1) // 2], entered[begins + others // 2]
    is_sure = entered[ends - 1] >= entered[ends - 2]
    late = (entered[ends - 1] - (low + high) // 2)[is_sure]
    last = seen["rank"][ends - 1][is_sure]
    ranks = tuple(
        LateRank(
            int(rank),
            int((last == rank).sum()),
            int(late[last == rank].sum()),
            int(late[last == rank].max()),
        )
        for rank in sorted(set(last.tolist()))
    )
    open_ns = doubt[ends - 2][~is_sure]
    return StragglerReport(len(begins), ranks, len(open_ns), int(open_ns.max(initial=0)))


def _at_latest(
    seen: NDArray[np.void], begins: NDArray[np.intp], ends: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when the ranks of each collective entered, as late as that may be beside the last's.

    And by how much that may be wrong. The last one's comes last, and of the others the latest
    before it.
    """
    entered = seen["entered"].astype(np.int64)
    which = np.repeat(np.arange(len(begins)), ends - begins)
    last = (ends - 1)[which]
    is_apart = seen["host"] != seen["host"][last]
    doubt = np.where(is_apart, seen["unsure"] + seen["unsure"][last], 0)
    entered += doubt
    order = np.lexsort((entered, np.arange(len(seen)) == last, which))
    return entered[order], doubt[order]
