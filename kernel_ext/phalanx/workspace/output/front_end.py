"""Define the interface to a front end: views and prompts.

A notebook's view is in the magics; `phalanx bench` and the tests have other views. No I/O here:
callers pass in the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
