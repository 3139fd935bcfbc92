"""What a root and the supervisor of another host say of a script's ranks there.

Output comes up and input goes down as bytes, in the order in which a rank's end is told as well.
Each stream of output has the window of a launcher (`protocol.scripts`); what is given back there
is handed on to its host. Input goes to a host once, for all its ranks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ._bounds import Amount, Pid, Rank

__all__ = [
    "CloseInput",
    "CommandFails",
    "CommandInput",
    "CommandOutput",
    "CommandRuns",
    "FromCommand",
    "InputGiven",
    "InputOver",
    "OutputDone",
    "RunCommand",
    "ToCommand",
]

Stream = Literal["stdout", "stderr"]


class RunCommand(msgspec.Struct, frozen=True, tag="run_command", forbid_unknown_fields=True):
    """Root: start this rank's command, its words as the user gave them.

    It starts in the host's folder; a script or module gets ``python`` ("": the supervisor's own).
    ``is_script_checked``: a script that is not there is told of as such, by nobody's Python.
    """

    rank: Rank
    words: tuple[str, ...]
    env: dict[str, str]
    is_script_checked: bool
    python: str = ""


class CommandInput(msgspec.Struct, frozen=True, tag="command_input", forbid_unknown_fields=True):
    """Root: input for all ranks of the host; no bytes are its end."""

    data: bytes


class CloseInput(msgspec.Struct, frozen=True, tag="close_input", forbid_unknown_fields=True):
    """Root: this rank's input ends here: it is too far behind."""

    rank: Rank


class OutputDone(msgspec.Struct, frozen=True, tag="output_done", forbid_unknown_fields=True):
    """Root: output of this cost has been written out."""

    rank: Rank
    stream: Stream
    cost: Amount


class CommandRuns(msgspec.Struct, frozen=True, tag="command_runs", forbid_unknown_fields=True):
    """Host: this rank's command was started."""

    rank: Rank
    pid: Pid


class CommandFails(msgspec.Struct, frozen=True, tag="command_fails", forbid_unknown_fields=True):
    """Host: this rank's command could not be started, and why."""

    rank: Rank
    text: str


class CommandOutput(msgspec.Struct, frozen=True, tag="command_output", forbid_unknown_fields=True):
    """Host: bytes as a rank wrote them."""

    rank: Rank
    stream: Stream
    data: bytes


class InputGiven(msgspec.Struct, frozen=True, tag="input_given", forbid_unknown_fields=True):
    """Host: this rank has been given so many bytes more."""

    rank: Rank
    nbytes: Amount


class InputOver(msgspec.Struct, frozen=True, tag="input_over", forbid_unknown_fields=True):
    """Host: this rank takes no more input."""

    rank: Rank


ToCommand = RunCommand | CommandInput | CloseInput | OutputDone
FromCommand = CommandRuns | CommandFails | CommandOutput | InputGiven | InputOver
