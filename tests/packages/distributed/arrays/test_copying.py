"""Names of one rank that others get: between hosts, and altered on their way there."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from distributed.cells.object_cells import FLIPPED_BIT
from distributed.cells.texts import text_of
from support.runs.tiers import deep_but

import phalanx as px
from phalanx.distributed.operations import sealed
from phalanx.rank.values import copying
from phalanx.rank.values.copying import copy_names


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
    send, unpack = sealed.send, copying.load_each
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
        mock.patch.object(copying, "load_each", load),
    ):
        return text_of(copy_from_0, {"a": 1, "b": np.arange(300)}), len(loaded)


@pytest.mark.parametrize(("hosts", "transport"), [((0, 0, 0), "tcp"), ((0, 0, 1), "any")])
def test_names_are_copied_between_hosts(rank_pool, hosts, transport):
    names = {"a": [1, "two"], "array": np.arange(1000), "none": np.empty(0)}
    for rank, (copied, problems, there) in enumerate(
        rank_pool(3, hosts, transport).run(copy_from_0, names)
    ):
        assert (copied, problems) == (3, {}), rank
        assert there["a"] == names["a"]
        assert there["array"].tolist() == names["array"].tolist()
        assert there["array"].flags.writeable


# Rank 0 sends its number, then a head and bytes each of: a parcel, a pickle, an array's memory.
@pytest.mark.parametrize("number", deep_but([0, 4, 6], range(7)))
def test_names_that_were_altered_on_the_way_are_not_unpickled(rank_pool, number):
    world = rank_pool(2, transport="tcp")
    (giver, _), (taker, n_loaded) = world.run(copy_altered, number)
    world.is_good = False
    for said in (giver, taker):
        assert said.startswith("DistributedError: ")
        assert "what came from rank 0 was altered on the way" in said
    assert n_loaded == 0
