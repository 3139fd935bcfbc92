"""A link that breaks while both its ends live is named as that link, by everyone."""

from __future__ import annotations

import re
import time
from contextlib import closing

import pytest
from distributed.cells import cells
from distributed.cells.cells import Case
from distributed.farm.farm import Farm
from support.hosts.cutting import cut
from support.promise import PATIENCE_S, after_silence_s, check, within
from support.waiting import wait_until

import phalanx as px
from phalanx.distributed.control import AbortKind


@pytest.mark.promise
@pytest.mark.parametrize("with_memory", [True, False])
def test_a_cut_link_is_named_and_each_end_accuses_the_other(rank_pool, with_memory, tmp_path):
    world = rank_pool(3, transport="tcp", with_memory=with_memory)
    world.run(cells.call, Case("all_sum"))
    world.start(cells.announced, str(tmp_path), cells.call, Case("all_sum"), ranks=[0, 1])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both are about to sum")
    for rank in (0, 1):
        world.wait_asleep(rank)
    assert cut(world.pid(1), world.pid(2))
    with within():
        errors = world.outcomes([0, 1])
    # Without memory, it may have got all it needs for the operation that the others gave up.
    world.start(cells.endless_sums, 3, ranks=[2])
    errors += world.outcomes([2])
    for error, culprit_rank in zip(errors, (2, 2, 1), strict=True):
        assert isinstance(error, px.RankFailure), error
        assert error.rank == culprit_rank
        assert re.search(
            r"the link between rank 1 and rank 2 broke \(.+\) during ", error.reason
        ), error.reason
    if with_memory:
        assert {notice.kind for _, notice in world.notices()} == {AbortKind.LINK_BROKEN}


@pytest.mark.promise
def test_a_message_that_waits_is_freed_by_a_cut(rank_pool):
    world = rank_pool(2, transport="tcp")
    world.run(cells.call, Case("all_sum"))
    world.start(cells.receive_for_ever, 1, ranks=[0])
    world.wait_in("recv", [0])
    assert cut(world.pid(0), world.pid(1))
    with within():
        (error,) = world.outcomes([0])
    assert isinstance(error, px.RankFailure), error
    assert error.rank == 1
    assert "the link between rank 0 and rank 1 broke (127.0.0.1 to 127.0.0.1: " in error.reason


def has_full_window(bed, pid):
    """Whether the kernel holds bytes that the other end of a connection has no room for."""
    ours = [
        line for line in bed.run(0, ["ss", "-tonpH"]).stdout.splitlines() if f"pid={pid}," in line
    ]
    return any("timer:(persist" in line for line in ours)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("what", ["recv", "all_sum", "send"])
def test_a_host_that_vanishes_without_a_word_is_noticed(bed, what):
    """Waiting with nothing under way, with a question under way, and with a full window."""
    limit_s = 2.0
    homes = {rank: (bed.hosts[rank].address,) for rank in range(2)}
    with closing(Farm({rank: bed.hosts[rank].enter for rank in range(2)})) as farm:
        world = farm.unformed(
            2, (0, 1), "tcp", with_memory=False, addresses_of=homes, silence_s=limit_s
        )
        world.run(cells.join)
        world.run(cells.call, Case("all_sum"))
        if what != "all_sum":
            world.start(cells.timed_loss, what, ranks=[0])
        if what == "recv":
            world.wait_asleep(0)
        if what == "send":
            wait_until(lambda: has_full_window(bed, world.pid(0)), "rank 1 has no more room")
        bed.cut(1)
        pulled_s = time.time()
        if what == "all_sum":
            world.start(cells.timed_loss, what, ranks=[0])
        ((culprit_rank, at_s, reason),) = world.outcomes([0], PATIENCE_S + 10)
    bed.mend(1)
    assert culprit_rank == 1
    way = f"{homes[0][0]} on eth0 to {homes[1][0]}"
    # Of an idle connection the kernel may say it first: it has asked as often by then.
    why = f"(no answer for {limit_s:g} s{'|Connection timed out' if what == 'recv' else ''})"
    assert re.search(rf"the link between rank 0 and rank 1 broke \({way}: {why}\)", reason)
    check(at_s - pulled_s, after_silence_s(limit_s))
