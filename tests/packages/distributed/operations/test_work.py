"""Operations that were handed over to the group's thread."""

from __future__ import annotations

import signal

import pytest
from distributed.cells import cells, work_cells
from distributed.farm.formations import THREE, worlds
from support.promise import within
from support.runs.tiers import deep
from support.waiting import wait_until

import phalanx as px

world = worlds(THREE)


def test_results_are_right_and_calls_keep_their_place(world):
    assert world.run(work_cells.submit_many, 10) == [40] * 3


def test_arrays_live_until_their_operation_is_over(world):
    world.start(work_cells.dropped_arrays, ranks=[0])
    world.wait_in("all_sum", [0], n_queued=8)
    world.start(work_cells.dropped_arrays, ranks=[1, 2])
    outcomes = world.outcomes()
    assert outcomes[0] == [0, 10]
    assert [after for _, after in outcomes] == [10] * 3


def test_nobody_holds_the_arrays_of_what_was_waited_for(world):
    assert world.run(work_cells.arrays_left) == [0] * 3


def test_a_wait_that_is_too_short_ends_only_itself(world, tmp_path):
    is_over = tmp_path / "is over"
    world.start(work_cells.wait_too_short, 0.1, is_over, ranks=[0])
    wait_until(is_over.exists, "rank 0 has given up its first wait")
    world.start(work_cells.submit_and_wait, 100, ranks=[1, 2])
    said, *others = world.outcomes()
    assert others == [True, True]
    assert said[0] is False
    assert "all_sum is still under way after a wait of 0.1 s" in said[1]
    assert said[2] == "<phalanx.Group rank 0 of 3>"
    assert said[3] is True


# How many operations a wait for a submitted one, or a call, is behind.
_MORE = [pytest.param(0, True, marks=deep), pytest.param(2, False, marks=deep)]
BEHIND = pytest.mark.parametrize(("behind", "call"), [(0, False), (2, True), *_MORE])


@BEHIND
@pytest.mark.promise
def test_an_operations_own_time_counts_from_its_submission(world, behind, call):
    world.start(work_cells.submit_and_wait, 5, 0.2, behind, call, ranks=[0])
    with within():
        (error,) = world.outcomes([0])
    assert isinstance(error, px.CollectiveTimeout), error
    assert "all_sum" in str(error)
    assert "0.2 s" in str(error)


@BEHIND
@pytest.mark.slow
@pytest.mark.promise
def test_an_interrupt_of_a_wait_frees_everybody(world, behind, call):
    world.start(work_cells.submit_and_wait, 100, None, behind, call, ranks=[0, 2])
    world.wait_in("all_sum", [0, 2], n_queued=behind + (not call))
    world.wait_asleep(0)  # all is submitted, so it is in the wait
    world.kill(0, signal.SIGINT)
    with within():
        interrupted, other = world.outcomes([0, 2])
    assert isinstance(interrupted, KeyboardInterrupt)
    assert isinstance(other, px.DistributedError)
    world.start(cells.after_failure)
    for said in world.outcomes():
        assert all("rank 0 was interrupted in all_sum" in line for line in said), said


def test_the_rest_of_the_queue_and_what_comes_later_fail_alike(world):
    found = world.run(work_cells.queue_then_fail)
    world.is_good = False
    for said in found:
        assert len(said) == 5
        assert all(line.startswith("CollectiveMismatch: ") for line in said), said
        assert all("shape (4,)" in line and "shape (3,)" in line for line in said), said


def test_closing_ends_what_is_queued_and_frees_the_others(world):
    world.start(work_cells.close_with_queued, ranks=[1])
    (said,) = world.outcomes([1])
    world.is_good = False
    assert len(said) == 3
    assert all("closed" in text for text in said)
    world.start(cells.barrier, ranks=[0, 2])
    for error in world.outcomes([0, 2]):
        assert isinstance(error, px.DistributedError), error
        assert str(error).startswith("rank 1 ")
        assert "closed the group" in str(error)
