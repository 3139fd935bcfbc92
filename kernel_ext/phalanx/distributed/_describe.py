"""What a group tells of itself: who is where, and how its operations are done.

It knows a world's record and the engine's own account; who holds the group it does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._engine import Engine
from ._world import WorldSpec, native_hosts

__all__ = ["algorithms_by_size", "describe"]

_HALVES = ("float16", "bfloat16")


def describe(
    spec: WorldSpec, engine: Engine, origin: tuple[int, int] | None, sizes: Iterable[int]
) -> dict[str, Any]:
    """Put together what `Group.describe` returns; ``origin``: color and key of a split."""
    hosts = native_hosts(spec)
    far = "mpi" if spec.transport == "mpi" else "tcp"
    transports = ["arena" if host == hosts[spec.rank] else far for host in hosts]
    transports[spec.rank] = "self"
    told = {
        "rank": spec.rank,
        "size": spec.size,
        "epoch": spec.epoch,
        "hosts": list(spec.rank_host_names()),
        "transports": transports,
        "members": [spec.world_rank(rank) for rank in range(spec.size)],
        "engine": engine.describe(list(sizes)),
    }
    if origin is not None:
        told |= dict(zip(("color", "key"), origin, strict=True))
    return told


def algorithms_by_size(told: dict[str, Any], op: str, dtype: str) -> dict[int, str]:
    """Return the algorithms of one operation, by the bytes of a rank's array.

    Examples
    --------
    >>> engine = {"algorithms": {"all_sum": {8: "inline+mesh"}}}
    >>> engine["algorithms_of_halves"] = {"all_sum": {8: "staged+mesh"}}
    >>> algorithms_by_size({"engine": engine}, "all_sum", "bfloat16")
    {8: 'staged+mesh'}
    >>> algorithms_by_size({"engine": {}}, "all_sum", "float32")  # an engine that tells of none
    {}
    """
    engine = told["engine"]
    tables = [engine.get("algorithms", {})]
    if dtype in _HALVES:
        tables.insert(0, engine.get("algorithms_of_halves", {}))
    by_size: dict[int, str] = next((table[op] for table in tables if op in table), {})
    return by_size
