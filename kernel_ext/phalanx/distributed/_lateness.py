"""Who came last to collectives, and by how much.

Pure: when each rank entered which one in, ranks and times out. Where ranks have clocks of their
own, nothing is said that these may be wrong about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.protocol import LateRank

from ._spans import ENTRY

__all__ = ["ENTERED", "Compared", "ItsClock", "Lateness", "late_ranks"]

_NEVER = np.iinfo(np.int64).max
ENTERED = np.dtype([("rank", "i8"), *ENTRY.descr, ("host", "i8"), ("unsure", "i8")])
LONGEST_LOOKS = 8  # that are kept until a host that is slow has told of its ranks


class ItsClock(NamedTuple):
    """Whose clock a rank's times are of, and by how much that may be wrong (ns)."""

    host: int = 0
    unsure_ns: int = 0


_OURS = ItsClock()


class Compared(NamedTuple):
    """How many collectives were compared, and the ranks that came last to some.

    Of ``n_unsure`` nobody can say who came last: the clocks of its host and of another's may be
    wrong by more, ``unsure_ns`` at most.
    """

    n_compared: int = 0
    late: tuple[LateRank, ...] = ()
    n_unsure: int = 0
    unsure_ns: int = 0


class Lateness:
    """Compares the ranks' entries, those of a look with those of the look before.

    A collective is counted in the look after the one that has seen its end: by then the entries of
    all its ranks have been read.
    """

    def __init__(self) -> None:
        self._before = np.zeros(0, ENTERED)
        self._kept: list[NDArray[np.void]] = []
        self._n_kept = 0
        self._from_ns = self._until_ns = 0

    def restart(self, now_ns: int) -> None:
        """Compare only what is over from now on: entries before are missing."""
        self._kept, self._n_kept = [], 0
        self._from_ns = self._until_ns = now_ns

    def take(
        self,
        entries: Mapping[int, bytes],
        now_ns: int,
        *,
        clocks: Mapping[int, ItsClock] | None = None,
        members: Mapping[int, int] | None = None,
        is_whole: bool = True,
    ) -> Compared:
        """Return what the collectives that are over by now tell of who came last.

        Parameters
        ----------
        entries : mapping of int to bytes
            Of each rank, words of `ENTRY`.
        now_ns : int
            When this look began: what was over then has been entered by all its ranks.
        clocks : mapping of int to ItsClock, optional
            Of ranks whose clock is another machine's.
        members : mapping of int to int, optional
            By group: a collective of which fewer entries have been seen is left out.
        is_whole : bool
            Whether all ranks were looked at; else it is kept until they are.
        """
        parts = self._kept
        for rank, packed in entries.items():
            own = np.frombuffer(packed, ENTRY)
            part = np.zeros(len(own), ENTERED)
            for name in ENTRY.names or ():
                part[name] = own[name]
            clock = (clocks or {}).get(rank, _OURS)
            part["rank"], part["host"], part["unsure"] = rank, clock.host, clock.unsure_ns
            parts.append(part)
        if not is_whole:
            self._n_kept += 1
            if self._n_kept > LONGEST_LOOKS:
                self.restart(now_ns)
            return Compared()
        now = np.concatenate(parts) if parts else np.zeros(0, ENTERED)
        self._kept, self._n_kept = [], 0
        seen = np.concatenate([self._before, now])
        found = late_ranks(seen, self._from_ns, self._until_ns, members)
        self._before, self._from_ns, self._until_ns = now, self._until_ns, now_ns
        return found


def late_ranks(
    seen: NDArray[np.void],
    from_ns: int = -1,
    until_ns: int = int(_NEVER),
    members: Mapping[int, int] | None = None,
) -> Compared:
    """Return how many collectives there are among ``seen``, and the ranks that came last to some.

    Parameters
    ----------
    seen : array of ENTERED
        In any order; of a rank and collective that is there twice, the later look counts.
    from_ns, until_ns : int
        Only collectives whose first rank was through after the one and not after the other.
    members : mapping of int to int, optional
        By group: collectives of which fewer entries are there are left out.

    Notes
    -----
    ``unsure`` is by how much ``entered`` may be wrong beside another ``host``'s: entries of one
    host have one clock. Who came last is told only where that is more than both clocks may be wrong
    by, and by how much less that; the collective counts among the compared ones all the same, and
    among those that leave it open.
    """
    if not len(seen):
        return Compared()
    # An operation that ran at one look and was over at the next is there twice: the last one counts.
    seen = seen[np.lexsort((seen["ended"], seen["rank"], seen["place"], seen["group"]))]
    seen = seen[
        np.append(_begins_of(seen["group"], seen["place"], seen["rank"])[1:], len(seen)) - 1
    ]
    seen = seen[np.lexsort((seen["entered"], seen["place"], seen["group"]))]
    begins = _begins_of(seen["group"], seen["place"])
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
    return Compared(len(begins), ranks, len(open_ns), int(open_ns.max(initial=0)))


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


def _begins_of(*columns: NDArray[Any]) -> NDArray[np.intp]:
    """Return where rows begin that differ from those before them in one of the columns."""
    is_begin = np.ones(len(columns[0]), bool)
    np.not_equal(columns[0][1:], columns[0][:-1], out=is_begin[1:])
    for column in columns[1:]:
        is_begin[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_begin)
