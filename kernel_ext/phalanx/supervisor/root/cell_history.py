"""Record which ranks ran a cell, when, and with which result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from phalanx.protocol import (
    CellEnded,
    CellStatus,
    CellTime,
    LineNeed,
    LineNotNeeded,
    TypedLine,
    TypeLine,
)

from ..membership import RankDirectory

KEPT_NS = 2_000_000_000  # six samples: a client that misses some still gets the end of each cell


class CellTimeline:
    """Record when each cell began and when each rank ended it.

    Examples
    --------
    >>> times = CellTimeline(iter(range(100)).__next__)
    >>> times.begin("a", (0, 1))
    >>> times.end("a", 1)
    >>> times.recent()
    (CellTime(cell='a', begun_ns=1, ranks=(0, 1), ended_ns={1: 2}, title=''),)
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._cells: dict[str, CellTime] = {}

    def begin(self, cell: str, ranks: Iterable[int], title: str = "") -> None:
        """Record that a cell begins now."""
        self._forget_old()
        self._cells[cell] = CellTime(cell, self._clock(), tuple(ranks), {}, title)

    def forget(self, cell: str) -> None:
        """Drop a cell that did not begin after all."""
        self._cells.pop(cell, None)

    def end(self, cell: str, rank: int) -> None:
        """Record that a rank has ended its part of a cell."""
        its = self._cells.get(cell)
        if its is not None and rank in its.ranks:
            its.ended_ns.setdefault(rank, self._clock())

    def end_all(self, rank: int) -> None:
        """Record that a rank has ended its part of every cell."""
        for cell in self._cells:
            self.end(cell, rank)

    def recent(self) -> tuple[CellTime, ...]:
        """Return the running cells and those that ended less than `KEPT_NS` ago."""
        self._forget_old()
        return tuple(self._cells.values())

    def running(self, rank: int) -> tuple[str, float]:
        """Return title and seconds so far of a rank's cell.

        Returns ``("", 0.0)`` for a rank that runs no cell.
        """
        for its in reversed(self._cells.values()):
            if rank in its.ranks and rank not in its.ended_ns:
                return its.title, (self._clock() - its.begun_ns) / 1e9
        return "", 0.0

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


class CellHistory:
    r"""Record the unfinished cells and the last cell that all ranks ended.

    Examples
    --------
    >>> log = CellHistory(RankDirectory(2))
    >>> log.begin("a", (0, 1))
    >>> log.end(0, CellEnded("a", ok=True))
    >>> [[*cell.ended] for cell in log.unfinished(has_seen_all=True)]
    [[0]]
    """

    def __init__(self, ranks: RankDirectory) -> None:
        self.times = CellTimeline()
        self._dead = ranks.dead
        ranks.subscribe(lost=self._on_lost, alive=self._on_alive)
        self._cells: dict[str, tuple[tuple[int, ...], dict[int, CellEnded]]] = {}
        self._last = ""  # the cell that ended last
        self.begun: dict[int, str] = {}  # the cell that each rank began last
        self._typed: dict[str, list[TypedLine]] = {}  # by cell
        self._needs: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command

    def begin(self, cell: str, ranks: tuple[int, ...], title: str = "") -> None:
        """Record a cell that is about to run."""
        self._cells.pop(self._last, None)
        self._last = ""
        self._cells[cell] = tuple(rank for rank in ranks if rank not in self._dead), {}
        self.times.begin(cell, self._cells[cell][0], title)

    def forget(self, cell: str) -> None:
        """Drop a cell that was announced and never sent."""
        self._cells.pop(cell, None)
        self.times.forget(cell)

    def end(self, rank: int, notice: CellEnded) -> None:
        """Record how a rank's part of a cell ended."""
        self.times.end(notice.cell, rank)
        if notice.cell in self._cells:
            self._cells[notice.cell][1][rank] = notice
            self._look(notice.cell)

    def type_line(self, order: TypeLine) -> None:
        """Record a line that was typed for a cell."""
        if order.cell in self._cells:
            self._typed = {order.cell: [*self._typed.get(order.cell, ()), order.entry]}

    def ask_line(self, rank: int, news: LineNeed | LineNotNeeded) -> None:
        """Record whether a rank waits for a line."""
        if isinstance(news, LineNeed):
            self._needs[rank, news.is_command] = news
        else:
            self._needs.pop((rank, False), None)

    def _on_lost(self, rank: int) -> None:
        self.times.end_all(rank)
        for cell in list(self._cells):
            self._look(cell)

    def _on_alive(self, rank: int) -> None:
        """Leave a rank out that was replaced: the successor runs no cell."""
        self.begun.pop(rank, None)
        for cell, (ranks, ended) in self._cells.items():
            if rank not in ended:
                self._cells[cell] = tuple(r for r in ranks if r != rank), ended

    def _look(self, cell: str) -> None:
        if cell != self._last and self._is_over(cell):
            self._cells.pop(self._last, None)
            self._last = cell

    def _is_over(self, cell: str) -> bool:
        ranks, ended = self._cells[cell]
        return not set(ranks) - ended.keys() - self._dead.keys()

    def unfinished(self, *, has_seen_all: bool) -> tuple[CellStatus, ...]:
        """Return the running cells, and the last until its end is seen."""
        return tuple(
            CellStatus(
                cell,
                ranks,
                dict(ended),
                tuple(self._typed.get(cell, ())),
                tuple(
                    (rank, need)
                    for (rank, _), need in self._needs.items()
                    if need.cell == cell and rank not in ended
                ),
            )
            for cell, (ranks, ended) in self._cells.items()
            if not (has_seen_all and self._is_over(cell))
        )
