"""Define the messages between a script's launcher and its root supervisor.

`AskRoot` (for stacks), `BootProgress` and `Notice` are the same as for workspaces; `CommandInput`,
`CommandOutput` and `OutputDone` are the same as between the root and its hosts.
Flow control: each piece of output or input has a cost. The receiver acknowledges the cost when it
has processed the piece. A sender waits while `WINDOW_COST` is unacknowledged, so memory is bounded
on both sides.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from .client import AskRoot, BootOptions, BootProgress, Notice, RootAnswered
from .host import CommandInput, CommandOutput, OutputDone
from .rank import Message

# Set for the ranks of a script: how often this rank was started again, and how often ranks of the
# script may be started again in all.
RESTART_VARIABLES = ("PHALANX_RESTART_COUNT", "PHALANX_MAX_RESTARTS")
WINDOW_COST = 256 << 10  # four pipes full: enough to keep a reader and a writer busy at once
_MESSAGE_COST = 256  # about the overhead of a message, so that tiny messages count too


def cost(data: bytes) -> int:
    """Return the cost of a piece in a window of `WINDOW_COST`.

    Examples
    --------
    >>> cost(b"") < cost(b"x") < WINDOW_COST
    True
    """
    return len(data) + _MESSAGE_COST


class ScriptOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that the root supervisor of a script reads first.

    ``env`` is added to the supervisor's environment for every rank. ``command`` is for this machine. Other hosts look up ``words``, the command as the user gave it.
    ``is_script_checked``: a script named in ``words`` must exist. ``keep_going``: the failure of a
    rank does not end the other ranks. ``max_restarts``: failed ranks are started again, this many
    times in all.
    """

    boot: BootOptions
    command: tuple[str, ...]
    env: dict[str, str]
    words: tuple[str, ...] = ()
    is_script_checked: bool = True
    keep_going: bool = False
    max_restarts: Annotated[int, msgspec.Meta(ge=0)] = 0


class Started(Message, frozen=True):
    """Root: the ranks run; ``pids``, by rank, each lead a process group."""

    pids: tuple[int, ...]


class NotStarted(Message, frozen=True):
    """Root: a rank's process could not be started, so nothing runs."""

    message: str


class InputTaken(Message, frozen=True):
    """Root: the fastest reading rank has received ``nbytes`` more of input."""

    nbytes: int


class InputCut(Message, frozen=True):
    """Root: end a rank's input, ``nbytes`` behind the fastest reader."""

    rank: int
    nbytes: int


class RankEnded(Message, frozen=True):
    """Root: a rank's process has ended, after all its output was sent.

    The rank may be started again (``max_restarts``). ``status`` is as in `subprocess`; ``reason``
    says in words how the process ended.
    """

    rank: int
    status: int
    reason: str


class AllEnded(Message, frozen=True):
    """Root: every rank has ended; ``culprit`` failed first, -1 for none.

    ``is_forced``: other ranks were sent signals because of the culprit or a signal to the
    launcher. ``left_early``: the rank that ended without error while the culprit waited for it, -1
    for none. ``done_without``: ranks that failed while the others went on and ended without error.
    """

    culprit: int
    statuses: tuple[int, ...]
    is_forced: bool
    left_early: int = -1
    done_without: tuple[int, ...] = ()

    @property
    def beside(self) -> str:
        """Return the culprit's cause and the fate of other ranks.

        Examples
        --------
        >>> AllEnded(1, (0, 1, -15), True, left_early=0).beside
        '; rank 0 had ended while it was waited for; the others were ended'
        """
        early = f"; rank {self.left_early} had ended while it was waited for"
        return (early if self.left_early >= 0 else "") + (
            "; the others were ended" if self.is_forced else ""
        )


ToScriptRoot = OutputDone | CommandInput | AskRoot
FromScriptRoot = (
    BootProgress
    | Started
    | NotStarted
    | CommandOutput
    | InputTaken
    | InputCut
    | RootAnswered
    | Notice
    | RankEnded
    | AllEnded
)
