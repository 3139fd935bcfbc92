"""Show status lines of terminals, and of long cells.

A notebook's status line is in the magics. No clock here: callers pass it in.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import TextIO

from phalanx.protocol import WorldTopology, format_ranks, name_ranks

from .front_end import View

FIRST_S = 1.0  # shorter cells show no status line and query nothing
INTERVAL_S = 0.5


class Status:
    """A status line that shows nothing."""

    is_shown = False  # whether `show` shows anything at all

    def show(self, text: str) -> None:
        """Replace the line before; empty text erases it if possible."""

    def lift(self) -> None:
        """Erase the line before other output is written."""

    def cleared(self) -> None:
        """Note that the line went with all output of its cell."""


class TerminalStatus(Status):
    """A status line at the bottom of a terminal.

    Code that writes to the terminal calls `lift` first. A ``stream`` that is no terminal, or one
    that cannot erase a line, shows nothing.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_shown = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_drawn = False

    def show(self, text: str) -> None:
        """Write the line over the one before, cut to the terminal's width."""
        self.lift()
        if text and self.is_shown:
            columns = shutil.get_terminal_size().columns
            self._write(text[: max(0, columns - 1)])
            self._is_drawn = True

    def lift(self) -> None:
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class CellStatusLine:
    """Status line of one cell, updated by the cell's loop.

    ``look`` requests the topology and returns at once; the answer goes to `take` later. At most one
    request is open, so a root that does not answer costs nothing.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        view: View,
        look: Callable[[], None],
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
        """Return when `step` is due; None if the view shows no status."""
        return self._next_s if self._view.shows_status else None

    def take(self, topology: WorldTopology) -> None:
        self._is_looking = False
        self._details = {info.rank: info.detail for info in topology.ranks}

    def step(
        self,
        running: Collection[int],
        waiting: Collection[int],
        lost: Collection[int],
        now_s: float,
    ) -> None:
        """Show the line if due; request data for the next one."""
        due_s = self.next_due_s()
        if due_s is None or now_s < due_s or not running:
            return
        self._next_s = now_s + INTERVAL_S
        if not self._is_looking:
            self._is_looking = True
            self._look()
        done = self._ranks.difference(running, lost)
        seconds = now_s - self._started_s
        self._view.status(status_text(seconds, done, lost, running, waiting, self._details))
        self._is_shown = True

    def close(self, now_s: float) -> None:
        """Say how long the cell took; remove the line if possible."""
        if self._is_shown:
            self._view.status(f"▸ took {format_time(now_s - self._started_s)}")
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
    """Describe a cell's progress in one line.

    ``details`` has the current operation of each rank.

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
    """Format a duration for a person.

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
