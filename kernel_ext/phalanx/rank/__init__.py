"""The rank's side of a cell: beginning and stopping it, its input, its names.

It knows nothing of ipyparallel; the supervisor room puts it into an engine.
"""

from __future__ import annotations

from ._bars import prepare_bars
from ._capture import DescriptorCapture
from ._cell_names import prepare_cell_names
from ._copying import CopyReport, copy_names, copy_report
from ._debugger import LastError, asks_for_commands, leave_debuggers, prepare_debuggers
from ._enter import enter, introduce, put_back
from ._exit import prepare_exit, say_left
from ._gate import CellGate, uninterrupted
from ._help import HelpDesk
from ._input import DebuggerStopped, NoCellRuns, TypedLines
from ._log import LogOfRank, Missing
from ._own_magics import prepare_own_magics
from ._record import OutputRecord
from ._stdin import CellInput
from ._sweep import publish_links, publish_sweep
from ._text import BytesToText, cut, escape_surrogates, packs_anything
from ._threads import UserThreads
from ._traceback import clear_own_frames, without_own_frames

__all__ = [
    "BytesToText",
    "CellGate",
    "CellInput",
    "CopyReport",
    "DebuggerStopped",
    "DescriptorCapture",
    "HelpDesk",
    "LastError",
    "LogOfRank",
    "Missing",
    "NoCellRuns",
    "OutputRecord",
    "TypedLines",
    "UserThreads",
    "asks_for_commands",
    "clear_own_frames",
    "copy_names",
    "copy_report",
    "cut",
    "enter",
    "escape_surrogates",
    "introduce",
    "leave_debuggers",
    "packs_anything",
    "prepare_bars",
    "prepare_cell_names",
    "prepare_debuggers",
    "prepare_exit",
    "prepare_own_magics",
    "publish_links",
    "publish_sweep",
    "put_back",
    "say_left",
    "uninterrupted",
    "without_own_frames",
]
