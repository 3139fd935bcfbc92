"""The public functions on MPI: what other backends are held to, on ranks of mpirun that stay.

Tests that are imported run here with the worlds of this file. That the same call gives the same bits
MPI does not promise; the libraries that we are tested with do so.
"""

from __future__ import annotations

import pytest
from distributed.arrays.test_frameworks import exchange_kinds
from distributed.cells import cells, engine_cells, pair_cells, split_cells
from distributed.cells.large_cells import large
from distributed.group.test_split import (  # noqa: F401
    test_wrong_arguments_are_refused_before_anything_is_said,
)
from distributed.mpi import mpi_cells
from distributed.mpi.mpi_world import MpiWorlds
from distributed.operations import contract
from distributed.operations.contract import Case
from distributed.operations.test_bad_input import check_refused, refused
from distributed.operations.test_collectives import check_scalars
from distributed.operations.test_contract import (  # noqa: F401
    test_any_call_gives_what_numpy_gives,
    test_every_op_and_dtype_at_sizes_around_every_share_and_segment,
    test_every_shape_layout_and_way_to_call,
    test_the_same_call_gives_the_same_bits_again,
)
from distributed.operations.test_objects import (  # noqa: F401
    test_objects_in_splits,
    test_objects_of_all_ranks_and_of_each,
    test_ranks_without_a_key_refuse_objects_all_alike,
    test_what_cannot_be_pickled_or_loaded_leaves_nobody_waiting,
)
from distributed.operations.test_work import (  # noqa: F401
    test_a_wait_that_is_too_short_ends_only_itself,
    test_an_interrupt_of_a_wait_frees_everybody,
    test_an_operations_own_time_counts_from_its_submission,
    test_closing_ends_what_is_queued_and_frees_the_others,
    test_nobody_holds_the_arrays_of_what_was_waited_for,
    test_results_are_right_and_calls_keep_their_place,
    test_the_rest_of_the_queue_and_what_comes_later_fail_alike,
)
from support.programs.memory import least_growth
from support.runs.tiers import deep, deep_but

pytestmark = pytest.mark.slow

SIZE = 3  # odd, and more than a pair
KINDS = ("bool", "int16", "float16", "bfloat16", "float32", "complex64")


@pytest.fixture(scope="module")
def worlds(mpi):
    with MpiWorlds(mpi) as made:
        yield made


@pytest.fixture
def world(worlds):
    return worlds(SIZE)


@pytest.fixture
def few_worlds(world):
    return world


@pytest.fixture
def trio(world):
    return world


@pytest.fixture
def pair(worlds):
    return worlds(2)


@pytest.fixture
def keyed_pair(pair):
    return pair


@pytest.mark.parametrize("size", deep_but([1, 2], [1, 2, 4, 8]))
def test_groups_of_other_sizes(worlds, size):
    world = worlds(size)
    assert len(set(world.run(mpi_cells.public))) == 1
    contract.check_all(world, contract.grid(size, dtypes=KINDS))


def test_the_group_says_what_it_is(world, mpi):
    library = {"openmpi": "Open", "mpich": "MPICH"}[mpi.name]
    assert world.run(mpi_cells.public) == [library] * SIZE


def test_arrays_that_are_cut_up(world):
    """With limits so low that small arrays take the ways of large ones."""
    usual = world.run(mpi_cells.limit_moves, 500, 600, 64)[0]
    try:
        cases = [
            Case(op, (n,), dtype)
            for op in contract.OPS
            for dtype in contract.DTYPES
            for n in (401, 1009)
        ]
        contract.check_all(world, [*cases, *contract.several_dimensions(SIZE)])
    finally:
        world.run(mpi_cells.limit_moves, *usual)


def test_any_byte_but_0_is_true(world):
    world.run(engine_cells.truths)


@pytest.mark.parametrize("nbytes", [8, 8000])
def test_messages_of_every_pair(world, nbytes):
    assert all(world.run(pair_cells.exchange, nbytes))


def test_scalars_keep_their_kind(world):
    check_scalars(world.run(cells.scalars))


def test_bad_calls_are_refused_and_the_group_stays_good(world):
    check_refused(world.run(refused)[1])


@deep  # each rank imports torch
@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)  # what a tensor is, no MPI knows
def test_tensors(world):
    pytest.importorskip("torch")
    said = world.run(exchange_kinds, ["torch"])
    for rank, results in enumerate(said):
        left = (rank - 1) % SIZE + 1
        moved = [[left, 2 * left], [rank + 1, 2 * rank + 2]]
        moved = moved if rank else moved[::-1]
        assert results["torch"] == [[6, 12], [1, 2, 2, 4, 3, 6], [6, 12], *moved]


# Splits


def test_a_split_says_who_is_in_it(world):
    for rank, described in enumerate(world.run(split_cells.described_split)):
        assert described["members"] == [2, 1, 0]
        assert (described["rank"], described["size"]) == (2 - rank, SIZE)
        assert (described["color"], described["key"]) == (7, SIZE - rank)
        engine = described["engine"]
        assert engine["algorithms"]["all_sum"][8] == "inline"
        assert engine["algorithms"]["sum_scatter"][1 << 26] == "mpi"
        assert engine["algorithms"]["barrier"][1 << 26] == "inline"
        assert engine["stripes"] == {}


def test_ranks_of_one_color_come_together(world):
    found = world.run(split_cells.split_by, [3, None, 3], [9, 0, 1])
    assert found == [([2, 0], 1, ["mpi", "self"]), None, ([2, 0], 0, ["self", "mpi"])]


def test_a_part_that_is_turned_around_is_right(world):
    cases = [
        Case(op, (n,), dtype)
        for op in contract.OPS
        for dtype in ("int32", "float16")
        for n in (1, 300)
    ]
    cases += [Case("send", (20_000,), "float64")]
    world.run(mpi_cells.check_in_part, cases)


def test_splits_leave_no_descriptor_and_no_thread_behind(world):
    assert world.run(mpi_cells.news_left_by_splits) == [0] * SIZE
    for before, *_, after in world.run(split_cells.split_many, 5):
        assert after[:2] == before[:2]  # descriptors, threads


@deep
def test_two_hundred_splits_leave_no_memory_behind(world):
    for found in world.run(split_cells.split_many, 70):
        assert least_growth([kib for *_, kib in found]) < 1024


def test_splits_that_are_garbage_are_closed(pair):
    pair.run(mpi_cells.dropped)


# Forks, threads, and the end


def test_a_forked_child_is_refused_and_does_no_harm(pair):
    for said in pair.run(split_cells.fork_with_splits):
        assert said.count("fork") == 2  # to wait for a work that is over needs no MPI
    pair.run(mpi_cells.forked_waiting)


def test_a_group_that_is_closed_as_something_is_submitted_takes_it_no_more(pair):
    pair.run(mpi_cells.closed_as_submitted)


def test_who_waits_for_a_message_of_a_rank_that_closed_is_freed(pair):
    pair.run(mpi_cells.closed_by_the_sender)
    pair.is_good = False  # what failed in a split has failed in its world


@deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("op", ["all_sum", "broadcast", "send"])
def test_arrays_of_more_than_2_gib(pair, much_memory, op):
    count = (1 << 31) + 4097
    much_memory(5 * count)
    pair.start(large, op, count)
    assert pair.outcomes(timeout=250) == [0, 0]
