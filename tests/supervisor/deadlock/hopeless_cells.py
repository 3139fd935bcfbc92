"""What ranks of the farm run to wait for each other in vain."""

from __future__ import annotations

import numpy as np
from distributed.cells.work_cells import submit_sum

import phalanx as px

# Splits last from cell to cell here, as variables do in a notebook; works are kept alive.
_KEPT: dict[str, px.Group] = {}
_WORKS: list[object] = []


def split(name: str, colors: list[int | None], parent: str = "") -> tuple[int, list[int]] | None:
    """Split the world, or a split of before; the number and the ranks of what came of it."""
    if parent and parent not in _KEPT:
        return None
    whole = _KEPT[parent] if parent else px.init()
    part = whole.split(colors[px.init().rank()])
    if part is None:
        return None
    _KEPT[name] = part
    return part._spec.number, part.describe()["members"]


def forget() -> None:
    _KEPT.clear()
    _WORKS.clear()


def sum_ones(length: int, name: str = "") -> bool:
    group = _KEPT[name] if name else px.init()
    return bool((px.all_sum(np.ones(length), group=group) == group.size()).all())


def submit_and_end(length: int) -> None:
    _WORKS.append(submit_sum(length))


def sum_range(length: int) -> bool:
    x = np.arange(float(length))
    return bool((px.all_sum(x) == x * px.init().size()).all())


def recv(src: int, name: str = "") -> None:
    px.recv((3,), np.float64, src, group=_KEPT[name] if name else None)


def send(dst: int, length: int = 3) -> None:
    px.send(np.zeros(length), dst)
