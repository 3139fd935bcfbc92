"""A cell's output on its way from ranks to a view: lines, bars, figures, limits.

It decides what is shown and when; the view decides how.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import groupby, takewhile

from ._events import Clear, Display, Text, is_image
from ._lines import LINE_LIMIT, LineAssembler, StreamName
from ._live import LiveText
from ._merge import LineMerger, MergedLine
from ._view import View

__all__ = ["MAX_LINES", "CellOutput"]

MAX_LINES = 10_000  # shown of a cell: a browser stays usable, the rank's record has the rest
MAX_CHARACTERS = 10_000_000  # of these lines, for the same reason
BARS_INTERVAL_S = 0.2  # progress is drawn five times a second at most


class CellOutput:
    """What the ranks of one cell print and display.

    To the view go whole lines (equal ones of several ranks together), up to ``max_lines`` of them; progress bars; figures (those of several ranks
    together, each below what its rank said before it); the last values at the end.
    """

    def __init__(self, view: View, max_lines: int = MAX_LINES) -> None:
        self._view = view
        self._max_lines = max_lines
        self._n_lines = self._n_shown = self._n_characters = 0
        self._assembler = LineAssembler()
        self._merger = LineMerger()
        self._live = LiveText()
        self._bars: dict[int, str] = {}
        self._stale: set[int] = set()  # ranks whose unfinished lines go with their next text
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
        """Take a figure, a figure taken back, or keep a last value for the end."""
        if isinstance(event, Clear):
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
        else:  # it comes alone, so it need not wait for others
            self._merger.add_event(event, f"rank {event.rank}", -math.inf)

    def show(self, running: Collection[int], now_s: float) -> None:
        """Show what is due."""
        self._show(self._merger.due(running, now_s))
        if now_s >= self._next_bars_s:
            bars = self._progress()
            if bars != self._bars:
                self._bars = bars
                self._next_bars_s = now_s + BARS_INTERVAL_S
                self._view.bars(bars)
        self._view_due_s = self._view.refresh(now_s)

    def next_due_s(self) -> float | None:
        """When `show` has something to do without news."""
        times = [self._merger.next_due_s(), self._view_due_s]
        if self._progress() != self._bars:
            times.append(self._next_bars_s)
        return min((time for time in times if time is not None), default=None)

    def _progress(self) -> dict[int, str]:
        """What stands in the place for what is written anew: text, and bars below it."""
        live, bars = self._live.shown(), self._assembler.bars()
        return {
            rank: "\n".join(text[rank] for text in (live, bars) if rank in text)
            for rank in sorted(live.keys() | bars.keys())
        }

    def break_here(self) -> None:
        """Show everything, unfinished lines too: what comes next stands below it."""
        self._show_all()
        for rank, stream, line in (*self._live.finish(), *self._assembler.finish()):
            self._merger.add(rank, stream, line, 0.0)
        self._show_all()

    def finish(self) -> None:
        """Show what is left, and the last values: equal ones together, in the order of ranks."""
        self.break_here()
        if self._bars:
            self._view.bars({})
        n_hidden = self._n_lines - self._n_shown
        if n_hidden > 0:
            self._view.notice(f"{n_hidden} more lines; %distributed output RANK shows them")
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
                for event in (event for shown in group for event in shown.events):
                    self._show_event(event)
            else:
                self._show_lines(stream, list(group))

    def _show_lines(self, stream: StreamName, lines: list[MergedLine]) -> None:
        self._n_lines += len(lines)
        lines = list(takewhile(self._has_room_for, lines))
        if lines:
            self._view.lines(stream, [(tuple(sorted(line.ranks)), line.text) for line in lines])

    def _has_room_for(self, line: MergedLine) -> bool:
        if self._n_shown >= self._max_lines or self._n_characters >= MAX_CHARACTERS:
            return False
        self._n_shown += 1
        self._n_characters += len(line.text)
        return True

    def _show_event(self, event: Display | Clear) -> None:
        if isinstance(event, Clear):
            self._view.clear(event)
        else:
            self._view.display((event.rank,), in_bounds(event))


def in_bounds(event: Display) -> Display:
    """Cut the text of a value that is too long to show (and nothing else of it)."""
    text = event.data.get("text/plain")
    if not isinstance(text, str) or len(text) <= LINE_LIMIT:
        return event
    cut = f"{text[:LINE_LIMIT]} … and {len(text) - LINE_LIMIT:,} more characters"
    return replace(event, data={**event.data, "text/plain": cut})
