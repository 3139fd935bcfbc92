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
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from typing import Literal

from .events import Clear, Display, Event, Text, is_image
from .text import LINE_LIMIT, LineAssembler, LiveText, StreamName
from .view import View

WINDOW_S = 0.1  # a line waits this long for the same line from other ranks

MAX_LINES = 10_000  # shown per cell, so that the browser stays usable; the rank's log has the rest
MAX_CHARACTERS = 10_000_000  # shown per cell, for the same reason
BARS_INTERVAL_S = 0.2  # draw progress at most five times a second


@dataclass
class MergedLine:
    """A line and the ranks that printed it, or grouped displays.

    For displays, ``events`` has them in order, and ``text`` is their kind. Displays of the same
    kind from several ranks are shown together; with ``is_one``, they are equal and shown once.
    """

    ranks: set[int]
    stream: StreamName | Literal["display"]
    text: str
    came_s: float
    events: list[Display | Clear] = field(default_factory=list)
    is_one: bool = False


@dataclass
class _Waiting:
    """The numbers of the queued lines that have the same text."""

    numbers: list[int] = field(default_factory=list)


class LineMerger:
    """Holds lines for up to `WINDOW_S` to merge ranks' equal lines.

    Lines stand in one queue, in the order in which they are shown. A rank's line joins an equal
    line behind all lines of that rank, else it goes to the end: each rank's lines keep their order.
    Numbers of lines only grow, so a bisection finds the equal line.
    """

    def __init__(self) -> None:
        self._queue: deque[MergedLine] = deque()
        self._first = 0  # number of the first line in the queue
        self._last_of_rank: dict[int, int] = {}
        self._waiting: dict[tuple[str, str], _Waiting] = {}

    def add(self, rank: int, stream: StreamName, text: str, now_s: float) -> None:
        self._add(rank, stream, text, now_s)

    def add_event(
        self, event: Display | Clear, kind: str, now_s: float, *, is_one: bool = False
    ) -> None:
        """Add a rank's display or clear; merge it with its ``kind``."""
        merged = self._add(event.rank, "display", kind, now_s)
        merged.events.append(event)
        merged.is_one = is_one

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
        """Remove and return the lines to show now.

        A line is due when every running rank has printed it, or when `WINDOW_S` is over.
        """
        ready = []
        everyone = set(running)
        while self._queue:
            head = self._queue[0]
            if not everyone <= head.ranks and now_s - head.came_s < WINDOW_S:
                break
            ready.append(self._pop())
        return ready

    def finish(self) -> list[MergedLine]:
        """Remove and return all lines."""
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
        """Return when the oldest line is due; None without lines."""
        return self._queue[0].came_s + WINDOW_S if self._queue else None


class CellOutput:
    """Sends the output of one cell's ranks to a view.

    The view gets whole lines, up to ``max_lines``, with equal lines of ranks merged. It gets
    progress bars and figures: figures of several ranks together, each below the earlier lines of
    its rank. It gets the values of the last expression at the end.
    """

    def __init__(self, view: View, max_lines: int = MAX_LINES) -> None:
        self._view = view
        self._max_lines = max_lines
        self._n_lines = self._n_shown = self._n_characters = 0
        self._assembler = LineAssembler()
        self._merger = LineMerger()
        self._live = LiveText()
        self._bars: dict[int, str] = {}
        self._has_clears = False
        self._stale: set[int] = set()  # ranks that drop unfinished lines at their next text
        self._next_bars_s = 0.0
        self._results: dict[int, Display] = {}
        self._view_due_s: float | None = None

    def text(self, event: Text, now_s: float) -> None:
        """Take a piece of a rank's output."""
        if event.rank in self._stale:
            self._stale.discard(event.rank)
            self._assembler.forget(event.rank)
        lines = self._assembler.feed(event.rank, event.stream, event.text)
        for stream, line in self._live.take(event.rank, event.stream, lines):
            self._merger.add(event.rank, stream, line, now_s)

    def display(self, event: Display | Clear, now_s: float) -> None:
        """Take a figure or a clear; keep a result for the end."""
        if isinstance(event, Clear):
            self._has_clears = True
            self._merger.add_event(event, f"clear {event.wait}", now_s)
            if self._view.shows_bars:
                self._live.clear(event.rank, wait=event.wait)
                if event.wait:
                    self._stale.add(event.rank)
                else:
                    self._assembler.forget(event.rank)
        elif event.is_result:
            self._results[event.rank] = in_bounds(event)
        elif is_image(event.data):
            self._merger.add_event(event, f"image {event.is_update}", now_s)
        elif not (event.display_id or event.is_update or self._has_clears):
            kind = f"equal {event.data!r} {event.metadata!r}"
            self._merger.add_event(event, kind, now_s, is_one=True)
        else:  # a rank may change or clear it alone: never merged, so due at once
            self._merger.add_event(event, f"rank {event.rank}", -math.inf)

    def show(self, running: Collection[int], now_s: float) -> None:
        """Show the lines, figures and bars that are due."""
        self._show(self._merger.due(running, now_s))
        if now_s >= self._next_bars_s:
            bars = self._progress()
            if bars != self._bars:
                self._bars = bars
                self._next_bars_s = now_s + BARS_INTERVAL_S
                self._view.bars(bars)
        self._view_due_s = self._view.refresh(now_s)

    def next_due_s(self) -> float | None:
        """Return when `show` has work even if no event comes."""
        times = [self._merger.next_due_s(), self._view_due_s]
        if self._progress() != self._bars:
            times.append(self._next_bars_s)
        return min((time for time in times if time is not None), default=None)

    @property
    def n_hidden(self) -> int:
        """Return the number of lines not shown because of the limits."""
        return self._n_lines - self._n_shown

    def _progress(self) -> dict[int, str]:
        """Return the rewritten text of each rank, with progress bars below."""
        live, bars = self._live.shown(), self._assembler.bars()
        return {
            rank: "\n".join(text[rank] for text in (live, bars) if rank in text)
            for rank in sorted(live.keys() | bars.keys())
        }

    def break_here(self) -> None:
        """Show everything, also unfinished lines, so that later output comes below."""
        self._show_all()
        for rank, stream, line in (*self._live.finish(), *self._assembler.finish()):
            self._merger.add(rank, stream, line, 0.0)
        self._show_all()

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
        for rank, event in sorted(self._results.items()):
            values.setdefault(repr(event.data), ([], event))[0].append(rank)
        for ranks, event in values.values():
            self._view.display(tuple(ranks), event)
        self._view.refresh(math.inf)

    def _show_all(self) -> None:
        self._show(self._merger.finish())

    def _show(self, merged: list[MergedLine]) -> None:
        for stream, group in groupby(merged, key=lambda line: line.stream):
            if stream == "display":
                for shown in group:
                    if shown.is_one:
                        self._show_display(shown.ranks, shown.events[0])
                    else:
                        for event in shown.events:
                            self._show_display({event.rank}, event)
            else:
                self._show_lines(stream, list(group))

    def _show_lines(self, stream: StreamName, lines: list[MergedLine]) -> None:
        self._n_lines += len(lines)
        lines = list(takewhile(self._fits, lines))
        if lines:
            self._view.lines(stream, [(tuple(sorted(line.ranks)), line.text) for line in lines])

    def _fits(self, line: MergedLine) -> bool:
        if self._n_shown >= self._max_lines or self._n_characters >= MAX_CHARACTERS:
            return False
        self._n_shown += 1
        self._n_characters += len(line.text)
        return True

    def _show_display(self, ranks: Collection[int], event: Display | Clear) -> None:
        if isinstance(event, Clear):
            self._view.clear(event)
        else:
            self._view.display(tuple(sorted(ranks)), in_bounds(event))


