"""Keep the state of each rank: starting, alive, lost or being replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RESTARTED = "is being restarted"  # why a rank is dead during its restart


@dataclass(frozen=True)
class LossRecord:
    """Death of a rank: its cause, and the time (`time.time`)."""

    reason: str
    at_s: float


class RankDirectory:
    """Keep the state of each rank: starting, alive, lost or being replaced.

    A lost rank keeps its number; it is alive again once a new process has it. `dead` has the ranks
    that are being replaced as well.

    Examples
    --------
    >>> ranks = RankDirectory(2, clock=lambda: 10.0)
    >>> ranks.subscribe(lost=lambda rank: print("lost", rank))
    >>> ranks.mark_lost(1, "killed")
    lost 1
    >>> ranks.mark_replacing(1)
    >>> ranks.dead, ranks.loss(1)
    ({1: 'is being restarted'}, LossRecord(reason='killed', at_s=10.0))
    >>> ranks.mark_alive(1)
    >>> ranks.dead
    {}
    """

    def __init__(self, size: int, clock: Callable[[], float] = time.time) -> None:
        self.size = size
        self._clock = clock
        self._ready: set[int] = set()
        self._replaced: set[int] = set()
        self._losses: dict[int, LossRecord] = {}
        self._dead: dict[int, str] = {}
        self._on_lost: list[Callable[[int], None]] = []
        self._on_alive: list[Callable[[int], None]] = []

    def subscribe(
        self,
        *,
        lost: Callable[[int], None] | None = None,
        alive: Callable[[int], None] | None = None,
    ) -> None:
        """Call ``lost(rank)`` and ``alive(rank)`` after each such change."""
        self._on_lost += [lost] if lost is not None else []
        self._on_alive += [alive] if alive is not None else []

    @property
    def dead(self) -> Mapping[int, str]:
        """Return the lost ranks, each with the newest reason."""
        return self._dead

    def loss(self, rank: int) -> LossRecord:
        return self._losses[rank]

    def is_ready(self, rank: int) -> bool:
        """Whether the rank's first process has started."""
        return rank in self._ready

    @property
    def are_ready(self) -> bool:
        """Whether the first processes of all ranks have started."""
        return len(self._ready) == self.size

    def is_replacement(self, rank: int) -> bool:
        """Whether the current process of this rank is not its first."""
        return rank in self._replaced

    def mark_ready(self, rank: int) -> None:
        self._ready.add(rank)

    def mark_lost(self, rank: int, reason: str, consequence: str = "") -> None:
        """Record the death of a rank.

        ``consequence`` is added to the reason while the rank is dead.
        """
        self._losses.setdefault(rank, LossRecord(reason, self._clock()))
        self._dead[rank] = f"{reason}; {consequence}" if consequence else reason
        for tell in self._on_lost:
            tell(rank)

    def mark_replacing(self, rank: int) -> None:
        self._replaced.add(rank)
        self._losses.setdefault(rank, LossRecord(RESTARTED, self._clock()))
        self._dead[rank] = RESTARTED

    def mark_not_replaced(self, rank: int, reason: str) -> None:
        self._dead[rank] = reason

    def mark_alive(self, rank: int) -> None:
        del self._dead[rank], self._losses[rank]
        for tell in self._on_alive:
            tell(rank)
