"""From how a cell ended on each rank to what its caller gets: results or an error.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.errors import DistributedError, RankFailure, cell_error
from phalanx.protocol import say_where

from ._ranks import format_ranks, name_ranks
from ._run import CellOutcome

__all__ = ["RankResult", "raise_for", "results_of"]


@dataclass(frozen=True)
class RankResult:
    """What a rank's part of a cell came to: the ``repr`` of its last expression, or None."""

    rank: int
    value: str | None


def results_of(outcome: CellOutcome, ranks: Iterable[int]) -> list[RankResult]:
    """Results by rank."""
    results = []
    for rank in ranks:
        display = outcome.results.get(rank)
        results.append(RankResult(rank, display.data.get("text/plain") if display else None))
    return results


def _say_ended(outcome: CellOutcome) -> str:
    """Say how the ranks stand that needed no stop when the time was up."""
    ended = set(outcome.ranks).difference(outcome.places, outcome.lost)
    failed = sorted(ended.intersection(outcome.failures))
    parts = [
        f"rank {rank} had ended with {outcome.failures[rank].ename}: {outcome.failures[rank].evalue}"
        for rank in failed
    ]
    if done := ended.difference(failed):
        parts.append(f"done: {name_ranks(done)}")
    return "".join(f"; {part}" for part in parts)


def raise_for(outcome: CellOutcome, timeout: float | None = None) -> None:
    """Raise what a cell ended in, if it did not end well.

    A dead rank comes first: the others' errors follow from it. Then a stop, then a time limit,
    then the ranks' own errors. Where the workspace was taken away nothing else is known.
    """
    if outcome.taken:
        raise DistributedError(outcome.taken)
    if outcome.lost and not outcome.was_stopped:
        lost = next(iter(outcome.lost.values()))
        raise RankFailure(lost.rank, lost.host, lost.reason)
    if outcome.was_stopped:
        raise KeyboardInterrupt
    if outcome.has_timed_out:
        where = f": {say_where(outcome.places)}{_say_ended(outcome)}" if outcome.places else ""
        msg = f"the cell ran longer than {timeout:g} s; its ranks were stopped{where}"
        raise TimeoutError(msg)
    if outcome.failures:
        raise cell_error(
            {
                rank: (failure.ename, failure.evalue, failure.traceback)
                for rank, failure in sorted(outcome.failures.items())
            }
        )
    if outcome.abandoned:
        msg = f"rank {format_ranks(outcome.abandoned)} did not end the cell"
        raise DistributedError(msg)
