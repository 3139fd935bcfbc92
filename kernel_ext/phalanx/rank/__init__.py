"""Run cells in a rank; exchange values with it.

`phalanx.rank.kernel` is the kernel of a rank. The names here are those that the client needs too; to
import them loads no kernel.
"""

from __future__ import annotations

from .debugging.debugger import POST_MORTEM, ErrorOfCell
from .output.widgets import add_output
from .values.packed_calls import bind, fetch, load_value, map_block, pack_call
from .values.pickling import pack_values, unpack_values

__all__ = [
    "POST_MORTEM",
    "ErrorOfCell",
    "add_output",
    "bind",
    "fetch",
    "load_value",
    "map_block",
    "pack_call",
    "pack_values",
    "unpack_values",
]
