"""One log of typed lines for a cell, and when to ask for the next.

Pure: ranks' needs and the clock in, questions and answers out. It knows no front end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Question", "Questions"]

GRACE_S = 0.03  # ranks that ask the same thing come together within this time


@dataclass(frozen=True)
class Question:
    """The next line of the log, to be typed by a person, and the ranks that wait for it."""

    index: int
    ranks: tuple[int, ...]
    prompt: str
    password: bool


class Questions:
    """Collects the needs of ranks and turns them into one question at a time."""

    def __init__(self) -> None:
        self._n_answered = 0
        self._needs: dict[int, tuple[str, bool]] = {}  # rank -> prompt, password
        self._first_need_s = 0.0

    def need(self, rank: int, index: int, prompt: str, password: bool, now_s: float) -> None:
        """Note that a rank waits for line ``index``."""
        if index < self._n_answered:
            return  # typed meanwhile: the line is on its way to that rank
        if not self._needs:
            self._first_need_s = now_s
        self._needs[rank] = (prompt, password)

    def forget(self, rank: int) -> None:
        """Drop the need of a rank that is done or gone."""
        self._needs.pop(rank, None)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait for a line."""
        return tuple(sorted(self._needs))

    def due(self, running: Collection[int], now_s: float) -> Question | None:
        """Return the question to ask now: all that run wait for it, or the grace is over."""
        if not self._needs:
            return None
        if set(running) - set(self._needs) and now_s - self._first_need_s < GRACE_S:
            return None
        ranks = self.waiting
        prompt, _ = self._needs[ranks[0]]
        # One secret among the prompts and nothing is shown.
        password = any(hidden for _, hidden in self._needs.values())
        return Question(self._n_answered, ranks, prompt, password)

    def answered(self) -> None:
        """The open question was answered: its line is in the log for every rank."""
        self._n_answered += 1
        self._needs.clear()
