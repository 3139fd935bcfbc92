"""Draw topologies, bandwidth and activity: still pictures and live widgets.

Still pictures only draw records of `phalanx.protocol`. Live widgets need anywidget, which is loaded
when a live widget is first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .frames.bandwidth import Asked, SweepRequest
from .stills.bandwidth import bandwidth
from .stills.monitor import monitor
from .stills.svg import StillPicture
from .stills.topology import Observations, planned, topology
from .stills.topology import Observations as Seen  # the name until 2026-11
from .text.operations import uses_of
from .text.tables import (
    HEADER,
    format_measurement,
    format_size,
    sweep_csv,
    sweep_json,
    sweep_model,
    sweep_words,
    table,
)

if TYPE_CHECKING:
    from .live.bandwidth import Bandwidth
    from .live.monitor import Monitor
    from .live.topology import Topology
    from .live.widget import keep_stills

__all__ = [
    "HEADER",
    "Asked",
    "Bandwidth",
    "Monitor",
    "Observations",
    "Seen",
    "StillPicture",
    "SweepRequest",
    "Topology",
    "bandwidth",
    "format_measurement",
    "format_size",
    "keep_stills",
    "monitor",
    "planned",
    "sweep_csv",
    "sweep_json",
    "sweep_model",
    "sweep_words",
    "table",
    "topology",
    "uses_of",
]

_LATER = {
    "Bandwidth": "live.bandwidth",
    "Monitor": "live.monitor",
    "Topology": "live.topology",
    "keep_stills": "live.widget",
}


def __getattr__(name: str) -> Any:
    """Load live widgets when they are first named."""
    if name not in _LATER:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=None)
    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
