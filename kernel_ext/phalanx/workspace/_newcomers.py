"""Ranks that were replaced, until they are as far as the others; and the cells they begin with.

State only: what is sent to them is the runner's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["EveryStart", "Newcomer", "Newcomers", "Wish"]


@dataclass(frozen=True)
class Wish:
    """What a replaced rank is to have: the names of ``copy_from``, the cells of every start.

    ``is_asked``: a person has asked for it, and need not be told of it.
    """

    copy_from: int | None = None
    init: bool = True
    is_asked: bool = True


@dataclass(frozen=True)
class Newcomer:
    """A rank that was replaced; ``reason`` is how the one before it went."""

    rank: int
    engine: str
    reason: str
    wish: Wish


class Newcomers:
    """Who is new, and what was asked for them; news come on the socket thread, one lock.

    A newcomer is *absent* until it has answered and has met the others, and then *unprepared*
    until its names and cells are there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: dict[int, list[Wish]] = {}  # of several who ask, the first counts
        self._absent: dict[int, Newcomer] = {}
        self._unprepared: dict[int, Newcomer] = {}

    def wish(self, ranks: Iterable[int], wish: Wish) -> None:
        """Note what these ranks are to have once they are replaced."""
        with self._lock:
            for rank in ranks:
                self._wishes.setdefault(rank, []).append(wish)

    def unwish(self, ranks: Iterable[int], wish: Wish) -> None:
        """Forget what `wish` has noted: who asked is answered."""
        with self._lock:
            for rank in ranks:
                self._wishes[rank] = [other for other in self._wishes[rank] if other is not wish]

    def add(self, rank: int, engine: str, reason: str, *, is_told: bool = False) -> None:
        """Take in a rank that was replaced; ``is_told``: a person knows of it."""
        with self._lock:
            wishes = self._wishes.get(rank) or [Wish(is_asked=is_told)]
            newcomer = Newcomer(rank, engine, reason, wishes[0])
            self._absent[rank] = self._unprepared[rank] = newcomer

    def lose(self, rank: int) -> None:
        """Forget one that has died."""
        with self._lock:
            self._absent.pop(rank, None)
            self._unprepared.pop(rank, None)

    @property
    def absent(self) -> set[int]:
        """Ranks that have not met the others yet."""
        with self._lock:
            return set(self._absent)

    def met(self, ranks: Iterable[int]) -> None:
        """Note that these ranks are in the world, or have been told who they are."""
        with self._lock:
            for rank in ranks:
                self._absent.pop(rank, None)

    def take(self) -> list[Newcomer]:
        """Return those to be prepared, once."""
        with self._lock:
            taken, self._unprepared = self._unprepared, {}
            return [taken[rank] for rank in sorted(taken)]

    def __bool__(self) -> bool:
        """Whether anybody is new."""
        return bool(self._absent or self._unprepared)


class EveryStart:
    """Cells that a new rank runs before any other, in their order; the same text only once.

    Examples
    --------
    >>> cells = EveryStart()
    >>> for code in ("a = 1", "b = 2", "a = 1"): cells.add(code, None)
    >>> cells.add("c = 3", (0,))
    >>> cells.of(1)
    ['b = 2', 'a = 1']
    """

    def __init__(self) -> None:
        self._cells: dict[str, tuple[int, ...] | None] = {}

    def add(self, code: str, ranks: tuple[int, ...] | None) -> None:
        """Keep a cell for ``ranks`` (None: for all)."""
        self._cells.pop(code, None)
        self._cells[code] = ranks

    def of_all(self) -> list[str]:
        """Return all cells."""
        return list(self._cells)

    def of(self, rank: int) -> list[str]:
        """Return the cells of a rank."""
        return [code for code, ranks in self._cells.items() if ranks is None or rank in ranks]
