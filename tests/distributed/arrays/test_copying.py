"""Names of one rank that others get: between hosts, and altered on their way there."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.cells import copy_cells
from support.runs.tiers import deep_but


@pytest.mark.parametrize(("hosts", "transport"), [((0, 0, 0), "tcp"), ((0, 0, 1), "any")])
def test_names_are_copied_between_hosts(rank_pool, hosts, transport):
    names = {"a": [1, "two"], "array": np.arange(1000), "none": np.empty(0)}
    for rank, (copied, problems, there) in enumerate(
        rank_pool(3, hosts, transport).run(copy_cells.copy_from_0, names)
    ):
        assert (copied, problems) == (3, {}), rank
        assert there["a"] == names["a"]
        assert there["array"].tolist() == names["array"].tolist()
        assert there["array"].flags.writeable


# Rank 0 sends its number, then a head and bytes each of: a parcel, a pickle, an array's memory.
@pytest.mark.parametrize("number", deep_but([0, 4, 6], range(7)))
def test_names_that_were_altered_on_the_way_are_not_unpickled(rank_pool, number):
    world = rank_pool(2, transport="tcp")
    (giver, _), (taker, n_loaded) = world.run(copy_cells.copy_altered, number)
    world.is_good = False
    for said in (giver, taker):
        assert said.startswith("DistributedError: ")
        assert "what came from rank 0 was altered on the way" in said
    assert n_loaded == 0
