"""What ranks run to copy one rank's names, and to alter what is on its way."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from distributed.cells.object_cells import FLIPPED_BIT, text_of

import phalanx as px
from phalanx.distributed.operations import sealed
from phalanx.rank import copy_names, copying


def copy_from_0(names: dict[str, Any]) -> tuple[Any, ...]:
    """Copy names of rank 0 to all others; what these have now."""
    group = px.init()
    mine = names if group.rank() == 0 else {}
    others = range(1, group.size())
    report = copy_names(mine, {}, 0, others, group.rank())
    return report.copied, report.problems, mine


def copy_altered(number: int) -> tuple[str, int]:
    """Copy names of rank 0, of whose messages one is altered; what is said, and what was loaded."""
    rank, n_sent = px.init().rank(), 0
    send, unpack = sealed.send, copying.unpack
    loaded: list[int] = []

    def on_the_way(x: Any, dst: int, **options: Any) -> Any:
        nonlocal n_sent
        if rank == 0 and n_sent == number:
            x = x.copy()
            x[-1] ^= FLIPPED_BIT
        n_sent += 1
        return send(x, dst, **options)

    def load(*args: Any) -> Any:
        loaded.append(1)
        return unpack(*args)

    with (
        mock.patch.object(sealed, "send", on_the_way),
        mock.patch.object(copying, "unpack", load),
    ):
        return text_of(copy_from_0, {"a": 1, "b": np.arange(3)}), len(loaded)
