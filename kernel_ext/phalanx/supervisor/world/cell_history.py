"""Record the cells of a world.

The record: which ranks run a cell, when, and with which result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from phalanx.protocol import (
    CellEnded,
    CellStatus,
    CellTime,
    LineNeed,
    LineNotNeeded,
    TypedLine,
    TypeLine,
)

KEPT_NS = 2_000_000_000  # six samples: a client that misses some still gets the end of each cell


class _Cell(NamedTuple):
    """One cell: its times, and how its ranks ended it.

    ``time`` has a rank's end also if the rank has died, and ``ends`` has not. ``replaced`` are
    ranks that had died in the cell and live again.
    """

    time: CellTime
    ends: dict[int, CellEnded]
    replaced: set[int]

    @property
    def running(self) -> set[int]:
        return set(self.time.ranks) - self.time.ended_ns.keys()


class CellHistory:
    """Record the running cells and those that ended last.

    Examples
    --------
    >>> cells = CellHistory(iter(range(100)).__next__)
    >>> cells.begin("a", (0, 1))
    >>> cells.end(0, CellEnded("a", ok=True))
    >>> cells.busy, [[*cell.ended] for cell in cells.statuses()]
    ({1}, [[0]])
    >>> cells.recent()
    (CellTime(cell='a', begun_ns=1, ranks=(0, 1), ended_ns={0: 2}, title=''),)
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._running: dict[str, _Cell] = {}
        self._over: dict[str, _Cell] = {}  # in the order of their ends
        self._last = ""  # the cell that ended last, if none has begun since
        self.begun: dict[int, str] = {}  # the cell that each rank began last
        self.is_end_seen = True  # whether the owner knows of the end of the last cell
        self._typed: dict[str, list[TypedLine]] = {}  # by cell
        self._needs: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command

    def begin(self, cell: str, ranks: tuple[int, ...], title: str = "") -> None:
        """Record a cell that these ranks get."""
        self.is_end_seen = True
        self._last = ""
        self._forget_old()
        self._running[cell] = _Cell(CellTime(cell, self._clock(), ranks, {}, title), {}, set())
        self._look(cell)

    def forget(self, cell: str) -> bool:
        """Drop a cell that was never sent; whether it was running."""
        if self._over.pop(cell, None) is not None and cell == self._last:
            self._last = ""
        return self._running.pop(cell, None) is not None

    def end(self, rank: int, end: CellEnded) -> None:
        its = self._running.get(end.cell) or self._over.get(end.cell)
        if its is not None:
            its.ends[rank] = end
            self._end_part(rank, its)

    def lose(self, rank: int) -> None:
        """Record that a rank has died: its parts are over."""
        for its in tuple(self._running.values()):
            self._end_part(rank, its)

    def _end_part(self, rank: int, its: _Cell) -> None:
        if rank in its.time.ranks:
            its.time.ended_ns.setdefault(rank, self._clock())
        self._look(its.time.cell)

    def _look(self, cell: str) -> None:
        if cell in self._running and not self._running[cell].running:
            self._over[cell] = self._running.pop(cell)
            self._last = cell

    def revive(self, rank: int) -> None:
        """Record that a new process has a rank, which runs no cell."""
        self.begun.pop(rank, None)
        for its in self._all():
            its.replaced.add(rank)

    def _all(self) -> Iterator[_Cell]:
        yield from self._over.values()
        yield from self._running.values()

    # -- what runs ----------------------------------------------------------------------------

    @property
    def newest(self) -> str:
        """Return the running cell that began last; "" for none."""
        return next(reversed(self._running), "")

    @property
    def busy(self) -> set[int]:
        return set().union(*(its.running for its in self._running.values()))

    def running_on(self, cell: str) -> set[int]:
        its = self._running.get(cell)
        return set() if its is None else its.running

    def title_on(self, rank: int) -> tuple[str, float]:
        """Return title and seconds so far of a rank's cell.

        Returns ``("", 0.0)`` for a rank that runs no cell.
        """
        for its in reversed(self._running.values()):
            if rank in its.running:
                return its.time.title, (self._clock() - its.time.begun_ns) / 1e9
        return "", 0.0

    def recent(self) -> tuple[CellTime, ...]:
        """Return the running cells and those that ended less than `KEPT_NS` ago."""
        self._forget_old()
        oldest = self._clock() - KEPT_NS
        times = (its.time for its in self._all() if its.running or _end_ns(its) >= oldest)
        return tuple(sorted(times, key=lambda its: its.begun_ns))

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_NS
        while self._over:
            cell, its = next(iter(self._over.items()))
            if cell == self._last or _end_ns(its) >= oldest:
                return
            del self._over[cell]

    # -- for a client that attaches -----------------------------------------------------------

    def type_line(self, order: TypeLine) -> None:
        if order.cell in self._running:
            self._typed = {order.cell: [*self._typed.get(order.cell, ()), order.entry]}

    def ask_line(self, rank: int, news: LineNeed | LineNotNeeded) -> None:
        if isinstance(news, LineNeed):
            self._needs[rank, news.is_command] = news
        else:
            self._needs.pop((rank, False), None)

    def statuses(self) -> tuple[CellStatus, ...]:
        """Return the running cells, and the last until its end is seen.

        A rank that was replaced is left out: the successor runs no cell.
        """
        last = [self._over[self._last]] if self._last and not self.is_end_seen else []
        return tuple(
            CellStatus(
                its.time.cell,
                tuple(r for r in its.time.ranks if r in its.ends or r not in its.replaced),
                dict(its.ends),
                tuple(self._typed.get(its.time.cell, ())),
                tuple(
                    (rank, need)
                    for (rank, _), need in self._needs.items()
                    if need.cell == its.time.cell and rank not in its.ends
                ),
            )
            for its in (*last, *self._running.values())
        )


def _end_ns(its: _Cell) -> int:
    return max(its.time.ended_ns.values(), default=its.time.begun_ns)
