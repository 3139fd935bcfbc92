"""A caller's mistakes, found before anything is sent: the group stays as good as it was.

The words are the native engine's (native/binding/bind_group.cpp) and MLX's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLLECTIVES", "check_arrays", "check_peer", "check_root"]

Array = NDArray[Any]

COLLECTIVES = (
    "all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "all_to_all", "broadcast",
)  # fmt: skip


def check_root(root: int, size: int) -> None:
    """Refuse a root that is no rank."""
    if not 0 <= root < size:
        msg = f"root {root} is not a rank of this group of {size}"
        raise ValueError(msg)


def check_peer(op: str, peer: int, rank: int, size: int) -> None:
    """Refuse a peer that is no other rank."""
    if size == 1:
        where = "send to" if op == "send" else "recv from"
        msg = f"Cannot {where} a singleton group"
    elif not 0 <= peer < size:
        what = "destination" if op == "send" else "source"
        msg = f"Invalid {what}={peer} for a group of size {size}"
    elif peer == rank:
        msg = f"rank {rank} cannot {'send to' if op == 'send' else 'receive from'} itself"
    else:
        return
    raise ValueError(msg)


def check_arrays(
    op: str, x: Array, out: Array, name: str, out_name: str, rank: int, size: int
) -> None:
    """Refuse arrays that do not fit together."""
    if op not in COLLECTIVES:
        msg = f"there is no operation '{op}'; there are: {', '.join(COLLECTIVES)}"
        raise ValueError(msg)
    for array, what in ((x, "x"), (out, "out")):
        if not (array.flags.c_contiguous and array.flags.aligned):
            msg = f"{what} must be C-contiguous and aligned"
            raise ValueError(msg)
    if not out.flags.writeable:
        msg = "out must be writeable"
        raise ValueError(msg)
    if name != out_name:
        msg = f"out has dtype {out_name}, x has {name}"
        raise TypeError(msg)
    if op in {"sum_scatter", "all_to_all"} and x.size % size:
        msg = f"x has {x.size} elements, which {size} ranks cannot share"
        raise ValueError(msg)
    needed = {"all_gather": x.size * size, "sum_scatter": x.size // size}.get(op, x.size)
    if out.size != needed:
        msg = f"out has {out.size} elements; {needed} are needed"
        raise ValueError(msg)
    own = x.nbytes * rank if op == "all_gather" else 0
    is_same = op != "sum_scatter" and x.ctypes.data == out.ctypes.data + own
    if not is_same and np.may_share_memory(x, out):
        msg = "x and out overlap; they must be the same memory or apart"
        raise ValueError(msg)
