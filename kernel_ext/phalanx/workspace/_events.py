"""What happens in a cell, as the workspace's I/O thread hands it to the thread that waits.

Records only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.protocol import LineNeed, RankStack, StandingIs, Topology

from ._lines import StreamName

__all__ = [
    "IMAGE_KINDS",
    "Clear",
    "Display",
    "Ended",
    "Event",
    "Failure",
    "Interrupted",
    "Lost",
    "NeedLine",
    "NeedOver",
    "Seen",
    "SeenCells",
    "SeenStacks",
    "StopRequest",
    "TakenAway",
    "Text",
    "Told",
    "is_image",
]


# What a browser shows in an <img>, the best first.
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
class Failure:
    """The error a rank's part of a cell ended in; ``traceback`` is IPython's, line by line."""

    ename: str
    evalue: str
    traceback: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """A piece of a rank's output."""

    rank: int
    stream: StreamName
    text: str


@dataclass(frozen=True)
class Display:
    """A figure, table or value: a MIME bundle. ``is_result``: the cell's last value.

    ``display_id`` is the rank's name for it where it may be updated; ``is_update``: this is one.
    """

    rank: int
    data: dict[str, Any]
    metadata: dict[str, Any]
    is_result: bool
    display_id: str = ""
    is_update: bool = False


def is_image(data: dict[str, Any]) -> bool:
    """Whether a MIME bundle is a picture and nothing richer (text beside it is its name)."""
    kinds = data.keys() - {"text/plain"}
    return bool(kinds) and all(kind in IMAGE_KINDS for kind in kinds)


@dataclass(frozen=True)
class Clear:
    """A rank takes back its figures; ``wait``: only when the next one is there."""

    rank: int
    wait: bool


@dataclass(frozen=True)
class NeedLine:
    """A rank waits for a typed line."""

    rank: int
    need: LineNeed


@dataclass(frozen=True)
class NeedOver:
    """A rank does not wait for a line of data any more, and goes on."""

    rank: int


@dataclass(frozen=True)
class Ended:
    """A rank's part of the cell is over, and all its output has come but for ``n_missing`` pieces."""

    rank: int
    failure: Failure | None
    n_missing: int = 0


@dataclass(frozen=True)
class Lost:
    """A rank died; ``will_return``: it is being replaced."""

    rank: int
    host: str
    reason: str
    tail: str
    will_return: bool = False


@dataclass(frozen=True)
class Seen:
    """What the root sees: the answer to a status line's question."""

    topology: Topology


@dataclass(frozen=True)
class SeenCells:
    """How the root says that cells stand: the answer to a question that was asked at ``asked_s``."""

    standing: StandingIs
    asked_s: float


@dataclass(frozen=True)
class SeenStacks:
    """Where ranks are: the answer to a question of a cell that is being stopped."""

    stacks: dict[int, RankStack]


@dataclass(frozen=True)
class Told:
    """A line of the root for whoever looks on."""

    text: str


@dataclass(frozen=True)
class Interrupted:
    """Somebody else has interrupted the ranks (`Workspace.interrupt`)."""


@dataclass(frozen=True)
class TakenAway:
    """The workspace is another process's now; the text says so."""

    text: str


@dataclass(frozen=True)
class StopRequest:
    """A person pressed stop (Ctrl-C)."""


Event = (
    Text
    | Display
    | Clear
    | NeedLine
    | NeedOver
    | Ended
    | Lost
    | Seen
    | SeenCells
    | SeenStacks
    | Told
    | Interrupted
    | TakenAway
    | StopRequest
)
