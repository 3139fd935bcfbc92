"""The exceptions that every room may raise, and how they are named to a user.

A leaf: it imports nothing of phalanx. The native engine raises these very classes.
"""

from __future__ import annotations

__all__ = [
    "CollectiveMismatch",
    "CollectiveTimeout",
    "DistributedError",
    "NotConfigured",
    "NotSupported",
    "RankFailure",
]


class DistributedError(RuntimeError):
    """Base of everything that can go wrong between ranks."""


class RankFailure(DistributedError, ConnectionError):
    """A rank died, froze or left, so an operation with it cannot complete.

    Parameters
    ----------
    rank : int
        The rank that was lost; -1 if it cannot be told.
    host : str
        The host it ran on.
    reason : str
        What is known: signal, exit status, silence, closed link.

    Examples
    --------
    >>> str(RankFailure(2, "node7", "killed by signal 9 (SIGKILL)"))
    'rank 2 on node7: killed by signal 9 (SIGKILL)'
    """

    def __init__(self, rank: int, host: str, reason: str) -> None:
        super().__init__(rank, host, reason)
        self.rank = rank
        self.host = host
        self.reason = reason

    def __str__(self) -> str:
        """One line: who, where, why."""
        who = f"rank {self.rank}" if self.rank >= 0 else "a rank"
        where = f" on {self.host}" if self.host else ""
        return f"{who}{where}: {self.reason}"


class CollectiveTimeout(DistributedError, TimeoutError):
    """A deadline passed before every rank had come; the text names the missing."""


class CollectiveMismatch(DistributedError, ValueError):
    """Ranks called different operations, dtypes, shapes or roots; the text names both calls."""


class NotConfigured(DistributedError):
    """`init(strict=True)` was called outside any world."""


class NotSupported(DistributedError):
    """The engine cannot do this for such an array or group; the text says what can."""
