"""Merge equal lines of ranks; send a cell's output to its view.

This module decides what is shown and when; the view decides how. Callers of `CellOutput` pass the
clock in; its cost is linear in the number of lines and figures. `LateOutput` shows output that
comes after its cell has ended, on a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import re
import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from .front_end import Clear, Display, Text, View, is_image
from .lines import LINE_LIMIT, LineAssembler, StreamName

_NUMBER = re.compile(r"\d+")
WINDOW_S = 0.1  # a line waits this long for the same line from other ranks
LONGEST_S = 1.0  # the same, for lines that ranks print at different times
WAITING_LINES = 20_000  # lines that wait at most, to bound memory
KINDS = 1000  # kinds of lines to remember the waiting time of

MAX_LINES = 10_000  # shown per cell, so that the browser stays usable; the rank's log has the rest
MAX_CHARACTERS = 10_000_000  # shown per cell, for the same reason
UNEQUAL_LINES = 40_000  # lines that are remembered until every rank has printed them
BARS_INTERVAL_S = 0.2  # draw progress at most five times a second
EQUAL = "equal "  # begins the text of a display that is shown once


@dataclass
class MergedLine:
    """A line and the ranks that printed it, or grouped displays.

    For displays, ``events`` has them in order. Displays of several ranks with the same ``text`` are
    shown together, and equal ones (`EQUAL`) are shown once.
    """

    ranks: set[int]
    stream: StreamName | Literal["display"]
    text: str
    came_s: float
    events: list[Display | Clear] = field(default_factory=list)

    @cached_property
    def kind(self) -> str:
        """The text without numbers: alike for prints in a loop."""
        return _NUMBER.sub("0", f"{self.stream} {self.text[:200]}")


class LineMerger:
    """Holds lines for a short time to merge ranks' equal lines.

    Lines stand in one queue, in the order in which they are shown. A rank's line joins an equal
    line behind all lines of that rank, else it goes to the end: each rank's lines keep their order.
    Numbers of lines only grow, so a bisection finds the equal line.

    A line waits for `WINDOW_S`. If a line of its kind was of one rank alone, it does not wait. If
    ranks printed a line of its kind at different times, it waits for twice the difference.
    """

    def __init__(self) -> None:
        self._queue: deque[MergedLine] = deque()
        self._late: list[MergedLine] = []  # shown before the queue
        self._first = 0  # number of the first line in the queue
        self._last_of_rank: dict[int, int] = {}
        self._waiting: dict[tuple[str, str], list[int]] = {}  # numbers, by stream and text
        self._windows_s: dict[str, float] = {}  # by kind

    def add(
        self,
        rank: int,
        stream: StreamName | Literal["display"],
        text: str,
        now_s: float,
        *,
        is_late: bool = False,
    ) -> MergedLine:
        """Add a rank's line or display; return what it was merged with.

        ``is_late``: it repeats a line that was shown.
        """
        behind = self._last_of_rank.get(rank, -1)
        numbers = self._waiting.get((stream, text), [])
        at = bisect_right(numbers, max(behind, self._first - 1))
        if at < len(numbers):
            number = numbers[at]
            merged = self._queue[number - self._first]
            merged.ranks.add(rank)
            if stream != "display":
                self.repeated(merged.kind, now_s - merged.came_s)
            self._last_of_rank[rank] = number
            return merged
        merged = MergedLine({rank}, stream, text, now_s)
        if is_late and behind < self._first:
            self._late.append(merged)  # so that the rank's next lines can join those in the queue
            return merged
        number = self._first + len(self._queue)
        self._queue.append(merged)
        self._waiting.setdefault((stream, text), []).append(number)
        self._last_of_rank[rank] = number
        return merged

    def repeated(self, kind: str, lag_s: float) -> None:
        """Learn that a rank repeated a line of another after a time."""
        before_s = self._windows_s.get(kind, 0.0)
        self._windows_s[kind] = max(WINDOW_S, before_s, min(2 * lag_s, LONGEST_S))

    def due(self, running: Collection[int], now_s: float) -> list[MergedLine]:
        """Remove and return the lines to show now.

        A line is due when every running rank has printed it or a line below it, or when it has
        waited for its time.
        """
        ready, self._late = self._late, []
        if len(self._windows_s) > KINDS:
            self._windows_s.clear()
        while self._queue:
            can_grow = any(self._last_of_rank.get(rank, -1) < self._first for rank in running)
            if can_grow and len(self._queue) <= WAITING_LINES and now_s < self._due_s():
                break
            line = self._pop()
            if line.stream != "display" and len(running) > len(line.ranks) == 1:
                self._windows_s.setdefault(line.kind, 0.0)
            ready.append(line)
        return ready

    def finish(self) -> list[MergedLine]:
        """Remove and return all lines."""
        late, self._late = self._late, []
        return [*late, *(self._pop() for _ in range(len(self._queue)))]

    def _pop(self) -> MergedLine:
        head = self._queue.popleft()
        self._first += 1
        key = head.stream, head.text
        if self._waiting[key][-1] < self._first:
            del self._waiting[key]
        return head

    def next_due_s(self) -> float | None:
        """Return when the oldest line is due; None without lines."""
        return self._due_s() if self._queue else None

    def _due_s(self) -> float:
        head = self._queue[0]
        return head.came_s + self._windows_s.get(head.kind, WINDOW_S)


@dataclass
class _Printed:
    """How often ranks printed a line, and how often it is shown."""

    n_of: dict[int, int] = field(default_factory=dict)  # by rank
    most: int = 0  # of any rank
    n_shown: int = 0
    came_s: float = 0.0  # time of the last one that no other rank had printed


class CellOutput:
    """Sends the output of one cell's ranks to a view.

    The view gets whole lines, up to ``max_lines``, with equal lines of ranks merged. It gets
    progress bars and figures: figures of several ranks together, each below the earlier lines of
    its rank. It gets the values of the last expression at the end.
    """

    def __init__(self, view: View, max_lines: int = MAX_LINES) -> None:
        self._view = view
        self._max_lines = max_lines
        self.n_hidden = 0  # lines that are not shown because of the limits
        self._n_shown = self._n_characters = 0
        self._printed: defaultdict[int, _Printed] = defaultdict(_Printed)  # by hash of a line
        self._ranks: set[int] = set()  # that have run the cell
        self._now_s = 0.0
        self._assembler = LineAssembler()
        self._merger = LineMerger()
        self._bars: dict[int, str] = {}
        self._has_clears = False
        self._next_bars_s = 0.0
        self.results: dict[int, Display] = {}  # values of the last expression
        self._view_due_s: float | None = None

    def text(self, event: Text, now_s: float) -> None:
        """Take a piece of a rank's output."""
        for stream, line in self._assembler.take(event.rank, event.stream, event.text):
            printed = self._printed.get(hash((stream, line)))
            is_late = printed is not None and printed.n_of.get(event.rank, 0) < printed.most
            self._merger.add(event.rank, stream, line, now_s, is_late=is_late)

    def display(self, event: Display | Clear, now_s: float) -> None:
        """Take a figure or a clear; keep a result for the end."""
        if isinstance(event, Display) and event.is_result:
            self.results[event.rank] = event
            return
        if isinstance(event, Clear):
            kind, self._has_clears = f"clear {event.wait}", True
            if self._view.shows_bars:
                self._assembler.clear(event.rank, wait=event.wait)
        elif is_image(event.data):
            kind = f"image {event.is_update}"
        elif not (event.display_id or event.is_update or self._has_clears):
            kind = f"{EQUAL}{event.data!r} {event.metadata!r}"
        else:  # a rank may change or clear it alone: never merged, so due at once
            kind, now_s = f"rank {event.rank}", -math.inf
        self._merger.add(event.rank, "display", kind, now_s).events.append(event)

    def show(self, running: Collection[int], now_s: float) -> None:
        """Show the lines, figures and bars that are due."""
        self._ranks.update(running)
        self._now_s = now_s
        self._show(self._merger.due(running, now_s))
        if now_s >= self._next_bars_s:
            bars = self._assembler.bars()
            if bars != self._bars:
                self._bars = bars
                self._next_bars_s = now_s + BARS_INTERVAL_S
                self._view.bars(bars)
        self._view_due_s = self._view.refresh(now_s)

    def next_due_s(self) -> float | None:
        """Return when `show` has work even if no event comes."""
        times = [self._merger.next_due_s(), self._view_due_s]
        if self._assembler.bars() != self._bars:
            times.append(self._next_bars_s)
        return min((time for time in times if time is not None), default=None)

    def break_here(self) -> None:
        """Show everything, also unfinished lines, so that later output comes below."""
        self._show(self._merger.finish())
        for rank, stream, line in self._assembler.finish():
            self._merger.add(rank, stream, line, self._now_s)
        self._show(self._merger.finish())

    def finish(self) -> None:
        """Show the remaining output, then the results.

        Equal results are shown once, in the order of ranks.
        """
        self.break_here()
        if self._bars:
            self._view.bars({})
        if self.n_hidden > 0:
            self._view.notice(f"{self.n_hidden} more lines; %distributed output RANK shows them")
        values: dict[str, tuple[list[int], Display]] = {}
        for rank, event in sorted(self.results.items()):
            values.setdefault(repr(event.data), ([], event))[0].append(rank)
        for ranks, event in values.values():
            self._view.display(tuple(ranks), in_bounds(event))
        self._view.refresh(math.inf)

    def _show(self, merged: list[MergedLine]) -> None:
        for stream, group in groupby(merged, key=lambda line: line.stream):
            if stream == "display":
                for line in group:
                    self._show_displays(line)
                continue
            shown = [(tuple(sorted(line.ranks)), line.text) for line in group if self._fits(line)]
            if shown:
                self._view.lines(stream, shown)

    def _fits(self, line: MergedLine) -> bool:
        """Return whether to show a line; count it once for all ranks."""
        key = hash((line.stream, line.text))
        printed = self._printed[key]
        for rank in line.ranks:
            printed.n_of[rank] = printed.n_of.get(rank, 0) + 1
        number = max(printed.n_of[rank] for rank in line.ranks)
        is_new = number > printed.most
        fits = self._n_characters < MAX_CHARACTERS
        if is_new:
            fits = fits and self._n_shown < self._max_lines
            printed.most, printed.came_s = number, line.came_s
            printed.n_shown += fits
            self._n_shown += fits
            self.n_hidden += not fits
        else:
            self._merger.repeated(line.kind, line.came_s - printed.came_s)
            is_shown = number <= printed.n_shown
            self.n_hidden += is_shown and not fits
            fits = fits and is_shown
        self._n_characters += len(line.text) * fits
        is_equal = all(printed.n_of.get(rank, 0) == printed.most for rank in self._ranks)
        if is_equal or len(self._printed) > UNEQUAL_LINES:
            del self._printed[key]
        return fits

    def _show_displays(self, line: MergedLine) -> None:
        is_one = line.text.startswith(EQUAL)
        for event in line.events[:1] if is_one else line.events:
            if isinstance(event, Clear):
                self._view.clear(event)
            else:
                ranks = tuple(sorted(line.ranks)) if is_one else (event.rank,)
                self._view.display(ranks, in_bounds(event))


