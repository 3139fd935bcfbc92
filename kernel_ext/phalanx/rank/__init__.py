"""Run a cell on a rank: start, stop, input, output and names.

The package has no dependency on ipyparallel; `phalanx.supervisor.engine` builds the engine.
"""

from __future__ import annotations

from .calls import (
    bind,
    call_packed,
    fetch,
    load_value,
    map_block,
    pack_call,
    pack_values,
    unpack_values,
)
from .cell import HeldCell, InterruptGate, from_cell, runs_cell, uninterrupted
from .copying import CopyReport, copy_names
from .debugger import POST_MORTEM, DebuggerState, ErrorOfCell, asks_for_commands
from .errors import cut, escape_surrogates, name_of, packs_anything, text_of
from .input import CellInput, DebuggerStopped, TypedLines
from .output import DescriptorCapture, OutputRecord, OutputThrottle, publish_links, publish_sweep
from .output_widgets import OutputWidgets, add_output
from .shell import OwnNames, prepare_shell, say_left
from .signals import SignalHandlers, describe_error, in_cell
from .visual_debugger import VisualDebugger

__all__ = [
    "POST_MORTEM",
    "CellInput",
    "CopyReport",
    "DebuggerState",
    "DebuggerStopped",
    "DescriptorCapture",
    "ErrorOfCell",
    "HeldCell",
    "InterruptGate",
    "OutputRecord",
    "OutputThrottle",
    "OutputWidgets",
    "OwnNames",
    "SignalHandlers",
    "TypedLines",
    "VisualDebugger",
    "add_output",
    "asks_for_commands",
    "bind",
    "call_packed",
    "copy_names",
    "cut",
    "describe_error",
    "escape_surrogates",
    "fetch",
    "from_cell",
    "in_cell",
    "load_value",
    "map_block",
    "name_of",
    "pack_call",
    "pack_values",
    "packs_anything",
    "prepare_shell",
    "publish_links",
    "publish_sweep",
    "runs_cell",
    "say_left",
    "text_of",
    "uninterrupted",
    "unpack_values",
]
