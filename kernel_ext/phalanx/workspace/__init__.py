"""The client's side of a world: start, run, talk to, watch and stop ranks.

It knows supervisors and Jupyter's messages; it knows nothing of magics and widgets.
"""

from __future__ import annotations

from ._bench import Sweep
from ._detached import Detached, launch_detached
from ._events import IMAGE_KINDS, Clear, Display, is_image
from ._help import Completions, Description, Help, NoHelp
from ._job import Job
from ._lines import StreamName
from ._listing import WorkspaceInfo, format_workspaces, list_workspaces, stop_workspace
from ._outcome import RankResult
from ._output import MAX_LINES
from ._questions import Question
from ._ranks import format_ranks, grouped, name_ranks, parse_ranks
from ._samples import SampleView
from ._sayings import say_replaced
from ._script import RootGone, Script, ScriptEvent, Woken
from ._trace import Trace, say_trace
from ._view import CannotAsk, OpenPrompt, QuietView, View
from ._where import Where, where
from ._workspace import Workspace

__all__ = [
    "IMAGE_KINDS",
    "MAX_LINES",
    "CannotAsk",
    "Clear",
    "Completions",
    "Description",
    "Detached",
    "Display",
    "Help",
    "Job",
    "NoHelp",
    "OpenPrompt",
    "Question",
    "QuietView",
    "RankResult",
    "RootGone",
    "SampleView",
    "Script",
    "ScriptEvent",
    "StreamName",
    "Sweep",
    "Trace",
    "View",
    "Where",
    "Woken",
    "Workspace",
    "WorkspaceInfo",
    "format_ranks",
    "format_workspaces",
    "grouped",
    "is_image",
    "launch_detached",
    "list_workspaces",
    "name_ranks",
    "parse_ranks",
    "say_replaced",
    "say_trace",
    "stop_workspace",
    "where",
]
