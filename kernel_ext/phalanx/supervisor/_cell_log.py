"""Which cells were announced and how they ended, for a client that comes later than the cell.

Pure state, beside the `World`, which only keeps what holds the ranks up.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.protocol import CellEnded, CellStanding

from ._cell_times import CellTimes

__all__ = ["CellLog"]


class CellLog:
    r"""The cells that some rank has not ended, and the last one that all have.

    Examples
    --------
    >>> log = CellLog()
    >>> log.begin("a", (0, 1), {0: 0, 1: 0})
    >>> log.end(0, CellEnded("a", ok=True))
    >>> [cell.ended for cell in log.standing(has_seen_all=True)]
    [{0: ''}]
    """

    def __init__(self) -> None:
        self.times = CellTimes()
        self._cells: dict[str, tuple[tuple[int, ...], dict[int, str]]] = {}
        self._since: dict[str, Mapping[int, int]] = {}  # as `CellStanding.since`
        self._dead: set[int] = set()
        self._last = ""  # the cell that was the last to be over

    def begin(self, cell: str, ranks: tuple[int, ...], since: Mapping[int, int]) -> None:
        """Note a cell that is about to run."""
        self._cells.pop(self._last, None)
        self._last = ""
        self._cells[cell] = tuple(rank for rank in ranks if rank not in self._dead), {}
        self._since = {known: self._since[known] for known in self._cells if known in self._since}
        self._since[cell] = since
        self.times.begin(cell, self._cells[cell][0])

    def forget(self, cell: str) -> None:
        """Note that a cell was announced and never sent."""
        self._cells.pop(cell, None)
        self.times.forget(cell)

    def end(self, rank: int, notice: CellEnded) -> None:
        """Note how a rank's part of a cell ended."""
        self.times.end(notice.cell, rank)
        if notice.cell in self._cells:
            said = notice.error or "an error"
            self._cells[notice.cell][1][rank] = "" if notice.ok else said
            self._look(notice.cell)

    def lose(self, rank: int) -> None:
        """Note a rank's death; it ends no cell any more."""
        self._dead.add(rank)
        self.times.lose(rank)
        for cell in list(self._cells):
            self._look(cell)

    def revive(self, rank: int) -> None:
        """Note that a dead rank was replaced: the new process runs none of the cells."""
        self._dead.discard(rank)
        for cell, (ranks, ended) in self._cells.items():
            if rank not in ended:
                self._cells[cell] = tuple(r for r in ranks if r != rank), ended

    def _look(self, cell: str) -> None:
        if cell != self._last and self._is_over(cell):
            self._cells.pop(self._last, None)
            self._last = cell

    def _is_over(self, cell: str) -> bool:
        ranks, ended = self._cells[cell]
        return not set(ranks) - ended.keys() - self._dead

    def standing(self, *, has_seen_all: bool) -> tuple[CellStanding, ...]:
        """Return the cells that run and, unless somebody has seen its end, the last one."""
        return tuple(
            CellStanding(cell, ranks, dict(ended), dict(self._since[cell]))
            for cell, (ranks, ended) in self._cells.items()
            if not (has_seen_all and self._is_over(cell))
        )
