"""Run one notebook cell on every rank, on one or many machines.

This package imports the public names lazily (PEP 562), so that a rank loads no client or widget.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import nn, widgets
    from .distributed import (
        Group,
        Work,
        all_gather,
        all_gather_object,
        all_max,
        all_min,
        all_sum,
        all_to_all,
        barrier,
        broadcast,
        broadcast_object,
        init,
        is_available,
        print0,
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
    "all_gather_object",
    "all_max",
    "all_min",
    "all_sum",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "init",
    "is_available",
    "nn",
    "print0",
    "recover",
    "recv",
    "recv_like",
    "send",
    "sum_scatter",
    "trace",
    "widgets",
]

# IPython looks up the two `..._ipython_extension` functions; a user need not import them.
_MODULES = {
    "Group": "distributed",
    "Work": "distributed",
    "all_gather": "distributed",
    "all_gather_object": "distributed",
    "all_max": "distributed",
    "all_min": "distributed",
    "all_sum": "distributed",
    "all_to_all": "distributed",
    "barrier": "distributed",
    "broadcast": "distributed",
    "broadcast_object": "distributed",
    "init": "distributed",
    "is_available": "distributed",
    "print0": "distributed",
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
    """Import the module of a public name at its first use."""
    if name in ("nn", "widgets"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=importlib.import_module(__name__))
    value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value  # the next look-up finds the global
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
