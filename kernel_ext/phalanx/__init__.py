"""Run one notebook cell on every rank, on one or many machines.

This package imports the public names lazily (PEP 562), so that a rank loads no client or widget.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import nn, widgets
    from .distributed.bootstrap.init import init, is_available, recover
    from .distributed.bootstrap.progress import trace
    from .distributed.group.group import Group
    from .distributed.group.work import Work
    from .distributed.operations.exchanges import (
        all_gather,
        all_to_all,
        barrier,
        broadcast,
        print0,
    )
    from .distributed.operations.objects import all_gather_object, broadcast_object
    from .distributed.operations.point_to_point import recv, recv_like, send
    from .distributed.operations.reductions import all_max, all_min, all_sum, sum_scatter
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
    "Group": "distributed.group.group",
    "Work": "distributed.group.work",
    "all_gather": "distributed.operations.exchanges",
    "all_gather_object": "distributed.operations.objects",
    "all_max": "distributed.operations.reductions",
    "all_min": "distributed.operations.reductions",
    "all_sum": "distributed.operations.reductions",
    "all_to_all": "distributed.operations.exchanges",
    "barrier": "distributed.operations.exchanges",
    "broadcast": "distributed.operations.exchanges",
    "broadcast_object": "distributed.operations.objects",
    "init": "distributed.bootstrap.init",
    "is_available": "distributed.bootstrap.init",
    "print0": "distributed.operations.exchanges",
    "recover": "distributed.bootstrap.init",
    "recv": "distributed.operations.point_to_point",
    "recv_like": "distributed.operations.point_to_point",
    "send": "distributed.operations.point_to_point",
    "sum_scatter": "distributed.operations.reductions",
    "trace": "distributed.bootstrap.progress",
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
