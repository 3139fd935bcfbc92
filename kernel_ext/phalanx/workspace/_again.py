"""What was lost on its way to or from a rank: when a request is sent again, or an end asked for.

It knows what was heard of ranks, and the root's word on who has ended; it never waits, and the
sending is its user's. That nothing runs twice is the rank's doing (`phalanx.supervisor._once`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

from phalanx.protocol import StandingIs

from ._cell import Cell
from ._ranks import name_ranks

__all__ = ["AskAgain", "Mend"]

UNHEARD_S = 2.0  # a rank says at once that it begins: some milliseconds later, over any network
ENDED_S = 0.5  # the root hears of an end as we do, on another connection
LOOK_S = 1.0
MOST_S = 60.0  # copies for a rank that cannot be heard wait there, each of them, for its cell's end
FRESH_S = 1.0  # older answers say little: this process may have been stopped since
STOP_AGAIN_S = 0.7  # soon enough to be heard before a rank is called stuck (`Stopping`)
SLOWEST = 10e6  # bytes/s: a network on which a large value is not yet called lost
ANSWER_S = 5.0  # the root is asked anew then: it may have failed at the question


class Mend(NamedTuple):
    """How to ask the root how cells stand, and to send again what may have been lost.

    ``send_again(rank, is_whole, is_stopped)`` sends the request of this cell, which is not to begin
    any more if it ``is_stopped``, or only asks for its end;
    ``stop_again(ranks)`` sends the interrupt that was sent last.
    """

    see_cells: Callable[[Callable[[StandingIs], None]], None]
    send_again: Callable[[int, bool, bool], None]
    stop_again: Callable[[tuple[int, ...]], None]


class AskAgain:
    """Looks after one cell on the thread of its loop; nothing is asked of a cell that is short.

    A request is sent again only to a rank of which nothing was heard and which, by the root's
    fresh word, has not ended the cell: who took the ranks over meanwhile has taken it back there.

    Parameters
    ----------
    ask : callable
        Asks the root how cells stand; the answer comes to `take`, or never.
    """

    def __init__(
        self,
        cell: Cell,
        ask: Callable[[], None],
        mend: Mend,
        notice: Callable[[str], None],
        started_s: float,
    ) -> None:
        self._cell = cell
        self._ask = ask
        self._mend = mend
        self._notice = notice
        # All ranks may be behind one wire, and a copy of a large value is as long on its way.
        self._on_way_s = cell.nbytes * len(cell.ranks) / SLOWEST
        self._unheard_s = started_s + UNHEARD_S + self._on_way_s
        self._next_s = started_s + UNHEARD_S
        self._is_hurried = False
        self._asked_s = -math.inf  # and not answered
        self._stop_again_s = math.inf
        self._due_s: dict[int, float] = {}
        self._n_sent: dict[int, int] = {}

    def step(self, running: Collection[int], now_s: float, *, is_stopping: bool) -> None:
        """Ask the root, if it is time."""
        if is_stopping and not self._is_hurried:
            # What never came to a rank cannot be stopped there: it comes, and is stopped.
            self._is_hurried = True
            self._next_s = now_s
            self._unheard_s = min(self._unheard_s, now_s + self._on_way_s)
            self._due_s.clear()
            self._stop_again_s = now_s + STOP_AGAIN_S
        if running and now_s >= self._stop_again_s:
            self._stop_again_s = math.inf
            self._mend.stop_again(tuple(sorted(running)))
        if running and now_s >= self._next_s and now_s >= self._asked_s + ANSWER_S:
            self._next_s = now_s + LOOK_S
            self._asked_s = now_s
            self._ask()

    def take(
        self, standing: StandingIs, asked_s: float, running: Collection[int], now_s: float
    ) -> None:
        """Take the root's answer, and send what is due."""
        self._asked_s = -math.inf
        if now_s - asked_s > FRESH_S:
            return
        over = self._over(standing)
        missed: list[int] = []
        for rank in sorted(running):
            is_heard = rank in self._cell.heard
            is_over = is_heard if over is None else rank in over
            if is_heard and not is_over:
                continue
            first_s = now_s + ENDED_S if is_over else self._unheard_s
            if now_s < self._due_s.setdefault(rank, first_s):
                continue
            n_sent = self._n_sent[rank] = self._n_sent.get(rank, 0) + 1
            self._due_s[rank] = now_s + min(UNHEARD_S * 2**n_sent, MOST_S) + self._on_way_s
            if self._is_hurried and not is_over:  # it may have begun, unheard
                self._mend.stop_again((rank,))
            self._mend.send_again(rank, not is_over, self._is_hurried)
            if n_sent == 2 and not is_over:
                missed.append(rank)
        if missed:
            self._notice(f"nothing was heard of {name_ranks(missed)} yet; the cell is sent again")

    def _over(self, standing: StandingIs) -> Collection[int] | None:
        """Ranks that have ended the cell; None where the root does not know it."""
        if not self._cell.is_announced:
            return None
        for cell in standing.cells:
            if cell.cell == self._cell.name:
                return cell.ended.keys()
        return self._cell.ranks  # it is no longer told of
