"""Start, use, watch and stop ranks, as the client of their supervisors.

The magics, the widgets and the command line use this package.
"""

from __future__ import annotations

from .bench import Sweep
from .cells.debugging import DapMessage, RankDebuggers
from .cells.loop import RankError, RankResult
from .cells.rank_help import Description, Help, NoHelp
from .connection.connect import (
    WorkspaceInfo,
    format_workspaces,
    free_workspaces,
    list_workspaces,
    stop_workspace,
)
from .connection.root_client import SampleView
from .function_calls import PendingCall
from .options import Placement, resolve_placement
from .output.front_end import (
    IMAGE_KINDS,
    WIDGET,
    CannotAsk,
    Clear,
    Display,
    OpenPrompt,
    Question,
    View,
    is_image,
)
from .output.lines import StreamName
from .output.notices import grouped, parse_ranks, ranks_of, say_replaced
from .output.printer import MAX_LINES
from .output.status_line import Status, TerminalStatus, format_time
from .trace import Trace, say_trace
from .workspace import Workspace
