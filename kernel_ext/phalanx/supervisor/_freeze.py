"""Ranks that live and do nothing: stopped by a signal or a debugger.

It knows processes' states as the kernel tells them, and the clock; what follows is its user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["FreezeWatch", "is_stopped"]


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (Linux; elsewhere and for one that is gone, False)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # "pid (name) state ...": the name may hold anything, also brackets.
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}


class FreezeWatch:
    """Tells once of each rank that has been stopped for ``limit_s``; thawed ones are forgotten."""

    def __init__(self, limit_s: float, on_frozen: Callable[[int], None]) -> None:
        self._limit_s = limit_s
        self._on_frozen = on_frozen
        self._since_s: dict[int, float] = {}
        self._told: set[int] = set()

    def look(self, stopped: Mapping[int, bool], now_s: float) -> None:
        """Take the ranks' states as of now."""
        for rank, is_now in stopped.items():
            if not is_now:
                self._since_s.pop(rank, None)
                self._told.discard(rank)
            elif now_s - self._since_s.setdefault(rank, now_s) >= self._limit_s:
                self._tell(rank)

    def _tell(self, rank: int) -> None:
        if rank not in self._told:
            self._told.add(rank)
            self._on_frozen(rank)
