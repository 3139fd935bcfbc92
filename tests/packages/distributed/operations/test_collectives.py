"""Collectives of real processes beside the contract: groups, scalars, children, wrong calls."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.cells import cells, engine_cells
from distributed.operations import contract
from distributed.operations.contract import Case


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


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1), (0, 0, 1)])
def test_true_is_any_byte_but_zero(rank_pool, hosts):
    rank_pool(len(hosts), hosts).run(engine_cells.truths)


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
def test_wrong_calls_are_refused_and_the_group_stays_good(rank_pool, hosts):
    parts = (
        "ValueError: sum_scatter of 5 elements: they must be divisible by the size of the group, 2",
        "ValueError: all_to_all of 5 elements: they must be divisible by the size of the group, 2",
        *["ValueError: sum_scatter: the engine cannot write its result to out"] * 2,
        "ValueError: all_to_all: the engine cannot write its result to out",
        *["ValueError: all_sum: the engine cannot use the array as it is"] * 9,
        "ValueError: all_max: the engine cannot write its result to out",
    )
    for said in rank_pool(2, hosts).run(engine_cells.refusals):
        assert len(said) == len(parts), said
        for text, part in zip(said, parts, strict=True):
            assert text.startswith(part)


@pytest.mark.parametrize(
    ("hosts", "transport", "named"),
    [
        ((0, 0), "any", {("sum_scatter", 8): "inline", ("sum_scatter", 1 << 26): "staged"}),
        ((0, 0), "tcp", {("all_to_all", 8): "pairwise", ("sum_scatter", 1 << 26): "ring"}),
        ((0, 0, 0), "tcp", {("all_sum", 1 << 20): "direct"}),
        ((0, 0, 1), "any", {("all_gather", 8): "inline+ring", ("all_sum", 1024): "inline+mesh"}),
    ],
)
def test_describe_names_the_algorithm_of_every_operation_on_every_rank(
    rank_pool, hosts, transport, named
):
    first, *others = [
        told["engine"] for told in rank_pool(len(hosts), hosts, transport).run(cells.describe)
    ]
    algorithms = first["algorithms"]
    ops = {*contract.REDUCTIONS, "all_to_all", "all_gather", "broadcast", "barrier"}
    assert set(algorithms) == ops
    for (op, nbytes), algorithm in named.items():
        assert algorithms[op][nbytes] == algorithm
    # What is widened for the way between hosts does not come with the header.
    of_halves = first["algorithms_of_halves"]
    assert set(of_halves) == {"all_sum", "sum_scatter"}
    assert of_halves["all_sum"][1024] == (
        "staged+mesh" if len(set(hosts)) > 1 else algorithms["all_sum"][1024]
    )
    assert all(its["algorithms"] == algorithms for its in others)
