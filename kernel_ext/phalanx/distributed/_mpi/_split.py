"""What a group is told of MPI's ranks, for the world and for its parts."""

from __future__ import annotations

from .._split import check_color
from .._world import WorldSpec
from ._engine import MpiEngine

__all__ = ["spec_of", "split_mpi"]


def spec_of(engine: MpiEngine) -> WorldSpec:
    """Describe the group of an engine."""
    hosts = [engine.host_names[member] for member in engine.members]
    names = list(dict.fromkeys(hosts))
    return WorldSpec(
        rank=engine.rank,
        size=engine.size,
        epoch=engine.epoch,
        workspace="mpi",
        key=b"",
        hosts=tuple(map(names.index, hosts)),
        slots=tuple(range(engine.size)),
        host_names=tuple(names),
        addresses=(),
        transport="mpi",
        members=engine.members,
    )


def split_mpi(engine: MpiEngine, color: int | None, key: int) -> tuple[MpiEngine, WorldSpec] | None:
    """Split as `Group.split` says; None for a rank without a color."""
    part = engine.part(*check_color(color, key))
    return None if part is None else (part, spec_of(part))
