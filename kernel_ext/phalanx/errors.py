"""The exceptions that every room may raise, and how they are named to a user.

A leaf: it imports nothing of phalanx. The native engine raises these very classes.
"""

from __future__ import annotations

import builtins
from typing import NamedTuple

__all__ = [
    "CellError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "DistributedError",
    "NotConfigured",
    "NotSupported",
    "RankFailure",
    "cell_error",
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


Failures = dict[int, tuple[str, str, tuple[str, ...]]]


class CellError(DistributedError):
    """A cell ended in an error on one or more ranks.

    What it shows begins with the root cause: errors of the ranks' own code come before those of
    ranks that were only freed from an operation by them, and these are told in one line.

    Parameters
    ----------
    failures : dict of int to (str, str, tuple of str)
        By rank: the error's name, its text, and IPython's traceback, line by line.

    Examples
    --------
    >>> print(CellError({0: ("ValueError", "no", ()), 1: ("ValueError", "no", ())}))
    ranks 0-1: ValueError: no
    >>> print(CellError({rank: ("KeyError", "'x'", ()) for rank in (0, 2, 3)}))
    ranks 0,2-3: KeyError: 'x'
    """

    def __init__(self, failures: Failures) -> None:
        super().__init__(failures)
        self.failures = failures

    def _groups(self) -> list[_Group]:
        """Equal errors together, in the order of their first rank."""
        groups: dict[tuple[str, str], _Group] = {}
        for rank, (ename, evalue, traceback) in sorted(self.failures.items()):
            group = groups.setdefault((ename, evalue), _Group([], ename, evalue, traceback))
            group.ranks.append(rank)
        return list(groups.values())

    def causes(self) -> list[_Group]:
        """Errors that are nobody else's consequence."""
        groups = self._groups()
        own = [group for group in groups if group.ename not in _FOLLOWING]
        return own or groups

    def followers(self) -> list[_Group]:
        """Errors of ranks that only waited for one that failed."""
        causes = self.causes()
        return [group for group in self._groups() if group not in causes]

    def __str__(self) -> str:
        """One line an error, with its ranks; the cause first."""
        lines = [group.line() for group in self.causes()]
        return "\n".join([*lines, *(f"then {group.line()}" for group in self.followers())])

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of our own frames: the ranks' tracebacks, each once."""
        lines = []
        for group in self.causes():
            lines.append(f"{_ranks(group.ranks)}:")
            lines.extend(group.traceback or (f"{group.ename}: {group.evalue}",))
        lines.extend(f"then {group.line()}" for group in self.followers())
        return lines


# What an operation raises on a rank that did nothing wrong itself.
_FOLLOWING = frozenset({"RankFailure", "DistributedError", "KeyboardInterrupt"})


class _Group(NamedTuple):
    """An error and the ranks that ended in it."""

    ranks: list[int]
    ename: str
    evalue: str
    traceback: tuple[str, ...]

    def line(self) -> str:
        text = f": {self.evalue}" if self.evalue else ""
        return f"{_ranks(self.ranks)}: {self.ename}{text}"


def cell_error(failures: Failures) -> CellError:
    """Make the error a cell ends in: a `CellError` that is also of the cause's own type.

    So ``except ZeroDivisionError`` around a cell works, where all causes are one built-in type
    that can be combined (Python forbids some, like `OSError`) or one of ours.

    Parameters
    ----------
    failures : dict of int to (str, str, tuple of str)
        As for `CellError`.

    Returns
    -------
    CellError
        Of both types where that can be.

    Examples
    --------
    >>> isinstance(cell_error({1: ("KeyError", "'x'", ())}), KeyError)
    True
    """
    error = CellError(failures)
    names = {group.ename for group in error.causes()}
    name = names.pop() if len(names) == 1 else ""
    kind = getattr(builtins, name, None) or globals().get(name)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return error
    if issubclass(kind, RankFailure | CellError):
        return error
    try:
        both = type(name, (CellError, kind), {"__module__": kind.__module__})
        made: CellError = both(failures)
    except TypeError:  # the two have no common layout
        return error
    return made


def _ranks(ranks: list[int]) -> str:
    """Write ranks the short way; here, as this leaf may not ask another (`name_ranks`)."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    text = ",".join("-".join(map(str, run)) for run in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
