"""Operations on MPI that were handed over, and what becomes of them: each time an mpirun of its own."""

from __future__ import annotations

import signal
import time
import weakref
from functools import partial

import numpy as np
import pytest
from distributed import cells, work_cells
from distributed.mpi_world import MpiWorld

import phalanx as px
from phalanx.distributed._deadline import Deadline
from phalanx.distributed._mpi._work import MpiWork

SIZE = 3


@pytest.fixture
def world(mpi):
    with MpiWorld(mpi, SIZE) as world:
        yield world


@pytest.mark.slow
@pytest.mark.parametrize("call", [False, True])
def test_an_operations_own_time_counts_from_its_submission(world, call):
    world.start(work_cells.submit_and_wait, 5, 0.2, 2, call, ranks=[0])
    start = time.monotonic()
    (error,) = world.outcomes([0], timeout=10)
    assert time.monotonic() - start < 3
    assert isinstance(error, px.CollectiveTimeout), error
    assert str(error).startswith("rank 0: all_sum timed out after 0.2 s behind operations")


@pytest.mark.slow
@pytest.mark.parametrize(("behind", "call"), [(0, False), (2, False), (2, True)])
def test_an_interrupt_of_a_wait_frees_everybody(world, behind, call):
    world.start(work_cells.submit_and_wait, 100, None, behind, call, ranks=[0, 2])
    with pytest.raises(TimeoutError):
        world.outcomes([0], timeout=0.3)
    world.kill(0, signal.SIGINT)
    start = time.monotonic()
    interrupted, other = world.outcomes([0, 2], timeout=10)
    assert time.monotonic() - start < 3
    assert isinstance(interrupted, KeyboardInterrupt)
    assert isinstance(other, px.DistributedError)
    world.start(cells.after_failure)
    for said in world.outcomes():
        assert all("rank 0 was interrupted in all_sum" in line for line in said), said


@pytest.mark.slow
def test_the_rest_of_the_queue_and_what_comes_later_fail_alike(world):
    found = world.run(work_cells.queue_then_fail)
    world.is_good = False
    for said in found:
        assert len(said) == 5
        assert all(line.startswith("CollectiveMismatch: ") for line in said), said
        assert all("shape (4,)" in line and "shape (3,)" in line for line in said), said


@pytest.mark.slow
def test_closing_ends_what_is_queued_and_frees_the_others(world):
    world.start(work_cells.close_with_queued, ranks=[1])
    (said,) = world.outcomes([1])
    world.is_good = False
    assert len(said) == 3
    assert all("closed" in text for text in said)
    world.start(cells.barrier, ranks=[0, 2])
    for error in world.outcomes([0, 2], timeout=10):
        assert isinstance(error, px.DistributedError), error
        assert "rank 1 closed the group" in str(error)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_over_holds_no_array(fails):
    x = np.ones(3)
    held = weakref.ref(x)

    def run(x):
        if fails:
            raise px.DistributedError(str(x.sum()))

    work = MpiWork("all_sum", partial(run, x), Deadline(None), None, 0)
    del x
    assert held() is not None
    work.perform()
    assert held() is None
    if fails:
        with pytest.raises(px.DistributedError, match=r"3\.0"):
            work.wait()
