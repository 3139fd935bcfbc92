"""What a client that comes later is to know of the ranks, and to have for those that are new.

Pure state but for the clock; how the ranks die and return is others' business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from phalanx.protocol import KeepCell, RankDeath, RankReturn, Settled

__all__ = ["Missed"]


class Missed:
    """Deaths and returns that no client has dealt with yet, and the cells of every start.

    Examples
    --------
    >>> missed = Missed(clock=iter((10.0, 20.0)).__next__)
    >>> missed.lose(2, "killed")
    >>> missed.revive(2, "its engine")
    >>> [(its.rank, its.reason, its.died_at, its.replaced_at) for its in missed.returns]
    [(2, 'killed', 10.0, 20.0)]
    >>> missed.settle(Settled(("its engine",)))
    >>> missed.returns
    ()
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._died: dict[int, tuple[float, str]] = {}
        self._returns: list[RankReturn] = []
        self._kept: dict[str, tuple[int, ...] | None] = {}

    def lose(self, rank: int, reason: str) -> None:
        """Note a rank's death."""
        self._died.setdefault(rank, (self._clock(), reason))

    def revive(self, rank: int, engine: str) -> None:
        """Note that a dead rank was replaced."""
        died_at, reason = self._died.pop(rank)
        self._returns.append(RankReturn(rank, engine, reason, died_at, self._clock()))

    def settle(self, settled: Settled) -> None:
        """Note that new ranks are as far as the others: what led to it is past."""
        ranks = {its.rank for its in self._returns if its.engine in settled.engines}
        self._returns = [its for its in self._returns if its.rank not in ranks]

    def keep(self, cell: KeepCell) -> None:
        """Keep a cell of every start."""
        self._kept.pop(cell.code, None)
        self._kept[cell.code] = cell.ranks

    def deaths(
        self, dead: Mapping[int, str], host_of: Callable[[int], str]
    ) -> tuple[RankDeath, ...]:
        """Return who is dead now, where, and since when; ``dead`` says why."""
        return tuple(
            RankDeath(rank, host_of(rank), reason, self._died[rank][0])
            for rank, reason in dead.items()
        )

    @property
    def returns(self) -> tuple[RankReturn, ...]:
        """The returns of ranks that no client has settled."""
        return tuple(self._returns)

    @property
    def every_start(self) -> tuple[KeepCell, ...]:
        """The cells that were kept."""
        return tuple(KeepCell(code, ranks) for code, ranks in self._kept.items())
