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
from .cell import (
    HeldCell,
    InterruptGate,
    enter,
    from_cell,
    introduce,
    prepare_cell_names,
    prepare_exit,
    prepare_own_magics,
    restore_names,
    runs_cell,
    say_left,
    say_rebound,
    uninterrupted,
)
from .copying import CopyReport, copy_names
from .debugger import (
    POST_MORTEM,
    ErrorOfCell,
    LastError,
    asks_for_commands,
    leave_debuggers,
    prepare_debuggers,
)
from .errors import BytesToText, cut, escape_surrogates, name_of, packs_anything, text_of
from .input import (
    CellInput,
    DebuggerStopped,
    HelpDesk,
    MissingInput,
    NoCellRuns,
    RankInputLog,
    TypedLines,
)
from .output import (
    DescriptorCapture,
    OutputRecord,
    OutputThrottle,
    keep_no_outputs,
    prepare_bars,
    publish_links,
    publish_sweep,
)
from .output_widgets import OutputWidgets, add_output
from .signals import SignalHandlers, describe_error, in_cell
from .visual_debugger import VisualDebugger

__all__ = [
    "POST_MORTEM",
    "BytesToText",
    "CellInput",
    "CopyReport",
    "DebuggerStopped",
    "DescriptorCapture",
    "ErrorOfCell",
    "HeldCell",
    "HelpDesk",
    "InterruptGate",
    "LastError",
    "MissingInput",
    "NoCellRuns",
    "OutputRecord",
    "OutputThrottle",
    "OutputWidgets",
    "RankInputLog",
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
    "enter",
    "escape_surrogates",
    "fetch",
    "from_cell",
    "in_cell",
    "introduce",
    "keep_no_outputs",
    "leave_debuggers",
    "load_value",
    "map_block",
    "name_of",
    "pack_call",
    "pack_values",
    "packs_anything",
    "prepare_bars",
    "prepare_cell_names",
    "prepare_debuggers",
    "prepare_exit",
    "prepare_own_magics",
    "publish_links",
    "publish_sweep",
    "restore_names",
    "runs_cell",
    "say_left",
    "say_rebound",
    "text_of",
    "uninterrupted",
    "unpack_values",
]
