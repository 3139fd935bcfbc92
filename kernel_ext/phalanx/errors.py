"""Define the exceptions of phalanx and their text for a user.

The native engine raises the same classes.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

Failures = dict[int, tuple[str, str, tuple[str, ...]]]
# Errors that an operation raises on a rank because another rank failed.
_FOLLOWING = frozenset({"RankFailure", "DistributedError", "KeyboardInterrupt"})

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_TEXT = re.compile(r"[\w.]+(?::|\s*$)")  # "ValueError: no"; a frame begins with two words

_NAME_ANOTHER = "name another place"
_NO_ROOM = f"make room there, or {_NAME_ANOTHER}"
_LIMITS = "raise a limit (ulimit -v, ulimit -u), or end other programs"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: "raise the limit (ulimit -f)",
    errno.EMFILE: "raise the limit (ulimit -n)",
    errno.EAGAIN: _LIMITS,
    errno.ENOMEM: _LIMITS,
    errno.ENOEXEC: "begin a script with #! and its interpreter",
    errno.EACCES: f"change its mode, or {_NAME_ANOTHER}",
}
_REMEDIES |= dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EROFS), _NAME_ANOTHER)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Name the known word nearest to a wrong one.

    If none is near, return ``otherwise``; by default all known words.

    Examples
    --------
    >>> did_you_mean("all_som", ["all_sum", "barrier"])
    'did you mean all_sum?'
    >>> did_you_mean("x", ["all_sum", "barrier"])
    'there are: all_sum, barrier'
    """
    import difflib  # imported late: 10 ms, and only mistakes need it

    known = list(known)
    near = difflib.get_close_matches(word, known, n=1) or difflib.get_close_matches(
        word.lower(), known, n=1
    )
    if near:
        return f"did you mean {near[0]}?"
    return otherwise or f"there are: {', '.join(known)}"


def is_refused(error: Exception) -> bool:
    """Whether the system has refused memory, a thread or a descriptor.

    Python reports a refused thread only as RuntimeError "can't start new thread".
    """
    is_thread = type(error) is RuntimeError and "new thread" in str(error)
    return isinstance(error, OSError | MemoryError) or is_thread


