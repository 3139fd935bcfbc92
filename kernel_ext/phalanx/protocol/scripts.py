"""What the launcher of a script and its root supervisor say to each other.

`Hello`, `GetStacks`, `StacksAre`, `BootProgress` and `Notice` are those of the workspace.
Output goes up and input goes down in pieces whose cost the other side gives back when it is done
with them: whoever produces faster than that waits, and memory stays bounded on both sides.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ._bounds import Amount
from ._host_records import BootProgress
from ._workspace_messages import BootOptions, GetStacks, Hello, Notice, StacksAre

__all__ = [
    "WINDOW_COST",
    "AllEnded",
    "Bye",
    "FromScriptRoot",
    "Input",
    "InputCut",
    "InputTaken",
    "NotStarted",
    "Output",
    "OutputTaken",
    "RankEnded",
    "ScriptOptions",
    "Started",
    "ToScriptRoot",
    "cost",
]

WINDOW_COST = 256 << 10  # four pipes full: enough to keep a reader and a writer busy at once
_MESSAGE_COST = 256  # about what a message takes beside its bytes, so that tiny ones count too


def cost(data: bytes) -> int:
    """What a piece counts against a window of `WINDOW_COST`.

    Examples
    --------
    >>> cost(b"") < cost(b"x") < WINDOW_COST
    True
    """
    return len(data) + _MESSAGE_COST


class ScriptOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first thing the root supervisor of a script reads.

    ``env`` is added to its own environment for every rank; ``grace_s`` is the time between a
    signal and the next, harder one. With a ``log_dir`` the ranks are nobody's: their output goes
    there, they have no input, and the end of the launcher is nothing to them.

    ``command`` is for this machine; on other hosts ``words``, as the user gave them, are looked up
    there. Unless ``is_script_checked`` is false, a script that they name has to be there.
    """

    boot: BootOptions
    command: tuple[str, ...]
    env: dict[str, str]
    grace_s: float
    log_dir: str = ""
    words: tuple[str, ...] = ()
    is_script_checked: bool = True


class OutputTaken(msgspec.Struct, frozen=True, tag="output_taken", forbid_unknown_fields=True):
    """Client: output of this cost has been written out."""

    rank: int
    stream: Literal["stdout", "stderr"]
    cost: Amount


class Input(msgspec.Struct, frozen=True, tag="input", forbid_unknown_fields=True):
    """Client: input for every rank; no bytes are its end."""

    data: bytes


class Bye(msgspec.Struct, frozen=True, tag="bye", forbid_unknown_fields=True):
    """Client: I have everything; end."""


class Started(msgspec.Struct, frozen=True, tag="started", forbid_unknown_fields=True):
    """Root: the ranks run; their process ids (each leads a process group) by rank."""

    pids: tuple[int, ...]


class NotStarted(msgspec.Struct, frozen=True, tag="not_started", forbid_unknown_fields=True):
    """Root: a rank's process could not be started, and why; nothing runs."""

    message: str


class Output(msgspec.Struct, frozen=True, tag="output", forbid_unknown_fields=True):
    """Root: bytes as a rank wrote them."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: bytes


class InputTaken(msgspec.Struct, frozen=True, tag="input_taken", forbid_unknown_fields=True):
    """Root: the rank that reads fastest has been given input of this many bytes more."""

    nbytes: int


class InputCut(msgspec.Struct, frozen=True, tag="input_cut", forbid_unknown_fields=True):
    """Root: a rank is so far behind the one that reads fastest that its input ended early."""

    rank: int
    nbytes: int


class RankEnded(msgspec.Struct, frozen=True, tag="rank_ended", forbid_unknown_fields=True):
    """Root: a rank's process is gone, its output told; ``status`` as `subprocess` gives it.

    ``reason`` says in words how it ended.
    """

    rank: int
    status: int
    reason: str


class AllEnded(msgspec.Struct, frozen=True, tag="all_ended", forbid_unknown_fields=True):
    """Root: every rank is gone. ``culprit`` is the rank that failed first, -1 for none.

    ``is_forced``: others were ended because of it (or of a signal to the launcher).
    """

    culprit: int
    statuses: tuple[int, ...]
    is_forced: bool


ToScriptRoot = Hello | OutputTaken | Input | GetStacks | Bye
FromScriptRoot = (
    BootProgress
    | Started
    | NotStarted
    | Output
    | InputTaken
    | InputCut
    | StacksAre
    | Notice
    | RankEnded
    | AllEnded
)
