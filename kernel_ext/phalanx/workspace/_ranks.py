"""Sets of ranks as users write and read them: ``0,2-3``.

Pure text and numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from phalanx.protocol import format_ranks, name_ranks

__all__ = ["chosen_rank", "chosen_ranks", "format_ranks", "grouped", "name_ranks", "parse_ranks"]


def chosen_ranks(ranks: Any, size: int) -> tuple[int, ...] | None:
    """Check what a caller has named, one rank or several; None (all) stays None.

    Raises
    ------
    ValueError
        There is no such rank, or none at all.
    TypeError
        They are no numbers.
    """
    if ranks is None:
        return None
    several = ranks if isinstance(ranks, Iterable) and not isinstance(ranks, str) else (ranks,)
    try:
        chosen = tuple(sorted({operator.index(rank) for rank in several}))  # numpy's as well
    except TypeError:
        msg = f"ranks are a number or several, like 2 or [0, 2]; {ranks!r} is not"
        raise TypeError(msg) from None
    for rank in chosen:
        if not 0 <= rank < size:
            msg = f"there is no rank {rank}: the ranks are 0 to {size - 1}"
            raise ValueError(msg)
    if not chosen:
        msg = "no ranks to run on"
        raise ValueError(msg)
    return chosen


def chosen_rank(rank: Any, size: int) -> int:
    """Check a rank that a caller has named; likewise."""
    if rank is None or isinstance(rank, Iterable):
        msg = f"a rank is a number, like 2; {rank!r} is not"
        raise TypeError(msg)
    (chosen,) = chosen_ranks(rank, size) or ()
    return chosen


def grouped(texts: Mapping[int, str]) -> list[tuple[tuple[int, ...], str]]:
    """Equal texts once, with all of their ranks, by the first of them.

    Examples
    --------
    >>> grouped({0: "a", 1: "b", 2: "a"})
    [((0, 2), 'a'), ((1,), 'b')]
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        ranks.setdefault(text, []).append(rank)
    return [(tuple(of), text) for text, of in ranks.items()]


def parse_ranks(text: str, size: int) -> tuple[int, ...]:
    """Ranks named by ``text``, in order, each once.

    Raises
    ------
    ValueError
        The text is no list of ranks, or names one outside ``0 .. size - 1``.

    Examples
    --------
    >>> parse_ranks("0,2-3", 4)
    (0, 2, 3)
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            msg = f"ranks are written like 0,2-3; {text!r} is not"
            raise ValueError(msg) from None
        if high < low:
            msg = f"the ranks {part.strip()!r} run backwards; write {high}-{low}"
            raise ValueError(msg)
        for rank in (low, high):
            if not 0 <= rank < size:
                msg = f"there is no rank {rank}: the ranks are 0 to {size - 1}"
                raise ValueError(msg)
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))
