"""One quiet line about a cell that runs long: who is done, who runs, in what, who waits for input.

It knows the view, the clock and a way to ask for the topology; it never waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from phalanx.protocol import Topology

from ._ranks import format_ranks, name_ranks
from ._view import View

__all__ = ["CellStatus", "format_time", "status_text"]

FIRST_S = 1.0  # a shorter cell shows no line and asks nothing
INTERVAL_S = 0.5


class CellStatus:
    """The status line of one cell, kept up to date by its loop.

    ``look`` asks for the topology and returns at once; what it asked for comes to `take` later.
    There is one question under way at most, so a root that does not answer costs nothing.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        view: View,
        look: Callable[[], None] | None,
        started_s: float,
    ) -> None:
        self._ranks = frozenset(ranks)
        self._view = view
        self._look = look
        self._started_s = started_s
        self._next_s = started_s + FIRST_S
        self._details: dict[int, str] = {}
        self._is_looking = False
        self._is_shown = False

    def next_due_s(self) -> float | None:
        """When `step` has something to do without news; None in a view that shows no status."""
        return self._next_s if self._view.shows_status else None

    def take(self, topology: Topology) -> None:
        """Take the answer to ``look``."""
        self._is_looking = False
        self._details = {info.rank: info.detail for info in topology.ranks}

    def step(
        self,
        running: Collection[int],
        waiting: Collection[int],
        lost: Collection[int],
        now_s: float,
    ) -> None:
        """Show the line if it is time, and ask for news for the next one."""
        due_s = self.next_due_s()
        if due_s is None or now_s < due_s or not running:
            return
        self._next_s = now_s + INTERVAL_S
        if self._look is not None and not self._is_looking:
            self._is_looking = True
            self._look()
        done = self._ranks.difference(running, lost)
        seconds = now_s - self._started_s
        self._view.status(status_text(seconds, done, lost, running, waiting, self._details))
        self._is_shown = True

    def close(self) -> None:
        """Take the line away."""
        if self._is_shown:
            self._view.status("")
            self._is_shown = False


def status_text(
    seconds: float,
    done: Collection[int],
    lost: Collection[int],
    running: Collection[int],
    waiting: Collection[int],
    details: Mapping[int, str],
) -> str:
    """Say in one line how a cell stands; ``details`` says of ranks what they are in.

    Examples
    --------
    >>> status_text(12.3, {0}, (), {1, 2, 3, 4}, {4}, {3: "in all_sum #12"})
    '▸ 12 s · done 0 · running 1-2 · rank 3 in all_sum #12 · waiting for input 4'
    """
    parts = [f"▸ {format_time(seconds)}"]
    if done:
        parts.append(f"done {format_ranks(done)}")
    if lost:
        parts.append(f"dead {format_ranks(lost)}")
    inside: dict[str, list[int]] = {}
    for rank in sorted(set(running).difference(waiting)):
        inside.setdefault(details.get(rank, ""), []).append(rank)
    if "" in inside:
        parts.append(f"running {format_ranks(inside.pop(''))}")
    parts += [f"{name_ranks(ranks)} {detail}" for detail, ranks in inside.items()]
    asking = set(running).intersection(waiting)
    if asking:
        parts.append(f"waiting for input {format_ranks(asking)}")
    return " · ".join(parts)


def format_time(seconds: float) -> str:
    """Write a time as a person reads it.

    Examples
    --------
    >>> format_time(59.9), format_time(125), format_time(7260)
    ('59 s', '2 min 05 s', '2 h 01 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
