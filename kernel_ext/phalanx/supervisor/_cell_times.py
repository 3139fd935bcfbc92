"""When cells began and ended on each rank, of those that run or were over a moment ago.

Pure but for the clock it is given; it knows nothing of how cells are announced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from phalanx.protocol import CellTime

__all__ = ["CellTimes"]

KEPT_NS = 2_000_000_000  # ten samples: a client that misses some still learns of every end


class CellTimes:
    """Notes the times of cells.

    Examples
    --------
    >>> times = CellTimes(iter(range(100)).__next__)
    >>> times.begin("a", (0, 1))
    >>> times.end("a", 1)
    >>> times.recent()
    (CellTime(cell='a', begun_ns=1, ranks=(0, 1), ended_ns={1: 2}),)
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._cells: dict[str, CellTime] = {}

    def begin(self, cell: str, ranks: Iterable[int]) -> None:
        """Note a cell that begins now."""
        self._forget_old()
        self._cells[cell] = CellTime(cell, self._clock(), tuple(ranks), {})

    def forget(self, cell: str) -> None:
        """Note that a cell has not begun after all."""
        self._cells.pop(cell, None)

    def end(self, cell: str, rank: int) -> None:
        """Note that a rank's part of a cell is over."""
        its = self._cells.get(cell)
        if its is not None and rank in its.ranks:
            its.ended_ns.setdefault(rank, self._clock())

    def lose(self, rank: int) -> None:
        """Note that a rank is gone, and its part of every cell with it."""
        for cell in self._cells:
            self.end(cell, rank)

    def recent(self) -> tuple[CellTime, ...]:
        """Return the cells that run, and those that were over a moment ago."""
        self._forget_old()
        return tuple(self._cells.values())

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_NS
        over = [
            cell
            for cell, its in self._cells.items()
            if len(its.ended_ns) == len(its.ranks)
            and max(its.ended_ns.values(), default=0) < oldest
        ]
        for cell in over:
            del self._cells[cell]
