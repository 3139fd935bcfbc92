"""Join a world and run collectives on arrays.

Users import the public names from `phalanx`. The supervisor and package `rank` import from here.
Only this package imports the native engine.
"""

from __future__ import annotations

from phalanx._native import ControlPage, TraceSummarizer, is_cell_file, make_wake

from .bootstrap.epoch import group_of_one
from .bootstrap.init import init, is_available, recover
from .bootstrap.mpi import KEY_FILE_VARIABLE
from .bootstrap.other_libraries import (
    MASTER_VARIABLES,
    free_port,
    master_variables,
    place_variables,
)
from .bootstrap.progress import (
    Progress,
    drop_hold,
    hold,
    let_in,
    progress,
    release,
    trace,
)
from .bootstrap.stacks import LISTENER, STACK_SIGNAL, STACKS_VARIABLE
from .bootstrap.supervised import (
    RESTART_VARIABLES,
    Loss,
    count_threads,
    current_loss,
    is_supervised,
    join,
    supervisor_channel,
    world,
)
from .bootstrap.user_code import (
    UserThreads,
    clear_own_frames,
    is_own_frame,
    number_lines,
    prepare_threads,
    without_own_frames,
)
from .control import (
    AbortKind,
    create_page,
    create_region,
    culprit_rank,
    give_back_region,
)
from .group.engine import Engine, EngineWork, Work
from .group.group import Group
from .operations.collectives import (
    IN_PLACE,
    all_gather,
    all_max,
    all_min,
    all_sum,
    all_to_all,
    barrier,
    broadcast,
    print0,
    sum_scatter,
)
from .operations.objects import all_gather_object, broadcast_object
from .operations.point_to_point import recv, recv_like, send
from .operations.sealed import SealedPair
from .recorder import (
    ENTRY,
    RECORD,
    Lateness,
    Records,
    StragglerReport,
    new_spans,
    records_of,
)

__all__ = [
    "ENTRY",
    "IN_PLACE",
    "KEY_FILE_VARIABLE",
    "LISTENER",
    "MASTER_VARIABLES",
    "RECORD",
    "RESTART_VARIABLES",
    "STACKS_VARIABLE",
    "STACK_SIGNAL",
    "AbortKind",
    "ControlPage",
    "Engine",
    "EngineWork",
    "Group",
    "Lateness",
    "Loss",
    "Progress",
    "Records",
    "SealedPair",
    "StragglerReport",
    "TraceSummarizer",
    "UserThreads",
    "Work",
    "all_gather",
    "all_gather_object",
    "all_max",
    "all_min",
    "all_sum",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "clear_own_frames",
    "count_threads",
    "create_page",
    "create_region",
    "culprit_rank",
    "current_loss",
    "drop_hold",
    "free_port",
    "give_back_region",
    "group_of_one",
    "hold",
    "init",
    "is_available",
    "is_cell_file",
    "is_own_frame",
    "is_supervised",
    "join",
    "let_in",
    "make_wake",
    "master_variables",
    "new_spans",
    "number_lines",
    "place_variables",
    "prepare_threads",
    "print0",
    "progress",
    "records_of",
    "recover",
    "recv",
    "recv_like",
    "release",
    "send",
    "sum_scatter",
    "supervisor_channel",
    "trace",
    "without_own_frames",
    "world",
]
