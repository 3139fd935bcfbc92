"""The same line from several ranks, shown once with all of them; figures keep their place.

Pure: lines, figures and the clock in, the same with their ranks out; the cost is linear in them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from ._events import Clear, Display
from ._lines import StreamName

__all__ = ["LineMerger", "MergedLine"]

WINDOW_S = 0.1  # how long a line waits for the same line of other ranks


@dataclass
class MergedLine:
    """A line and the ranks that printed it; or what ranks displayed, ``events`` in order.

    For what is displayed ``text`` says what comes together: figures of several ranks do.
    """

    ranks: set[int]
    stream: StreamName | Literal["display"]
    text: str
    came_s: float
    events: list[Display | Clear] = field(default_factory=list)


@dataclass
class _Waiting:
    """The lines of one text that wait, by the numbers they stand at."""

    numbers: list[int] = field(default_factory=list)


class LineMerger:
    """Holds lines for a moment so that equal ones of several ranks come together.

    Lines stand in one queue in the order they will be shown. A rank's line joins an equal one
    that stands behind all lines of that rank, else it goes to the end: so every rank's lines are
    shown in its order. Each line is numbered; numbers only grow, so a bisection finds the place.
    """

    def __init__(self) -> None:
        self._queue: deque[MergedLine] = deque()
        self._first = 0  # number of the queue's head
        self._last_of_rank: dict[int, int] = {}
        self._waiting: dict[tuple[str, str], _Waiting] = {}

    def add(self, rank: int, stream: StreamName, text: str, now_s: float) -> None:
        """Take a line of a rank."""
        self._add(rank, stream, text, now_s)

    def add_event(self, event: Display | Clear, kind: str, now_s: float) -> None:
        """Take what a rank displays, or takes back; it comes with others of its ``kind``."""
        self._add(event.rank, "display", kind, now_s).events.append(event)

    def _add(
        self, rank: int, stream: StreamName | Literal["display"], text: str, now_s: float
    ) -> MergedLine:
        behind = self._last_of_rank.get(rank, -1)
        waiting = self._waiting.setdefault((stream, text), _Waiting())
        at = bisect_right(waiting.numbers, max(behind, self._first - 1))
        if at < len(waiting.numbers):
            number = waiting.numbers[at]
            merged = self._queue[number - self._first]
            merged.ranks.add(rank)
        else:
            number = self._first + len(self._queue)
            merged = MergedLine({rank}, stream, text, now_s)
            self._queue.append(merged)
            waiting.numbers.append(number)
        self._last_of_rank[rank] = number
        return merged

    def due(self, running: Collection[int], now_s: float) -> list[MergedLine]:
        """Take the lines to show now: every rank that runs has said them, or their time is over."""
        ready = []
        everyone = set(running)
        while self._queue:
            head = self._queue[0]
            if not everyone <= head.ranks and now_s - head.came_s < WINDOW_S:
                break
            ready.append(self._pop())
        return ready

    def finish(self) -> list[MergedLine]:
        """Take all lines."""
        return [self._pop() for _ in range(len(self._queue))]

    def _pop(self) -> MergedLine:
        head = self._queue.popleft()
        self._first += 1
        key = head.stream, head.text
        waiting = self._waiting[key]
        if waiting.numbers[-1] < self._first:
            del self._waiting[key]
        return head

    def next_due_s(self) -> float | None:
        """When the oldest line's time is over; None where no line waits."""
        return self._queue[0].came_s + WINDOW_S if self._queue else None
