"""Messages from any rank to any other, between real processes."""

from __future__ import annotations

import signal

import pytest
from distributed.cells import cells, pair_cells
from distributed.cells.pair_cells import KIB
from distributed.cells.site_cells import line_of
from distributed.farm.formations import worlds
from support.promise import PATIENCE_S, within
from support.runs.tiers import deep

import phalanx as px
from phalanx.distributed.control import AbortKind

world = worlds(["3 arena", "3 tcp", "2+2 composed"])


@pytest.fixture
def fresh_world(farm, world):
    """Its operations and messages have their first numbers."""
    plan = world.plan
    fresh = farm.unformed(plan.size, plan.hosts, plan.transport)
    fresh.run(cells.join)
    fresh.is_good = True
    return fresh


@pytest.mark.parametrize("nbytes", [8, 64 * KIB])
def test_matched_exchanges_of_64_kib_do_not_deadlock(world, nbytes):
    assert all(world.run(pair_cells.exchange, nbytes))


def test_eight_ranks_exchange_over_tcp(rank_pool):
    assert all(rank_pool(8, transport="tcp").run(pair_cells.exchange, 64 * KIB))


def test_plain_arrays_go_the_fast_path(world):
    assert world.run(pair_cells.by_the_fast_path) == [["it went the long way"]] * world.size


def test_memory_that_does_not_fit_is_refused_and_the_group_stays_good(world):
    wrong = [
        "shape (3, 2)",
        "dtype float32",
        "gaps or another order",
        "no permission to be written to",
        "must be a plain numpy array or a tensor",
        "memory in common with a part of x",
    ]
    for said in world.run(pair_cells.wrong_outs):
        for text, what in zip(said, wrong, strict=True):
            assert "Error: recv_like: out " in text
            assert what in text
    assert all(world.run(pair_cells.exchange, 64))


@pytest.mark.parametrize("what", ["dtype", "shape"])
def test_a_mismatch_names_both_calls_on_all_ranks(fresh_world, what):
    took = {"dtype": "(int64, shape (4,))", "shape": "(float32, shape (2, 2))"}[what]
    recv_line = line_of("recv", pair_cells.__file__)
    fresh_world.start(pair_cells.mismatched, what)
    errors = fresh_world.outcomes()
    for error in errors:
        assert isinstance(error, px.CollectiveMismatch), error
        assert (
            str(error) == f"rank 1: recv #3 from rank 0 {took} at {recv_line} "
            "met rank 0: send #3 to rank 1 (float32, shape (4,))"
        )


@pytest.mark.parametrize("cell", [pair_cells.recv, pair_cells.send])
def test_a_deadline_names_the_peer(fresh_world, cell):
    fresh_world.start(cell, 1, 80 << 20, 0.2, ranks=[0])
    (error,) = fresh_world.outcomes([0])
    assert isinstance(error, px.CollectiveTimeout), error
    what = "recv #1 from" if cell is pair_cells.recv else "send #1 to"
    text = str(error)
    assert f"rank 0: {what} rank 1 (int64, shape (10485760,)) at pair_cells.py:" in text
    assert " timed out after 0.2 s; missing: rank 1" in text
    assert fresh_world.plan.told.acquire(timeout=PATIENCE_S)
    assert [(rank, its.kind) for rank, its in fresh_world.plan.aborts] == [(0, AbortKind.TIMEOUT)]


@pytest.mark.promise
@pytest.mark.parametrize(
    ("world", "like"),
    [
        *(("3 arena", "itself"), ("3 tcp", "another"), ("2+2 composed", "itself")),
        *(
            pytest.param(*case, marks=deep)
            for case in (("3 arena", "another"), ("3 tcp", "itself"))
        ),
        pytest.param("2+2 composed", "another", marks=deep),
    ],
    indirect=["world"],
)
def test_a_rank_that_dies_in_mid_message_is_named_and_the_output_is_invalidated(world, like):
    # Too much for any queue, and the receiver comes late: the sender is in the middle of it.
    nbytes = 80 << 20
    world.start(pair_cells.endless_send, 1, nbytes, ranks=[0])
    world.wait_in("send", [0])
    world.kill(0, signal.SIGSTOP)
    world.start(pair_cells.begun_output, nbytes, like, ranks=[1])
    world.wait_in("recv", [1])
    world.kill(0, signal.SIGKILL)
    with within():
        ((text, is_invalid, is_failure),) = world.outcomes([1])
    world.is_good = False
    assert is_failure
    assert is_invalid
    assert "rank 0" in text


def test_an_interrupt_frees_a_rank_that_waits_for_a_message(fresh_world):
    fresh_world.start(pair_cells.recv, 1, 8, ranks=[0])
    fresh_world.wait_in("recv", [0])
    fresh_world.kill(0, signal.SIGINT)
    (error,) = fresh_world.outcomes([0])
    assert isinstance(error, KeyboardInterrupt)
    fresh_world.start(pair_cells.recv, 0, 8, ranks=[1])
    (error,) = fresh_world.outcomes([1])
    assert isinstance(error, px.DistributedError)
    assert "rank 0 was interrupted in recv #1 from rank 1 (int64, shape (1,))" in str(error)


@pytest.mark.parametrize("is_read", [True, False])
def test_what_was_sent_before_a_rank_closed_is_received(world, is_read):
    last = world.size - 1
    is_far = world.plan.transport == "tcp" or world.plan.hosts[0] != world.plan.hosts[last]
    # More than the receiver's socket takes unread: the rest is still with the sender as it closes.
    sizes = [8, (160 if is_far else 40) * KIB, 16]
    if not is_read:  # a socket that is closed with bytes unread throws away what it has to send
        world.start(pair_cells.send, last, 8, ranks=[0])
        assert world.outcomes([0]) == [None]
    world.start(pair_cells.send_and_close, 0, sizes, ranks=[last])
    assert world.outcomes([last]) == [None]
    for nbytes in sizes:
        world.start(pair_cells.recv, last, nbytes, ranks=[0])
        assert world.outcomes([0]) == [True]
    world.start(pair_cells.recv, last, 8, 5.0, ranks=[0])
    (error,) = world.outcomes([0])
    world.is_good = False
    assert isinstance(error, px.RankFailure)
    assert (error.rank, error.reason.partition(";")[0]) == (last, "closed the group")
