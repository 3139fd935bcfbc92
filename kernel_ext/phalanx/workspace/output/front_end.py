"""Define the interface to a front end: view, prompts, status line.

A notebook's view is in the magics; `phalanx bench` and the tests have other views. No I/O here:
callers pass in the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phalanx.protocol import WorldTopology, format_ranks, name_ranks

from .lines import StreamName

WIDGET = "application/vnd.jupyter.widget-view+json"  # a view of a widget
# Formats that a browser shows in an <img>, the best first.
IMAGE_KINDS = (
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "image/bmp",
    "image/avif",
)
FIRST_S = 1.0  # shorter cells show no status line and query nothing
INTERVAL_S = 0.5


@dataclass(frozen=True)
class Text:
    """A piece of a rank's output."""

    rank: int
    stream: StreamName
    text: str


@dataclass(frozen=True)
class Display:
    """A figure, table or value, as a MIME bundle.

    ``is_result``: this is the value of the cell's last expression. ``display_id``: the rank's name
    for a display that may be updated, else "". ``is_update``: this is such an update.
    """

    rank: int
    data: dict[str, Any]
    metadata: dict[str, Any]
    is_result: bool
    display_id: str = ""
    is_update: bool = False


def is_image(data: dict[str, Any]) -> bool:
    """Return whether a MIME bundle holds only pictures.

    Plain text beside a picture is ignored: it is only the name of the figure.
    """
    kinds = data.keys() - {"text/plain"}
    return bool(kinds) and all(kind in IMAGE_KINDS for kind in kinds)


@dataclass(frozen=True)
class Clear:
    """A rank clears its figures (`clear_output`).

    ``wait``: keep them until the next figure comes.
    """

    rank: int
    wait: bool


@dataclass(frozen=True)
class OtherPrompt:
    """Ranks that wait at another prompt.

    ``hears``: the answer to the question goes to these ranks as well.
    """

    ranks: tuple[int, ...]
    prompt: str
    hears: bool


@dataclass(frozen=True)
class Question:
    """A question for a person.

    ``ranks`` get the answer; ``others`` are the ranks that wait at other prompts.
    """

    ranks: tuple[int, ...]
    prompt: str
    password: bool = False
    is_command: bool = False
    others: tuple[OtherPrompt, ...] = ()


class CannotAsk(Exception):
    """This front end cannot ask a person; the text says so."""


class OpenPrompt(Protocol):
    """A question that is shown to a person."""

    def poll(self, timeout_s: float) -> tuple[str | None] | None:
        """Return ``(line,)`` once a line was typed, else None.

        ``(None,)`` is the end of input.
        """

    def close(self) -> None:
        """Take the question back."""


class View:
    """A front end that shows a cell's events; this one drops them.

    All methods are called on the thread that runs the cell.
    """

    shows_status = False  # whether `status` shows anything; if not, skip its queries
    shows_bars = False  # whether `bars` shows progress during the cell; if not, delay nothing
    cell_number = 0  # number of the notebook's cell; 0: code of a call

    def begin(self, ranks: tuple[int, ...]) -> None:
        """Learn which ranks run the cell; called once, first."""

    def lines(self, stream: StreamName, lines: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """Show whole lines, each with the ranks that printed it."""

    def bars(self, bars: Mapping[int, str]) -> None:
        """Show the progress of each rank, replacing the progress shown before.

        The text of a rank has one line or several.
        """

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Show a figure of these ranks, or a result they share."""

    def clear(self, event: Clear) -> None:
        """Clear the figures of a rank."""

    def refresh(self, now_s: float) -> float | None:
        """Draw delayed output; return when to call again, or None.

        ``now_s`` of infinity draws everything.
        """
        return None

    def ask(self, question: Question) -> OpenPrompt:
        """Ask a person; raise `CannotAsk` if nobody can answer."""
        msg = f"nobody can answer {question.prompt!r} here: this cell runs without a front end"
        raise CannotAsk(msg)

    def notice(self, text: str) -> None:
        """Show a one-line message of Phalanx."""

    def status(self, text: str) -> None:
        """Show the status of a long cell; "" removes the old one."""

    def later(self) -> View | None:
        """Return a view for output after the cell's end; None: drop it.

        Any thread may call the returned view.
        """
        return None


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