def in_bounds(event: Display) -> Display:
    """Cut the plain text of a display to `LINE_LIMIT` characters."""
    text = event.data.get("text/plain")
    if not isinstance(text, str) or len(text) <= LINE_LIMIT:
        return event
    cut = f"{text[:LINE_LIMIT]} … and {len(text) - LINE_LIMIT:,} more characters"
    return replace(event, data={**event.data, "text/plain": cut})


log = logging.getLogger(__name__)


class _Place:
    """Print the late output of one ended cell.

    Only the drawing thread of `LateOutput` uses this object.
    """

    def __init__(self, view: View, ranks: tuple[int, ...], max_lines: int) -> None:
        self._view = view
        self._ranks = ranks
        self._max_lines = max_lines
        self._output: CellOutput | None = None  # made on first use: few cells need one
        self._is_full = False

    def show(self, event: Text | Display | None, now_s: float) -> float | None:
        """Take an event, show the due output, return the next due time."""
        if self._output is None:
            self._output = CellOutput(self._view, self._max_lines)
        output = self._output
        if isinstance(event, Text):
            output.text(event, now_s)
        elif event is not None:
            output.display(event, now_s)
        output.show(self._ranks, now_s)
        if output.n_hidden and not self._is_full:
            self._is_full = True
            self._view.notice("this cell goes on printing; %distributed output RANK shows it all")
        return output.next_due_s()


class LateOutput:
    """Shows lines and figures of ended cells; merges ranks' equal lines.

    Any thread may add events. A separate thread draws them and ends when no events are left. The
    lock makes "the queue is empty" and "the thread ends" one step, so that no event is lost.
    """

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self._max_lines = max_lines
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[_Place, Text | Display]] = queue.SimpleQueue()
        self._is_drawing = False

    def of(self, view: View, ranks: tuple[int, ...]) -> Callable[[Event], None]:
        """Return a function that takes the events of one ended cell.

        The cell ran on ``ranks``. ``view`` is used for these events only.
        """
        place = _Place(view, ranks, self._max_lines)

        def take(event: Event) -> None:
            # Skip results and updates: they belong in the output that the cell has already shown.
            if isinstance(event, Text) or (
                isinstance(event, Display) and not (event.is_update or event.is_result)
            ):
                self._put(place, event)

        return take

    def _put(self, place: _Place, event: Text | Display) -> None:
        with self._lock:
            self._queue.put((place, event))
            if not self._is_drawing:
                threading.Thread(target=self._draw, name="phalanx-late", daemon=True).start()
                self._is_drawing = True

    def _draw(self) -> None:
        due_s: dict[_Place, float] = {}
        while True:
            now_s = time.monotonic()
            for place in [place for place, at_s in due_s.items() if at_s <= now_s]:
                self._show(due_s, place, None)
            with self._lock:
                if not due_s and self._queue.empty():
                    self._is_drawing = False
                    return
            wait_s = max(0.0, min(due_s.values(), default=0.0) - time.monotonic())
            with contextlib.suppress(queue.Empty):
                self._show(due_s, *self._queue.get(timeout=wait_s))

    def _show(
        self, due_s: dict[_Place, float], place: _Place, event: Text | Display | None
    ) -> None:
        due_s.pop(place, None)
        try:
            next_s = place.show(event, time.monotonic())
        except Exception:
            log.exception("what a cell showed after its end cannot be shown")
            return
        if next_s is not None:
            due_s[place] = next_s
