"""Who came last to collectives, and by how much.

What is kept of one look for the next; the engine compares (native/group/lateness.hpp). Whose entries
they are and who wants to know it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
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
        self._before = b""  # words of `ENTERED`, as those that are kept
        self._kept: list[bytes] = []
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
        for rank, packed in entries.items():
            clock = (clocks or {}).get(rank, _OURS)
            self._kept.append(_native.entered(packed, rank, clock.host, clock.unsure_ns))
        if not is_whole:
            self._n_kept += 1
            if self._n_kept > LONGEST_LOOKS:
                self.restart(now_ns)
            return Compared()
        now = b"".join(self._kept)
        self._kept, self._n_kept = [], 0
        found = _compared(self._before + now, self._from_ns, self._until_ns, members)
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
    return _compared(seen.tobytes(), from_ns, until_ns, members)


def _compared(
    packed: bytes, from_ns: int, until_ns: int, members: Mapping[int, int] | None
) -> Compared:
    n_compared, late, n_unsure, unsure_ns = _native.late_ranks(
        packed, from_ns, until_ns, dict(members or {})
    )
    return Compared(n_compared, tuple(LateRank(*its) for its in late), n_unsure, unsure_ns)
