"""Run cells in a rank; exchange values with it.

`phalanx.rank.kernel` is the kernel of a rank. The names here are those that the client needs too; to
import them loads no kernel.
"""

from __future__ import annotations

from .debugging.debugger import POST_MORTEM, ErrorOfCell
from .output.widgets import add_output
from .tasks import (
    bind_values,
    copy_variables,
    evaluate,
    last_error,
    pack_task,
    publish_links,
    publish_sweep,
    value_of_cell,
)
from .values.copying import CopyReport
from .values.packed_calls import bind, fetch, load_value, map_block, pack_call
from .values.pickling import pack_values, unpack_values

__all__ = [
    "POST_MORTEM",
    "CopyReport",
    "ErrorOfCell",
    "add_output",
    "bind",
    "bind_values",
    "copy_variables",
    "evaluate",
    "fetch",
    "last_error",
    "load_value",
    "map_block",
    "pack_call",
    "pack_task",
    "pack_values",
    "publish_links",
    "publish_sweep",
    "unpack_values",
    "value_of_cell",
]
