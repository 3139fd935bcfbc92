"""Bring replaced ranks to the state of the others.

`prepare` copies names to replaced ranks, and runs the cells of `%%distributed --every-start` there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from phalanx.errors import DistributedError
from phalanx.protocol import CopyNames, GiveCopyReport, RankCall, RankTask, name_ranks

from ..output.notices import say_copied, say_unasked
from ..output.view import QuietView, View
from .cell import PresenceProbe
from .dispatch import Dispatch

PING_INTERVAL_S = 0.1


@dataclass(frozen=True)
class RestartOptions:
    """State that a replaced rank gets.

    The rank gets the names of rank ``copy_from``, and with ``init`` it runs the startup cells.
    ``is_asked``: a person asked for the replacement and needs no notice.
    """

    copy_from: int | None = None
    init: bool = True
    is_asked: bool = True


@dataclass(frozen=True)
class ReplacementRank:
    """A rank that was replaced.

    ``reason`` says how the process before it ended. ``engine`` is the new process.
    """

    rank: int
    engine: str
    reason: str
    wish: RestartOptions


class ReplacedRanks:
    """The replaced ranks, and the state that was requested for each.

    A replaced rank is *absent* until it has answered and has met the others. A replaced rank is
    *unprepared* until it has its names and has run its startup cells. The socket thread adds ranks;
    one lock guards all fields.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: dict[int, list[RestartOptions]] = {}  # the first request counts
        self._absent: dict[int, ReplacementRank] = {}
        self._unprepared: dict[int, ReplacementRank] = {}

    def wish(self, ranks: Iterable[int], wish: RestartOptions) -> None:
        """Record the state that these ranks get once they are replaced."""
        with self._lock:
            for rank in ranks:
                self._wishes.setdefault(rank, []).append(wish)

    def unwish(self, ranks: Iterable[int], wish: RestartOptions) -> None:
        """Remove a request of `wish`, after the restart was answered."""
        with self._lock:
            for rank in ranks:
                self._wishes[rank] = [other for other in self._wishes[rank] if other is not wish]

    def add(self, rank: int, engine: str, reason: str, *, is_known: bool = False) -> None:
        """Add a replaced rank; ``is_known``: a person knows of it."""
        with self._lock:
            wishes = self._wishes.get(rank) or [RestartOptions(is_asked=is_known)]
            replaced_rank = ReplacementRank(rank, engine, reason, wishes[0])
            self._absent[rank] = self._unprepared[rank] = replaced_rank

    def lose(self, rank: int) -> None:
        """Remove a rank that has died."""
        with self._lock:
            self._absent.pop(rank, None)
            self._unprepared.pop(rank, None)

    @property
    def absent(self) -> set[int]:
        """Return the ranks that have not met the others yet."""
        with self._lock:
            return set(self._absent)

    def met(self, ranks: Iterable[int]) -> None:
        """Note that these ranks have met the others."""
        with self._lock:
            for rank in ranks:
                self._absent.pop(rank, None)

    def take(self) -> list[ReplacementRank]:
        """Return the unprepared ranks, each only once."""
        with self._lock:
            taken, self._unprepared = self._unprepared, {}
            return [taken[rank] for rank in sorted(taken)]

    def __bool__(self) -> bool:
        """Whether a rank is absent or unprepared."""
        return bool(self._absent or self._unprepared)


class StartupCells:
    """Cells that a new rank runs first, in order, without duplicates.

    Examples
    --------
    >>> cells = StartupCells()
    >>> for code in ("a = 1", "b = 2", "a = 1"): cells.add(code, None)
    >>> cells.add("c = 3", (0,))
    >>> cells.of(1)
    ['b = 2', 'a = 1']
    """

    def __init__(self) -> None:
        self._cells: dict[str, tuple[int, ...] | None] = {}

    def add(self, code: str, ranks: tuple[int, ...] | None) -> None:
        self._cells.pop(code, None)
        self._cells[code] = ranks

    def of_all(self) -> list[str]:
        return list(self._cells)

    def of(self, rank: int) -> list[str]:
        return [code for code, ranks in self._cells.items() if ranks is None or rank in ranks]


