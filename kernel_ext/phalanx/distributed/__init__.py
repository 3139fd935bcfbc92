"""Joining a world, its group, and the collectives on arrays.

The door of this room: users get its first names from `phalanx`; the supervisor and the rank room
take the others from here. Only this room imports the native engine.
"""

from __future__ import annotations

from ._collectives import all_gather, all_sum, broadcast
from ._control import (
    AbortKind,
    AbortPage,
    create_page,
    create_region,
    create_wake,
    region_nbytes,
)
from ._group import Group
from ._init import init, is_available
from ._supervised import is_supervised, join, supervisor_channel, world

__all__ = [
    "AbortKind",
    "AbortPage",
    "Group",
    "all_gather",
    "all_sum",
    "broadcast",
    "create_page",
    "create_region",
    "create_wake",
    "init",
    "is_available",
    "is_supervised",
    "join",
    "region_nbytes",
    "supervisor_channel",
    "world",
]
