"""Ranks that fail, come too late or are interrupted: everyone else is told. Of deaths: tests/system/faults."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from distributed.cells import cells
from distributed.cells.cells import Case
from distributed.farm.formations import THREE, worlds
from distributed.operations.contract import DTYPES, INTEGERS, dtype_of
from support.promise import within
from support.waiting import wait_until

import phalanx as px
from phalanx.distributed.control import AbortKind

world = worlds(THREE)


def test_after_a_failure_the_group_stays_failed_and_says_why(world):
    world.errors(cells.call_by_rank, [Case("all_sum", (n,)) for n in (3, 3, 4)])
    for said in world.run(cells.after_failure):
        assert all("CollectiveMismatch" in line for line in said), said
    assert len(world.notices()) == 3  # not one for each later operation


@pytest.mark.promise
@pytest.mark.parametrize(
    ("op", "call", "timed"),
    [
        ("all_sum", (cells.call, Case("all_sum")), (cells.call, Case("all_sum"), 0.2)),
        ("barrier", (cells.barrier,), (cells.barrier, 0.2)),
    ],
    ids=["sum", "barrier"],
)
def test_the_missing_are_named_when_the_time_is_up(world, op, call, timed):
    # Only rank 0's time is up: of other hosts it alone knows who is missing, rank 1 would name the
    # one of its host that it waits for, which is rank 0.
    world.start(*call, ranks=[1])
    world.wait_in(op, [1])
    world.start(*timed, ranks=[0])
    with within():
        errors = world.outcomes([0, 1])
    for error in errors:
        assert isinstance(error, px.CollectiveTimeout), error
        assert "rank 2" in str(error)
    world.start(*call, ranks=[2])
    (late,) = world.outcomes([2])
    assert isinstance(late, px.DistributedError)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    "call", [(cells.call, Case("all_sum")), (cells.receive_for_ever, 2)], ids=["sum", "recv"]
)
def test_over_tcp_a_closed_link_alone_names_the_dead(rank_pool, tmp_path, call):
    """No page and no supervisor's word: the kernel closes the links of a dead process."""
    world = rank_pool(3, transport="tcp", with_memory=False)
    world.start(cells.announced, str(tmp_path), *call, ranks=[0, 1])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both are about to sum")
    for rank in (0, 1):  # no page says that they wait
        world.wait_asleep(rank)
    world.kill(2, signal.SIGKILL)
    with within():
        errors = world.outcomes([0, 1])
    for error in errors:
        assert isinstance(error, px.RankFailure), error
        assert error.rank == 2


def test_what_a_signal_handler_raises_is_what_the_caller_gets(world):
    world.start(cells.alarmed, ranks=[0])
    assert world.outcomes([0]) == ["ValueError: mine"]


def test_what_a_failed_operation_left_looks_invalid(world):
    world.start(cells.failing_outs, 0.1, ranks=[0])
    (found,) = world.outcomes([0])
    world.is_good = False
    assert {dtype for dtype, _, _ in found} == set(DTYPES)
    for dtype, out, x in found:
        invalid = np.frombuffer(out, dtype_of(dtype))
        if dtype == "bool":
            assert invalid.all()
        elif dtype in INTEGERS:
            bounds = np.iinfo(dtype)
            assert (invalid == (bounds.min or bounds.max)).all()
        else:
            assert np.isnan(invalid).all(), dtype
        assert not any(x)  # nobody came, so nothing was begun


def test_a_closed_group_says_so_and_the_others_are_told(world):
    world.start(cells.close, ranks=[1])
    ((of_sum, of_message),) = world.outcomes([1])
    world.is_good = False
    for text in (of_sum, of_message):
        assert "the group is closed" in text
        assert "<phalanx.Group rank 1 of 3, closed>" in text
    world.start(cells.call, Case("all_sum"), 10.0, ranks=[0, 2])
    for error in world.outcomes([0, 2]):
        assert isinstance(error, px.DistributedError), error
        assert not isinstance(error, px.CollectiveTimeout)
        assert "rank 1" in str(error)


@pytest.mark.promise
def test_an_interrupt_ends_joining_and_the_others_are_told(farm):
    world = farm.unformed(3, (0, 0, 0), "tcp")
    world.start(cells.join, ranks=[0, 1])
    wait_until(lambda: {0, 1} <= world.plan.rounds.get(0, set()), "ranks 0 and 1 have asked")
    world.wait_asleep(0)
    world.kill(0, signal.SIGINT)
    with within():
        interrupted, other = world.outcomes([0, 1])
    assert isinstance(interrupted, KeyboardInterrupt)
    assert isinstance(other, px.DistributedError)
    assert str(other).startswith("rank 0 ")
    assert "was interrupted while it joined" in str(other)
    assert next(abort.kind for _, abort in world.plan.aborts) == AbortKind.INTERRUPTED


def test_a_world_is_joined_from_within_an_event_loop(farm):
    for transport in ("any", "tcp"):
        assert farm.unformed(2, (0, 0), transport).run(cells.join_in_a_loop) == [0, 1]


def test_a_wrong_timeout_of_joining_loses_nothing(farm):
    assert farm.unformed(2, (0, 0), "tcp").run(cells.join_with_wrong_timeouts) == [0, 1]
