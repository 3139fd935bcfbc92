"""Entering the world, and the names a rank's cells find.

It knows the engine's public calls and the user's namespace; nothing of how cells arrive.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import phalanx
from phalanx.distributed import join

__all__ = ["enter", "introduce", "put_back"]

JOIN_TIMEOUT_S = 30.0


def enter(namespace: dict[str, Any]) -> dict[str, Any]:
    """Join the world as it stands and put ``rank size world px np`` in the namespace.

    Called once when the ranks are up, and again before a cell where an epoch ended; names that
    the user has bound to something else meanwhile are left alone, but for the first time. Returns
    the names, for `put_back`.
    """
    world = join(JOIN_TIMEOUT_S)
    names = {"world": world, **introduce(namespace, world.rank(), world.size())}
    put_back(namespace, names)
    return names


def introduce(namespace: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Put ``rank size px np`` in the namespace: also where the world cannot stand yet."""
    names = {"rank": rank, "size": size, "px": phalanx, "np": np}
    put_back(namespace, names)
    return names


def put_back(namespace: dict[str, Any], names: dict[str, Any]) -> None:
    """Bind those of the names that are gone: `%reset` takes away what it did not bring."""
    for name, value in names.items():
        namespace.setdefault(name, value)
