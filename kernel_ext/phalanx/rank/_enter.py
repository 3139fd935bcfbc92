"""Entering the world, and the names a rank's cells find.

It knows the engine's public calls and the user's namespace; nothing of how cells arrive.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import phalanx
from phalanx.distributed import join

__all__ = ["enter", "introduce"]

JOIN_TIMEOUT_S = 30.0


def enter(namespace: dict[str, Any]) -> None:
    """Join the world as it stands and put ``rank size world px np`` in the namespace.

    Called once when the ranks are up, and again before a cell where an epoch ended; names that
    the user has bound to something else meanwhile are left alone, but for the first time.
    """
    world = join(JOIN_TIMEOUT_S)
    namespace.setdefault("world", world)
    introduce(namespace, world.rank(), world.size())


def introduce(namespace: dict[str, Any], rank: int, size: int) -> None:
    """Put ``rank size px np`` in the namespace: also where the world cannot stand yet."""
    for name, value in {"rank": rank, "size": size, "px": phalanx, "np": np}.items():
        namespace.setdefault(name, value)
