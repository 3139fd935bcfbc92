"""Define the events of a cell.

The I/O thread puts them into a queue; the thread that waits for the cell takes them out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.protocol import (
    CellEnded,
    InterruptCaught,
    LineNeed,
    LineNotNeeded,
    Notice,
    RankLost,
    StopReport,
)

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

CellNews = StopReport | InterruptCaught | LineNeed | LineNotNeeded


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
class CallInLoop:
    """A function to call once all earlier events have been handled.

    The thread that waits for the cell calls it: with an answer of the root, or to ack output.
    """

    call: Callable[[], None]


@dataclass(frozen=True)
class Clear:
    """A rank clears its figures (`clear_output`).

    ``wait``: keep them until the next figure comes.
    """

    rank: int
    wait: bool


@dataclass(frozen=True)
class RankNotice:
    """A rank's notice about a prompt or a stop."""

    rank: int
    news: CellNews


@dataclass(frozen=True)
class Ended:
    """A rank's part of the cell has ended.

    ``failure`` has the error, None for none. All its output has come, except for ``n_missing`` pieces.
    """

    rank: int
    failure: CellEnded | None
    n_missing: int = 0


@dataclass(frozen=True)
class Interrupted:
    """Another thread stops the cell (`Workspace.interrupt`)."""


@dataclass(frozen=True)
class OwnershipLost:
    """Another process took over the workspace; the text says so."""

    text: str


@dataclass(frozen=True)
class StopRequest:
    """The user pressed stop (Ctrl-C)."""


Event = (
    Text
    | Display
    | CallInLoop
    | Clear
    | RankNotice
    | Ended
    | RankLost
    | Notice
    | Interrupted
    | OwnershipLost
    | StopRequest
)
