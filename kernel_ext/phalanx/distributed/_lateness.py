"""Who came last to collectives, and by how much.

Pure: when each rank entered which one in, ranks and times out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from phalanx.protocol import LateRank

from ._spans import ENTRY

__all__ = ["ENTERED", "Lateness", "late_ranks"]

_NEVER = np.iinfo(np.int64).max
ENTERED = np.dtype([("rank", "i8"), *ENTRY.descr])


class Lateness:
    """Compares the ranks' entries, those of a look with those of the look before.

    A collective is counted in the look after the one that has seen its end: by then the entries of
    all its ranks have been read.
    """

    def __init__(self) -> None:
        self._before = np.zeros(0, ENTERED)
        self._from_ns = self._until_ns = 0

    def take(self, entries: Mapping[int, bytes], now_ns: int) -> tuple[int, tuple[LateRank, ...]]:
        """Return how many collectives were compared, and the ranks that came last to some.

        Parameters
        ----------
        entries : mapping of int to bytes
            Of each rank, words of `ENTRY`.
        now_ns : int
            When this look began: what was over then has been entered by all its ranks.
        """
        parts = []
        for rank, packed in entries.items():
            own = np.frombuffer(packed, ENTRY)
            part = np.zeros(len(own), ENTERED)
            for name in ENTRY.names or ():
                part[name] = own[name]
            part["rank"] = rank
            parts.append(part)
        now = np.concatenate(parts) if parts else np.zeros(0, ENTERED)
        found = late_ranks(np.concatenate([self._before, now]), self._from_ns, self._until_ns)
        self._before, self._from_ns, self._until_ns = now, self._until_ns, now_ns
        return found


def late_ranks(
    seen: NDArray[np.void], from_ns: int = -1, until_ns: int = int(_NEVER)
) -> tuple[int, tuple[LateRank, ...]]:
    """Return how many collectives there are among ``seen``, and the ranks that came last to some.

    Parameters
    ----------
    seen : array of ENTERED
        In any order; of a rank and collective that is there twice, the later look counts.
    from_ns, until_ns : int
        Only collectives whose first rank was through after the one and not after the other.
    """
    if not len(seen):
        return 0, ()
    # An operation that ran at one look and was over at the next is there twice: the last one counts.
    seen = seen[np.lexsort((seen["ended"], seen["rank"], seen["place"], seen["group"]))]
    is_last = np.ones(len(seen), bool)
    is_last[:-1] = (
        (seen["group"][1:] != seen["group"][:-1])
        | (seen["place"][1:] != seen["place"][:-1])
        | (seen["rank"][1:] != seen["rank"][:-1])
    )
    seen = seen[is_last]
    seen = seen[np.lexsort((seen["entered"], seen["place"], seen["group"]))]
    begins = np.flatnonzero(
        np.r_[True, (np.diff(seen["group"]) != 0) | (np.diff(seen["place"]) != 0)]
    )
    ends = np.r_[begins[1:], len(seen)]
    ended = seen["ended"].astype(np.int64)
    over = np.minimum.reduceat(np.where(ended > 0, ended, _NEVER), begins)
    counts = ends - begins
    is_due = (over > from_ns) & (over <= until_ns) & (over < _NEVER) & (counts > 1)
    begins, ends, others = begins[is_due], ends[is_due], counts[is_due] - 1
    entered = seen["entered"].astype(np.int64)
    low, high = entered[begins + (others - 1) // 2], entered[begins + others // 2]
    late = entered[ends - 1] - (low + high) // 2
    last = seen["rank"][ends - 1]
    ranks = tuple(
        LateRank(
            int(rank),
            int((last == rank).sum()),
            int(late[last == rank].sum()),
            int(late[last == rank].max()),
        )
        for rank in np.unique(last)
    )
    return len(begins), ranks
