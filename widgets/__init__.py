"""The door of the pictures: what a world looks like, and how fast it is.

Still pictures only draw records of `phalanx.protocol`; they start and ask nothing. Live widgets
need anywidget, which is loaded when one is first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._bandwidth import bandwidth
from ._in_use import uses_of
from ._monitor import monitor
from ._plan import planned
from ._seen import Seen
from ._still import StillPicture
from ._sweep_words import sweep_csv, sweep_json, sweep_model, sweep_words
from ._table import HEADER, format_measurement, format_size, table, table_html
from ._topology import topology

if TYPE_CHECKING:
    from ._bandwidth_frames import Asked
    from ._cabling import cabling
    from ._live import keep_stills
    from ._live_bandwidth import Bandwidth
    from ._live_monitor import Monitor
    from ._live_topology import Topology

__all__ = [
    "HEADER",
    "Asked",
    "Bandwidth",
    "Monitor",
    "Seen",
    "StillPicture",
    "Topology",
    "bandwidth",
    "cabling",
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
    "table_html",
    "topology",
    "uses_of",
]

_LATER = {
    "Asked": "_bandwidth_frames",
    "Bandwidth": "_live_bandwidth",
    "Monitor": "_live_monitor",
    "Topology": "_live_topology",
    "cabling": "_cabling",
    "keep_stills": "_live",
}


def __getattr__(name: str) -> Any:
    """Load a live widget, or what knows other rooms' records, when it is first named."""
    if name not in _LATER:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=None)
    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
