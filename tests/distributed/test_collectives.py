"""Collectives of real processes beside the contract: groups, epochs, scalars, children."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import cells, contract
from distributed.contract import Case


def test_many_small_sums_in_a_row_and_a_barrier(few_worlds):
    assert few_worlds.run(cells.stream_of_sums, 300, 5) == [300] * few_worlds.size
    n = few_worlds.size
    assert few_worlds.run(cells.barrier) == [f"<phalanx.Group rank {r} of {n}>" for r in range(n)]


def check_scalars(results):
    """Compare with what three ranks get."""
    for result in results:
        whole, real, narrow, wide, root, gathered, rows, flat = result
        assert [type(x) for x in (whole, real, root)] == [int, float, int]
        assert [type(x) for x in (narrow, wide)] == [np.float32, np.int64]
        assert (whole, real, narrow, wide, root) == (6, 4.5, 3, 3, 7)
        assert (gathered.tolist(), gathered.dtype) == ([1, 2, 3], np.int64)
        assert (rows.tolist(), rows.shape) == ([0.5, 1.5, 2.5], (3,))
        assert (flat.shape, float(flat)) == ((), 3.0)


@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_scalars_keep_their_kind(rank_pool, transport):
    check_scalars(rank_pool(3, transport=transport).run(cells.scalars))


def test_links_without_shared_memory_and_page(rank_pool):
    world = rank_pool(3, with_memory=False)
    dtypes = ("float32", "bfloat16", "int64")
    contract.check_all(world, [Case(op, (1009,), d) for op in contract.OPS for d in dtypes])


def test_the_group_says_what_it_is(rank_pool):
    described = rank_pool(3, (0, 0, 1)).run(cells.describe)
    assert [d["transports"] for d in described] == [
        ["self", "arena", "tcp"],
        ["arena", "self", "tcp"],
        ["tcp", "tcp", "self"],
    ]
    assert described[0]["hosts"] == ["host0", "host0", "host1"]
    tcp = rank_pool(2, transport="tcp").run(cells.describe)
    assert tcp[0]["transports"] == ["self", "tcp"]


def test_a_new_epoch_arms_the_same_group_again(rank_pool):
    first = rank_pool(2).run(cells.identity_across_epochs)
    second = rank_pool(2, transport="tcp").run(cells.identity_across_epochs)
    assert first == second
    assert all(same for _, same in first)


def test_children_of_a_rank_inherit_nothing_of_the_world(rank_pool):
    assert rank_pool(2).run(cells.inheritable) == [[], []]


@pytest.mark.slow
def test_processes_that_a_rank_starts_are_no_ranks(rank_pool):
    world = rank_pool(2)
    for by_exec, by_fork in world.run(cells.child_worlds):
        assert by_exec == "<phalanx.Group rank 0 of 1>"
        assert by_fork.count("is a fork of process") == 2
    assert world.run(cells.stream_of_sums, 3, 5) == [3, 3]
