"""What ranks run to give each other objects, and to alter what is on its way."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from distributed.cells.texts import text_of

import phalanx as px
from phalanx.distributed.operations import objects

FLIPPED_BIT = 0x10
MIB = 1 << 20


@dataclass
class Kin:
    """A value of a class that all ranks know by its name."""

    rank: int
    text: str
    many: list[int]


def given(rank: int, nbytes: int) -> tuple[Kin, bytes]:
    return Kin(rank, "é" * rank, list(range(rank))), bytes([rank]) * nbytes


def give_and_get(in_split: bool = False) -> list[int]:
    """Objects of few and many bytes, of all ranks and of each; the group's ranks, as they say."""
    world = px.init()
    if in_split and world.size() > 1:
        with world.split(world.rank() % 2, key=world.size() - world.rank()) as part:
            return _give_and_get(part)
    return _give_and_get(world)


def _give_and_get(group: px.Group) -> list[int]:
    rank, size = group.rank(), group.size()
    # Alike; empty; so that all travel at once; so that each travels alone.
    for lengths in ([3] * size, [0] * size, [MIB] * size, [2 * MIB, *range(1, size)]):
        mine = given(rank, lengths[rank])
        got = px.all_gather_object(mine, group=group)
        assert got == [given(other, lengths[other]) for other in range(size)]
        assert type(got[rank][0]) is Kin
        assert got[rank][0] is not mine[0]
        px.barrier(group=group)
    for root in range(size):
        mine = given(rank, 5000 * root)
        got = px.broadcast_object(mine, root, group=group)
        assert got == given(root, 5000 * root)
        assert (got is mine) == (rank == root)
    assert px.broadcast_object(None if rank else lambda x: x + size, group=group)(1) == size + 1
    return px.all_gather_object(px.init().rank(), group=group)


class Unloadable:
    """A value that one rank cannot load."""

    def __init__(self, where: int) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return load_but_on, (self.where,)


def load_but_on(where: int) -> str:
    if px.init().rank() == where:
        msg = "no such thing\nhere"
        raise LookupError(msg)
    return "loaded"


def refusals() -> list[str]:
    """What is said of objects that cannot be pickled, or loaded; the group is good after each."""
    rank = px.init().rank()
    lock = threading.Lock()
    said = [
        text_of(px.all_gather_object, lock if rank == 1 else "x"),
        text_of(px.all_gather_object, lock if rank else "x"),
        text_of(px.broadcast_object, lock if rank == 1 else "x", 1),
        text_of(px.broadcast_object, lock if rank == 0 else "x", 1),
        text_of(px.all_gather_object, Unloadable(0)),
        text_of(px.broadcast_object, Unloadable(0), 1),
        text_of(px.broadcast_object, "x", root=px.init().size()),
        text_of(px.all_gather_object, "x", group="world"),
        text_of(px.all_gather_object, "x", timeout=-1),
    ]
    assert px.all_gather_object(rank) == list(range(px.init().size()))
    return said


def differ(calls: str) -> str:
    """Make another call than the other rank; what is said."""
    rank = px.init().rank()
    if calls == "array":
        return (
            text_of(px.all_gather, np.zeros(3, np.int64))
            if rank
            else text_of(px.all_gather_object, "x")
        )
    if calls == "objects":
        return text_of(px.broadcast_object if rank else px.all_gather_object, "x")
    return text_of(px.broadcast_object, "x", root=rank)


def late(timeout: float) -> str:
    return text_of(px.all_gather_object, "x", timeout=timeout)


def without_key() -> list[str]:
    """What is said where ranks have no key; then with theirs."""
    group = px.init()
    current = group._current
    group._current = replace(current, spec=replace(current.spec, key=b""))
    said = [text_of(px.all_gather_object, "x"), text_of(px.broadcast_object, "x")]
    group._current = current
    return [*said, text_of(px.all_gather_object, "x")]


# What somebody on the way may do


def altered(op: str, what: str) -> tuple[str, int, str]:
    """Exchange objects of which rank 0's is altered after it was sealed.

    Returns what is said, how many pickles were loaded, and what a later call says.
    """
    rank, n_loaded = px.init().rank(), 0
    collective, loads = objects._Exchange._collective, pickle.loads

    def on_the_way(self: Any, name: str, x: Any, *rest: Any) -> Any:
        is_pickle = x.dtype == np.uint8
        if is_pickle and rank == 0 and what in ("first", "last"):
            x[0 if what == "first" else -1] ^= FLIPPED_BIT
        got = collective(self, name, x, *rest)
        if not is_pickle and rank == 1 and what == "number":
            got.reshape(-1)[1] ^= FLIPPED_BIT
        return got

    def load(data: Any) -> Any:
        nonlocal n_loaded
        n_loaded += 1
        return loads(data)

    with (
        mock.patch.object(objects._Exchange, "_collective", on_the_way),
        mock.patch.object(pickle, "loads", load),
    ):
        said = text_of(getattr(px, op), {"rank": rank})
        return said, n_loaded, text_of(px.barrier)


def replayed() -> tuple[str, str]:
    """Get an object, and then once more what came as it: what is said of the first, and of that."""
    rank = px.init().rank()
    collective = objects._Exchange._collective
    kept: list[Any] = []

    def on_the_way(self: Any, name: str, x: Any, *rest: Any) -> Any:
        got = collective(self, name, x, *rest)
        if rank == 1 and x.dtype == np.uint8:
            kept.append(got.copy())
            got[...] = kept[0]
        return got

    with mock.patch.object(objects._Exchange, "_collective", on_the_way):
        return text_of(px.broadcast_object, "a"), text_of(px.broadcast_object, "b")