def say_refusal(error: Exception) -> str:
    """Say what the system refused, where, and what to do.

    Examples
    --------
    >>> say_refusal(OSError(errno.ENOSPC, "No space left on device", "logs"))
    'logs: No space left on device; make room there, or name another place'
    """
    number = getattr(error, "errno", None) or 0
    place = getattr(error, "filename", None)
    place = None if place is None else os.fsdecode(place)
    if number == errno.ENOENT and place is None:  # only the current folder has no name here
        return "the folder that you are in has been removed; cd to one that is there"
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    where = "" if place is None else f"{place}: "
    remedy = _REMEDIES.get(number, "") if number or isinstance(error, OSError) else _LIMITS
    if number == errno.ENOENT and place and Path(place).exists():  # the system names the script
        remedy = "is the interpreter there that its first line names?"
    return f"{where}{text}{f'; {remedy}' if remedy else ''}"


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in an error of its writing.

    The system names a file only if it cannot be opened.
    """
    try:
        yield
    except OSError as error:
        # FileExistsError and the like, by the number; the inner traceback adds nothing
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


class DistributedError(RuntimeError):
    """Base class of all errors between ranks."""


class RankFailure(DistributedError, ConnectionError):
    """A rank died, froze or left, so its operations cannot complete.

    Parameters
    ----------
    rank : int
        The lost rank; -1 if unknown.
    host : str
        The host of the rank.
    reason : str
        The known cause: signal, exit status, silence, closed link. Need not name the rank
        again.

    Examples
    --------
    >>> str(RankFailure(2, "node7", "killed by signal 9 (SIGKILL)"))
    'rank 2 on node7: killed by signal 9 (SIGKILL)'
    >>> str(RankFailure(0, "node7", "rank 0 closed the group; rank 1 was in all_sum #2"))
    'rank 0 on node7: closed the group; rank 1 was in all_sum #2'
    """

    def __init__(self, rank: int, host: str, reason: str) -> None:
        reason = reason.removeprefix(f"rank {rank} ")
        super().__init__(rank, host, reason)
        self.rank = rank
        self.host = host
        self.reason = reason

    def __str__(self) -> str:
        """Return one line with the rank, the host and the reason."""
        who = f"rank {self.rank}" if self.rank >= 0 else "a rank"
        where = f" on {self.host}" if self.host else ""
        return f"{who}{where}: {self.reason}"


class CollectiveTimeout(DistributedError, TimeoutError):
    """A deadline passed before every rank came; the text names missing ranks."""


class CollectiveMismatch(DistributedError, ValueError):
    """Ranks called different operations, dtypes, shapes or roots.

    The text names both calls.
    """


class NotConfigured(DistributedError):
    """`init(strict=True)` was called outside any world."""


class NotSupported(DistributedError):
    """The engine does not support such an array or group.

    The text names an alternative.
    """


class CellError(DistributedError):
    """A cell ended in an error on one or more ranks.

    The text begins with the root cause: errors of the ranks' own code come before errors of ranks
    that failed only because of them. The latter have one line each.

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
        """Group equal errors, in the order of their first rank."""
        groups: dict[tuple[str, str], _Group] = {}
        for rank, (ename, evalue, traceback) in sorted(self.failures.items()):
            group = groups.setdefault((ename, evalue), _Group([], ename, evalue, traceback))
            group.ranks.append(rank)
        return list(groups.values())

    def causes(self) -> list[_Group]:
        """Return the errors that no other rank's error has caused."""
        groups = self._groups()
        own = [group for group in groups if group.ename not in _FOLLOWING]
        return own or groups

    def followers(self) -> list[_Group]:
        """Return the errors of ranks that only waited for a failed rank."""
        causes = self.causes()
        return [group for group in self._groups() if group not in causes]

    def __str__(self) -> str:
        """Return one line per error with its ranks, the cause first."""
        lines = [group.line() for group in self.causes()]
        return "\n".join([*lines, *(f"then {group.line()}" for group in self.followers())])

    def _render_traceback_(self) -> list[str]:
        """Return one traceback of each kind of error for IPython to show.

        The traceback replaces our own frames. Errors of one type from one place are of one kind,
        whatever their texts are.
        """
        kinds: dict[tuple[str, tuple[str, ...]], list[_Group]] = {}
        for group in self.causes():
            kinds.setdefault((group.ename, group.place()), []).append(group)
        lines = []
        for first, *others in kinds.values():
            lines.append(f"{_ranks(first.ranks)}:")
            lines.extend(first.traceback or (f"{first.ename}: {first.evalue}",))
            lines.extend(_more_like_it(others))
        lines.extend(f"then {group.line()}" for group in self.followers())
        return lines


class _Group(NamedTuple):
    """An error and the ranks that ended in it."""

    ranks: list[int]
    ename: str
    evalue: str
    traceback: tuple[str, ...]

    def line(self) -> str:
        text = f": {self.evalue}" if self.evalue else ""
        return f"{_ranks(self.ranks)}: {self.ename}{text}"

    def place(self) -> tuple[str, ...]:
        """Return the traceback without error texts; a chain has several."""
        return tuple(part for part in self.traceback if not _TEXT.match(_COLOR.sub("", part)))


_MAX_MORE, _MAX_TEXT = 3, 200  # most texts beside a traceback, most characters of each


def _more_like_it(groups: list[_Group]) -> list[str]:
    """Name other ranks with the same error, and some of their texts.

    Examples
    --------
    >>> _more_like_it([_Group([rank], "ValueError", f"no {rank}", ()) for rank in (1, 2)])
    ['and 2 more like it:', '  rank 1: ValueError: no 1', '  rank 2: ValueError: no 2']
    """
    if not groups:
        return []
    shown = groups if len(groups) == _MAX_MORE + 1 else groups[:_MAX_MORE]
    lines = [f"and {sum(len(group.ranks) for group in groups)} more like it:"]
    for group in shown:
        text = group.line().partition("\n")[0]
        lines.append(f"  {text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + '…'}")
    rest = sorted(rank for group in groups[len(shown) :] for rank in group.ranks)
    if rest:
        lines.append(f"  {_ranks(rest)}: {groups[0].ename} with other texts")
    return lines


def cell_error(failures: Failures) -> CellError:
    """Make the `CellError` of a cell, also of the cause's own type.

    ``except ZeroDivisionError`` around a cell thus works. All causes must have one type: a built-in
    type that can be combined (Python forbids some, like `OSError`) or one of ours.

    Parameters
    ----------
    failures : dict of int to (str, str, tuple of str)
        As for `CellError`.

    Returns
    -------
    CellError
        Of both types if possible.

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
    """Write ranks in short form, as `name_ranks` does."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank])
    text = ",".join("-".join(map(str, run)) for run in runs)
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
