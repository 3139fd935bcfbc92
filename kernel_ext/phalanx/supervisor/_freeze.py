"""Ranks that live and do nothing: stopped by a signal, a debugger, or with their whole machine.

It knows the counts of ranks' hearts and the clock, and asks its user for an explanation; what
follows from a freeze is its user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["FreezeWatch"]

# Four beats of a heart (native/transport/heart.hpp): less is no silence on a busy machine, unless
# the kernel says that the process is stopped.
LEAST_SILENCE_S = 1.0
# The most that counts between two looks: a supervisor that was stopped itself, or whose machine
# slept, knows nothing of that time.
MOST_STEP_S = 0.5


@dataclass
class _Silence:
    """What is known of one rank: its last count, and for how long it has stayed that."""

    beats: int
    lasts_s: float = 0.0


class FreezeWatch:
    """Tells at each look of each rank whose heart has not beaten for ``limit_s``, and why.

    A rank without a heart (its count is 0: it has not joined, or has left) is never told of, and
    one that beats again is as good as any. A rank that computes, also one that holds Python's
    lock in foreign code for minutes, beats.

    Parameters
    ----------
    limit_s : float
        The silence limit.
    is_stopped : callable
        Whether the kernel says that this rank's process is stopped; asked of silent ones.
    on_frozen : callable
        Gets the rank and the reason in words.
    """

    def __init__(
        self,
        limit_s: float,
        is_stopped: Callable[[int], bool],
        on_frozen: Callable[[int, str], None],
    ) -> None:
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._on_frozen = on_frozen
        self._looked_s: float | None = None
        self._ranks: dict[int, _Silence] = {}

    def look(self, beats: Mapping[int, int], now_s: float) -> None:
        """Take the counts of the ranks that are watched now."""
        step_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, MOST_STEP_S)
        self._looked_s = now_s
        known, self._ranks = self._ranks, {}
        for rank, count in beats.items():
            before = known.get(rank)
            is_silent = before is not None and count == before.beats
            lasts_s = before.lasts_s + step_s if is_silent and before is not None else 0.0
            self._ranks[rank] = _Silence(count, lasts_s)
            if count and is_silent and lasts_s >= self._limit_s:
                self._judge(rank, lasts_s)

    def _judge(self, rank: int, lasts_s: float) -> None:
        if self._is_stopped(rank):
            self._on_frozen(rank, f"has been stopped (frozen) for {self._limit_s:g} s")
        elif lasts_s >= LEAST_SILENCE_S:
            limit_s = max(self._limit_s, LEAST_SILENCE_S)
            self._on_frozen(rank, f"has given no sign of life for {limit_s:g} s (frozen)")
