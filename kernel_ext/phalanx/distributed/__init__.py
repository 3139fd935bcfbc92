"""Joining a world, its group, and the collectives on arrays.

The door of this room: users get its first names from `phalanx`; the supervisor and the rank room
take the others from here. Only this room imports the native engine.
"""

from __future__ import annotations

from phalanx._native import is_cell_file

from ._control import (
    AbortKind,
    AbortPage,
    accused,
    create_page,
    create_region,
    create_wake,
    give_back_region,
    region_nbytes,
)
from ._exchanges import all_gather, all_to_all, broadcast
from ._group import Group
from ._init import init, is_available
from ._lateness import ENTERED, Compared, ItsClock, Lateness, late_ranks
from ._pairs import recv, recv_like, send
from ._recover import recover
from ._reductions import all_max, all_min, all_sum, sum_scatter
from ._selector import SELECTOR_VARIABLE, Selector, write_selector
from ._spans import ENTRY, SpanReader
from ._stacks import LISTENER, STACK_SIGNAL, STACKS_VARIABLE, take_stack_signals
from ._supervised import Loss, current_loss, is_supervised, join, supervisor_channel, world
from ._trace import RECORD, Records, records_of, trace
from ._work import Work

__all__ = [
    "ENTERED",
    "ENTRY",
    "LISTENER",
    "RECORD",
    "SELECTOR_VARIABLE",
    "STACKS_VARIABLE",
    "STACK_SIGNAL",
    "AbortKind",
    "AbortPage",
    "Compared",
    "Group",
    "ItsClock",
    "Lateness",
    "Loss",
    "Records",
    "Selector",
    "SpanReader",
    "Work",
    "accused",
    "all_gather",
    "all_max",
    "all_min",
    "all_sum",
    "all_to_all",
    "broadcast",
    "create_page",
    "create_region",
    "create_wake",
    "current_loss",
    "give_back_region",
    "init",
    "is_available",
    "is_cell_file",
    "is_supervised",
    "join",
    "late_ranks",
    "records_of",
    "recover",
    "recv",
    "recv_like",
    "region_nbytes",
    "send",
    "sum_scatter",
    "supervisor_channel",
    "take_stack_signals",
    "trace",
    "world",
    "write_selector",
]
