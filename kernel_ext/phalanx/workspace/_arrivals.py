"""Getting replaced ranks as far as the others: the names of a living rank, the cells of every start.

It knows what a newcomer is to have; how cells are announced and sent is the runner's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from phalanx.errors import DistributedError

from ._newcomers import EveryStart, Newcomer
from ._ranks import name_ranks
from ._sayings import say_copied, say_unasked
from ._values import report_request
from ._view import QuietView, View

__all__ = ["Parts", "prepare"]


class Parts(Protocol):
    """What is asked of the runner, which is held by whoever calls `prepare`."""

    def part(self, code: str, ranks: tuple[int, ...], view: View, *, silent: bool = False) -> None:
        """Run a cell on ranks; raise what it ends in."""

    def ask(self, ranks: tuple[int, ...], buffers: list[Any]) -> dict[int, Any]:
        """Call a function on ranks; what came back, by rank."""


def prepare(
    runner: Parts,
    fresh: list[Newcomer],
    every_start: EveryStart,
    *,
    make_view: Callable[[], View],
    tell: Callable[[str], None],
) -> DistributedError | None:
    """Give ``fresh`` ranks what they were wished; ``tell`` gets a line for what went otherwise.

    ``make_view`` makes the view of a cell of every start. The first error of such a cell is
    returned: the rank is there all the same.
    """
    for newcomer in fresh:
        if not newcomer.wish.is_asked:
            tell(say_unasked(newcomer.rank, newcomer.reason))
    _copy(runner, fresh, tell)
    first: DistributedError | None = None
    cells: dict[str, list[int]] = {}
    for newcomer in fresh:
        for code in every_start.of(newcomer.rank) if newcomer.wish.init else ():
            cells.setdefault(code, []).append(newcomer.rank)
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


def _copy(runner: Parts, fresh: list[Newcomer], tell: Callable[[str], None]) -> None:
    by_source: dict[int, list[int]] = {}
    for newcomer in fresh:
        if newcomer.wish.copy_from is not None:
            by_source.setdefault(newcomer.wish.copy_from, []).append(newcomer.rank)
    for source, ranks in by_source.items():
        code = f"get_ipython().kernel.copy_names({source}, {tuple(ranks)})"
        try:
            runner.part(code, (source, *ranks), QuietView(), silent=True)
            reports = runner.ask(tuple(ranks), report_request())
        except DistributedError as error:
            tell(f"{name_ranks(ranks)} got nothing of rank {source}: {error}")
            continue
        # Every rank gets the same; what it made of that may differ.
        problems: dict[str, str] = {}
        for _, lacking in reports.values():
            problems.update(lacking)
        copied = min(number for number, _ in reports.values())
        tell(say_copied(source, ranks, copied, problems))