class Parts(Protocol):
    """The methods of the runner that `prepare` calls.

    The caller of `prepare` holds the ranks.
    """

    def part(self, work: str | RankTask, ranks: tuple[int, ...], view: View) -> None:
        """Run code or a task on ranks; raise its error."""

    def ask(self, ranks: tuple[int, ...], work: RankCall) -> dict[int, dict[str, Any]]:
        """Call ranks; return the named values by rank."""


def prepare(
    runner: Parts,
    fresh: list[ReplacementRank],
    every_start: StartupCells,
    *,
    make_view: Callable[[], View],
    tell: Callable[[str], None],
) -> DistributedError | None:
    """Give ``fresh`` ranks the state that was requested for them.

    Parameters
    ----------
    runner : Parts
        Runs code and calls on the ranks.
    fresh : list of ReplacementRank
        The ranks to prepare.
    every_start : StartupCells
        The cells that new ranks run.
    make_view : callable
        Makes the view of a startup cell.
    tell : callable
        Gets one line for each thing that a person must know, such as a startup cell that failed.

    Returns
    -------
    DistributedError or None
        The first error of a startup cell. The rank can be used all the same.
    """
    for replaced_rank in fresh:
        if not replaced_rank.wish.is_asked:
            tell(say_unasked(replaced_rank.rank, replaced_rank.reason))
    _copy(runner, fresh, tell)
    first: DistributedError | None = None
    cells: dict[str, list[int]] = {}
    for replaced_rank in fresh:
        for code in every_start.of(replaced_rank.rank) if replaced_rank.wish.init else ():
            cells.setdefault(code, []).append(replaced_rank.rank)
    for code in every_start.of_all():
        if code not in cells:
            continue
        try:
            runner.part(code, tuple(cells[code]), make_view())
        except DistributedError as error:
            first = first or error
            line = code.strip().partition("\n")[0]
            tell(f"a cell of --every-start failed ({line!r}): {error}")
    return first


def _copy(runner: Parts, fresh: list[ReplacementRank], tell: Callable[[str], None]) -> None:
    by_source: dict[int, list[int]] = {}
    for replaced_rank in fresh:
        if replaced_rank.wish.copy_from is not None:
            by_source.setdefault(replaced_rank.wish.copy_from, []).append(replaced_rank.rank)
    for source, ranks in by_source.items():
        task = CopyNames(source, tuple(ranks))
        try:
            runner.part(task, (source, *ranks), QuietView())
            answers = runner.ask(tuple(ranks), GiveCopyReport())
        except DistributedError as error:
            tell(f"{name_ranks(ranks)} got nothing of rank {source}: {error}")
            continue
        # Every rank gets the same names; which of them it could load may differ.
        reports = [answer[""] for answer in answers.values()]
        problems: dict[str, str] = {}
        for _, lacking in reports:
            problems.update(lacking)
        copied = min(number for number, _ in reports)
        tell(say_copied(source, ranks, copied, problems))


def wait_answering(
    dispatch: Dispatch,
    name: str,
    timeout_s: float,
    ranks: Collection[int],
    *,
    gone: Callable[[], Collection[int]] = tuple,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Probe ranks until each has answered on both channels.

    A zmq router drops messages for an engine it has no route for yet (ipyparallel's issue 476), and
    a subscription takes a moment to take effect. So no cell is sent before both channels have
    worked once.

    Parameters
    ----------
    dispatch : Dispatch
        Sends the probes.
    name : str
        The name of the probe.
    timeout_s : float
        Seconds to wait in all.
    ranks : collection of int
        The ranks to wait for.
    gone : callable
        Returns the ranks that have died meanwhile.
    stopped : callable
        Whether a person has stopped the wait.

    Raises
    ------
    KeyboardInterrupt
        ``stopped`` returned True.
    DistributedError
        Ranks did not answer within ``timeout_s``.
    """
    probe = PresenceProbe(name, tuple(sorted(ranks)))
    missing = set(ranks)
    deadline_s = time.monotonic() + timeout_s
    try:
        while missing:
            if stopped():
                raise KeyboardInterrupt
            if time.monotonic() > deadline_s:
                does = "does" if len(missing) == 1 else "do"
                msg = f"{name_ranks(missing)} started, but {does} not answer"
                raise DistributedError(msg)
            missing = dispatch.probe(probe, missing, "shell", PING_INTERVAL_S)
            missing.difference_update(gone())
    finally:
        dispatch.forget(probe)
