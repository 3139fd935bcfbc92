"""The exceptions that every room may raise, and how they are named to a user.

A leaf: it imports nothing of phalanx. The native engine raises these very classes.
"""

from __future__ import annotations

__all__ = [
    "CellError",
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


class CellError(DistributedError):
    """A cell ended in an error on one or more ranks.

    Parameters
    ----------
    failures : dict of int to (str, str, tuple of str)
        By rank: the error's name, its text, and IPython's traceback, line by line.

    Examples
    --------
    >>> print(CellError({0: ("ValueError", "no", ()), 1: ("ValueError", "no", ())}))
    ranks 0-1: ValueError: no
    """

    def __init__(self, failures: dict[int, tuple[str, str, tuple[str, ...]]]) -> None:
        super().__init__(failures)
        self.failures = failures

    def _groups(self) -> list[tuple[list[int], str, str, tuple[str, ...]]]:
        """Equal errors together: (ranks, name, text, the first rank's traceback)."""
        groups: dict[tuple[str, str], tuple[list[int], str, str, tuple[str, ...]]] = {}
        for rank, (ename, evalue, traceback) in self.failures.items():
            group = groups.setdefault((ename, evalue), ([], ename, evalue, traceback))
            group[0].append(rank)
        return list(groups.values())

    def __str__(self) -> str:
        """One line an error, with its ranks."""
        return "\n".join(
            f"{_ranks(ranks)}: {ename}: {evalue}" if evalue else f"{_ranks(ranks)}: {ename}"
            for ranks, ename, evalue, _ in self._groups()
        )

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of our own frames: the ranks' tracebacks, each once."""
        lines = []
        for ranks, ename, evalue, traceback in self._groups():
            lines.append(f"{_ranks(ranks)}:")
            lines.extend(traceback or (f"{ename}: {evalue}",))
        return lines


def _ranks(ranks: list[int]) -> str:
    """Write ranks the short way; here, as a leaf may not ask the workspace."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {','.join(map(str, ranks))}"
