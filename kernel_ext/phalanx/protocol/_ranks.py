"""Sets of ranks as both sides write them.

Pure text and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["format_ranks", "name_ranks"]


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
