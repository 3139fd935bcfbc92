"""The public functions on MPI: the contract suite of the ring, on ranks of mpirun that stay."""

from __future__ import annotations

import pytest
from distributed import cells, contract, split_cells, work_cells
from distributed.any_call import any_calls
from distributed.mpi_world import MpiWorld
from distributed.test_bad_input import check_refused, refused
from distributed.test_collectives import check_scalars
from distributed.test_frameworks import exchange_kinds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

SIZE = 3  # odd, and more than a pair


@pytest.fixture(scope="module")
def worlds(mpi):
    """What this library's ranks were asked so far: the last world, if it is good, is used again."""
    made: list[MpiWorld] = []
    yield made
    for world in made:
        with world:
            pass


@pytest.fixture
def world(mpi, worlds):
    if not worlds or not worlds[-1].is_good:
        worlds.append(MpiWorld(mpi, SIZE))
    return worlds[-1]


def test_every_op_and_dtype_at_sizes_around_every_share(world):
    contract.check_all(world, contract.grid(SIZE))


def test_every_shape_layout_and_way_to_call(world):
    contract.check_all(world, contract.several_dimensions(SIZE))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_call_gives_what_numpy_gives(world, data):
    contract.check_all(world, [data.draw(any_calls(SIZE))])


@pytest.mark.parametrize("op", contract.REDUCTIONS)
def test_the_same_call_gives_the_same_bits_again(world, op):
    """MPI does not promise it; the libraries that we are tested with do so."""
    for dtype in ("float16", "float32", "complex64"):
        for count in (5, 5003, 70_001):
            calls = [
                contract.Case(op, (count,), dtype, seed=4, async_op=again == 2)
                for again in range(4)
            ]
            for results in world.run(contract.perform_all, calls):
                assert len(set(results)) == 1


def test_scalars_keep_their_kind(world):
    check_scalars(world.run(cells.scalars))


def test_bad_calls_are_refused_and_the_group_stays_good(world):
    check_refused(world.run(refused)[1])


@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)  # what a tensor is, no MPI knows
def test_tensors(world):
    pytest.importorskip("torch")
    said = world.run(exchange_kinds, ["torch"])
    for rank, results in enumerate(said):
        left = (rank - 1) % SIZE + 1
        moved = [[left, 2 * left], [rank + 1, 2 * rank + 2]]
        moved = moved if rank else moved[::-1]
        assert results["torch"] == [[6, 12], [1, 2, 2, 4, 3, 6], [6, 12], *moved]


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


def test_wrong_arguments_of_split_are_refused_before_anything_is_said(world):
    assert world.run(split_cells.wrong_splits) == [split_cells.WRONG] * SIZE


def test_two_hundred_splits_leave_nothing_behind(world):
    for before, after in world.run(split_cells.split_many, 200):
        assert after[:2] == before[:2]  # descriptors, threads
        assert after[2] - before[2] < 4096  # KiB


def test_nobody_holds_the_arrays_of_what_was_waited_for(world):
    assert world.run(work_cells.arrays_left) == [0] * SIZE


def test_a_wait_that_is_too_short_ends_only_itself(world):
    world.start(work_cells.wait_too_short, 0.1, ranks=[0])
    with pytest.raises(TimeoutError):
        world.outcomes([0], timeout=0.3)
    world.start(work_cells.submit_and_wait, 100, ranks=[1, 2])
    said, *others = world.outcomes()
    assert others == [True, True]
    assert said[0] is False
    assert "all_sum is still under way after a wait of 0.1 s" in said[1]
    assert said[2:] == ["<phalanx.Group rank 0 of 3>", True]
