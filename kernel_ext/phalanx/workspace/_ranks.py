"""Sets of ranks as users write and read them: ``0,2-3``.

Pure text and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["format_ranks", "name_ranks", "parse_ranks"]


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


def format_ranks(ranks: Iterable[int]) -> str:
    """Write ranks the short way.

    Examples
    --------
    >>> format_ranks([3, 0, 2]), format_ranks([5])
    ('0,2-3', '5')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def name_ranks(ranks: Iterable[int]) -> str:
    """Write ranks in a sentence.

    Examples
    --------
    >>> name_ranks([2]), name_ranks([0, 1])
    ('rank 2', 'ranks 0-1')
    """
    known = set(ranks)
    return f"rank{'' if len(known) == 1 else 's'} {format_ranks(known)}"
