"""Ranks that were replaced, until they are as far as the others; and the cells they begin with.

State only: what is sent to them is the runner's.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from phalanx.protocol import Replaced

from ._ranks import name_ranks

__all__ = [
    "EveryStart",
    "Newcomer",
    "Newcomers",
    "Wish",
    "say_copied",
    "say_failed",
    "say_lost",
    "say_replaced",
    "say_unasked",
    "say_without",
]


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
    reason: str
    wish: Wish


class Newcomers:
    """Who is new, and what was asked for them; news come on the socket thread, one lock.

    A newcomer is *absent* until it has answered and has met the others, and then *unprepared*
    until its names and cells are there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: dict[int, Wish] = {}
        self._absent: dict[int, Newcomer] = {}
        self._unprepared: dict[int, Newcomer] = {}

    def wish(self, ranks: Iterable[int], wish: Wish) -> None:
        """Note what these ranks are to have once they are replaced."""
        with self._lock:
            self._wishes.update(dict.fromkeys(ranks, wish))

    def unwish(self, ranks: Iterable[int]) -> None:
        """Forget what was noted for ranks that were not replaced."""
        with self._lock:
            for rank in ranks:
                self._wishes.pop(rank, None)

    def add(self, news: Replaced) -> None:
        """Take in a rank that was replaced."""
        with self._lock:
            wish = self._wishes.pop(news.rank, Wish(is_asked=False))
            newcomer = Newcomer(news.rank, news.reason, wish)
            self._absent[news.rank] = self._unprepared[news.rank] = newcomer

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


def say_lost(rank: int, reason: str, *, will_return: bool) -> str:
    """Say in one line that a rank is gone, and what to do.

    Examples
    --------
    >>> say_lost(2, "killed by signal 9 (SIGKILL)", will_return=False)
    'rank 2 was killed by signal 9 (SIGKILL); `%distributed restart 2` replaces it'
    """
    was = "was " if reason.startswith("killed") else ""
    if reason.startswith("is being"):
        after = ""
    elif will_return:
        after = "; it is being replaced"
    else:
        after = f"; `%distributed restart {rank}` replaces it"
    return f"rank {rank} {was}{reason}{after}"


def say_without(dead: Mapping[int, str]) -> str:
    """Say in one line that a cell runs without the dead, and what to do."""
    lost = "; ".join(say_lost(rank, why, will_return=False) for rank, why in dead.items())
    return f"running without {lost}"


def say_failed(failed: Mapping[int, str]) -> str:
    """Say why ranks were not replaced."""
    return f"not replaced: {'; '.join(f'rank {rank} {why}' for rank, why in failed.items())}"


def say_unasked(rank: int, reason: str) -> str:
    """Say in one line that a rank was replaced by itself.

    Examples
    --------
    >>> say_unasked(2, "exited with status 1")
    'rank 2 is new, without the variables of the one before, which exited with status 1'
    """
    was = "was " if reason.startswith("killed") else ""
    return f"rank {rank} is new, without the variables of the one before, which {was}{reason}"


def say_copied(source: int, ranks: Collection[int], copied: int, problems: dict[str, str]) -> str:
    """Say in one line what became of the names that were copied.

    Examples
    --------
    >>> say_copied(0, (2,), 5, {"lock": "cannot pickle", "f": "cannot pickle"})
    'rank 2 has 5 names of rank 0; not copied: lock, f (cannot pickle)'
    """
    have = "has" if len(ranks) == 1 else "have"
    names = "1 name" if copied == 1 else f"{copied} names"
    text = f"{name_ranks(sorted(ranks))} {have} {names} of rank {source}"
    by_reason: dict[str, list[str]] = {}
    for name, why in problems.items():
        by_reason.setdefault(why, []).append(name)
    if by_reason:
        text += "; not copied: "
        text += "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
    return text


def say_replaced(ranks: Collection[int], size: int) -> str:
    """Say in one line which ranks are new, and what the others have.

    Examples
    --------
    >>> say_replaced((2,), 4)
    'rank 2 is new; ranks 0-1,3 have all they had'
    """
    text = f"{name_ranks(sorted(ranks))} {'is' if len(ranks) == 1 else 'are'} new"
    others = sorted(set(range(size)) - set(ranks))
    have = "has all it had" if len(others) == 1 else "have all they had"
    return f"{text}; {name_ranks(others)} {have}" if others else text