def in_bounds(event: Display) -> Display:
    """Cut the plain text of a display to `LINE_LIMIT` characters."""
    text = event.data.get("text/plain")
    if not isinstance(text, str) or len(text) <= LINE_LIMIT:
        return event
    cut = f"{text[:LINE_LIMIT]} … and {len(text) - LINE_LIMIT:,} more characters"
    return replace(event, data={**event.data, "text/plain": cut})


log = logging.getLogger(__name__)


class LateOutput(CellOutput):
    """Shows lines and figures that come after their cell has ended.

    Any thread may call `take`. A separate thread draws, and ends when nothing is left. The lock
    makes "the queue is empty" and "the thread ends" one step, so that no event is lost.
    """

    def __init__(self, view: View, ranks: tuple[int, ...], max_lines: int = MAX_LINES) -> None:
        super().__init__(view, max_lines)
        self._ranks_of_cell = ranks
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[Text | Display] = queue.SimpleQueue()
        self._is_drawing = self._is_full = False

    def take(self, event: object) -> None:
        """Take an event of the cell; drop results and updates.

        They belong in the output that the cell has already shown.
        """
        is_shown_already = isinstance(event, Display) and (event.is_update or event.is_result)
        if not isinstance(event, Text | Display) or is_shown_already:
            return
        with self._lock:
            self._events.put(event)
            if not self._is_drawing:
                threading.Thread(target=self._draw, name="phalanx-late", daemon=True).start()
                self._is_drawing = True

    def _draw(self) -> None:
        due_s: float | None = None
        while True:
            with self._lock:
                if due_s is None and self._events.empty():
                    self._is_drawing = False
                    return
            wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            try:
                due_s = self._step(wait_s)
            except Exception:
                log.exception("what a cell showed after its end cannot be shown")
                due_s = None

    def _step(self, wait_s: float | None) -> float | None:
        """Show an event and what is due; return the next due time."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=wait_s)
            if isinstance(event, Text):
                self.text(event, time.monotonic())
            else:
                self.display(event, time.monotonic())
        self.show(self._ranks_of_cell, time.monotonic())
        if self.n_hidden and not self._is_full:
            self._is_full = True
            self._view.notice("this cell goes on printing; %distributed output RANK shows it all")
        return self.next_due_s()
