"""Phalanx: one notebook cell, run by every rank, on one machine or on many.

This door hands on the public names lazily (PEP 562), so that a rank loads no client and no widget.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import widgets
    from .distributed import (
        Group,
        Work,
        all_gather,
        all_max,
        all_min,
        all_sum,
        all_to_all,
        broadcast,
        init,
        is_available,
        recover,
        recv,
        recv_like,
        send,
        sum_scatter,
        trace,
    )
    from .errors import (
        CellError,
        CollectiveMismatch,
        CollectiveTimeout,
        DistributedError,
        NotConfigured,
        NotSupported,
        RankFailure,
    )
    from .magics import load_ipython_extension as load_ipython_extension
    from .magics import unload_ipython_extension as unload_ipython_extension
    from .workspace import Workspace

__version__ = "0.1.0"

__all__ = [
    "CellError",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "DistributedError",
    "Group",
    "NotConfigured",
    "NotSupported",
    "RankFailure",
    "Work",
    "Workspace",
    "all_gather",
    "all_max",
    "all_min",
    "all_sum",
    "all_to_all",
    "broadcast",
    "init",
    "is_available",
    "recover",
    "recv",
    "recv_like",
    "send",
    "sum_scatter",
    "trace",
    "widgets",
]

# The two `..._ipython_extension` are IPython's to look for, not a user's to import.
_ROOMS = {
    "Group": "distributed",
    "Work": "distributed",
    "all_gather": "distributed",
    "all_max": "distributed",
    "all_min": "distributed",
    "all_sum": "distributed",
    "all_to_all": "distributed",
    "broadcast": "distributed",
    "init": "distributed",
    "is_available": "distributed",
    "recover": "distributed",
    "recv": "distributed",
    "recv_like": "distributed",
    "send": "distributed",
    "sum_scatter": "distributed",
    "trace": "distributed",
    "CellError": "errors",
    "CollectiveMismatch": "errors",
    "CollectiveTimeout": "errors",
    "DistributedError": "errors",
    "NotConfigured": "errors",
    "NotSupported": "errors",
    "RankFailure": "errors",
    "Workspace": "workspace",
    "load_ipython_extension": "magics",
    "unload_ipython_extension": "magics",
}


def __getattr__(name: str) -> Any:
    """Load the room of a public name when the name is first used."""
    if name == "widgets":
        return importlib.import_module(".widgets", __name__)
    if name not in _ROOMS:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=importlib.import_module(__name__))
    value = getattr(importlib.import_module(f".{_ROOMS[name]}", __name__), name)
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
