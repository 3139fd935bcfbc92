"""The group of a process that is in no world."""

from __future__ import annotations

from phalanx import _native

from ._group import Group
from ._world import WorldSpec

__all__ = ["group_of_one"]


def group_of_one() -> Group:
    """Make the group of a process that is in no world."""
    spec = WorldSpec(
        rank=0,
        size=1,
        epoch=1,
        workspace="",
        key=b"",
        hosts=(0,),
        slots=(0,),
        host_names=("",),
        addresses=(),
    )
    return Group(_native.Group(rank=0, size=1, epoch=spec.epoch, hosts=(0,)), spec)
