"""The same line from several ranks, shown once with all of them.

Pure: lines and the clock in, lines with their ranks out; the cost is linear in the lines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from ._lines import StreamName

__all__ = ["LineMerger", "MergedLine"]

WINDOW_S = 0.1  # how long a line waits for the same line of other ranks


@dataclass
class MergedLine:
    """A line and the ranks that printed it."""

    ranks: set[int]
    stream: StreamName
    text: str
    came_s: float


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
        self._waiting: dict[tuple[StreamName, str], _Waiting] = {}

    def add(self, rank: int, stream: StreamName, text: str, now_s: float) -> None:
        """Take a line of a rank."""
        behind = self._last_of_rank.get(rank, -1)
        waiting = self._waiting.setdefault((stream, text), _Waiting())
        at = bisect_right(waiting.numbers, max(behind, self._first - 1))
        if at < len(waiting.numbers):
            number = waiting.numbers[at]
            self._queue[number - self._first].ranks.add(rank)
        else:
            number = self._first + len(self._queue)
            self._queue.append(MergedLine({rank}, stream, text, now_s))
            waiting.numbers.append(number)
        self._last_of_rank[rank] = number

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
