"""Bring replaced ranks to the state of the others.

`prepare` copies names to replaced ranks, and runs the cells of `%%distributed --every-start` there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from phalanx.errors import DistributedError
from phalanx.protocol import AddStartupCell, CopyNames, GiveValue, Replaced, name_ranks

from ..output.front_end import View
from ..output.notices import say_copied

if TYPE_CHECKING:
    from .runner import CellRunner


def prepare(
    runner: CellRunner,
    fresh: Sequence[Replaced],
    every_start: Sequence[AddStartupCell],
    *,
    make_view: Callable[[], View],
    tell: Callable[[str], None],
) -> DistributedError | None:
    """Give ``fresh`` ranks the state that was requested for them.

    The caller holds the ranks. ``tell`` gets one line for each thing that a person must know, such
    as a startup cell that failed. Returns the first error of a startup cell: the rank can be used
    all the same.
    """
    _copy(runner, fresh, tell)
    first: DistributedError | None = None
    inits = [its.rank for its in fresh if its.init]
    for cell in every_start:
        ranks = tuple(rank for rank in inits if cell.ranks is None or rank in cell.ranks)
        if not ranks:
            continue
        try:
            runner.part(cell.code, ranks, make_view())
        except DistributedError as error:
            first = first or error
            line = cell.code.strip().partition("\n")[0]
            tell(f"a cell of --every-start failed ({line!r}): {error}")
    return first


def _copy(runner: CellRunner, fresh: Sequence[Replaced], tell: Callable[[str], None]) -> None:
    by_source: dict[int, list[int]] = {}
    for its in fresh:
        if its.copy_from is not None:
            by_source.setdefault(its.copy_from, []).append(its.rank)
    for source, ranks in by_source.items():
        task = CopyNames(source, tuple(ranks))
        try:
            cell = runner.part(task, (source, *ranks), View())
            answers = runner.ask(tuple(ranks), GiveValue(cell))
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
