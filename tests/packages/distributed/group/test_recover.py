"""After a failure: the group forms anew, its splits stand again, and every value is right."""

from __future__ import annotations

import re
import signal

import pytest
from distributed.cells import cells, recover_cells
from distributed.farm.formations import FOUR, worlds
from support.runs.tiers import deep, deep_but
from support.waiting import wait_until

import phalanx as px

world = worlds(FOUR)


@pytest.mark.parametrize("how", recover_cells.HOWS)
def test_after_every_kind_of_failure_the_group_is_good_again(world, how):
    for rank, (said, before, after, is_same) in enumerate(
        world.run(recover_cells.fail_and_recover, how, 1)
    ):
        assert after == before + 1
        assert is_same
        if how == "interrupt" and rank == 1:
            assert said.startswith("KeyboardInterrupt")
        elif how not in {"timeout", "abort"} or rank != 1:
            assert said, how


@pytest.mark.parametrize(("hosts", "n_rounds"), [((0, 0, 0), 2), ((0, 0, 1), 3)])
def test_ranks_meet_twice_to_form_a_group_and_once_more_for_links(farm, hosts, n_rounds):
    world = farm.unformed(3, hosts, "any")
    world.run(cells.join)
    assert len(world.plan.rounds) == n_rounds


def test_where_nothing_has_failed_it_is_a_barrier_and_the_group_stays(world):
    epoch = world.plan.epoch
    world.start(recover_cells.recover, ranks=[0, 1, 3])
    wait_until(lambda: len(world.plan.state.asking) == 3, "all but rank 2 have asked")
    for rank in (0, 1, 3):
        with pytest.raises(TimeoutError):
            world.outcomes([rank], timeout=0)
    world.start(recover_cells.recover, ranks=[2])
    assert world.outcomes() == [epoch] * 4
    assert world.run(recover_cells.recover) == [epoch] * 4


def test_a_rank_that_does_not_call_is_named_and_it_may_be_called_again(world):
    world.run(recover_cells.fail, "mismatch", 1)
    world.start(recover_cells.recover, 60.0, ranks=[1, 3])
    wait_until(lambda: len(world.plan.state.asking) == 2, "ranks 1 and 3 have asked")
    world.start(recover_cells.recover, 0.3, ranks=[0])
    (error,) = world.outcomes([0])
    assert isinstance(error, px.CollectiveTimeout), error
    assert str(error).endswith("px.recover() timed out after 0.3 s; missing: rank 2"), error
    world.start(recover_cells.recover, ranks=[0, 2])
    assert len(set(world.outcomes())) == 1
    world.run(recover_cells.check_held)


def test_an_interrupted_call_leaves_the_others_waiting_for_it(world):
    world.run(recover_cells.fail, "mismatch", 1)
    world.start(recover_cells.recover, ranks=[0])
    wait_until(lambda: world.plan.state.asking, "rank 0 has asked")
    world.wait_asleep(0)
    world.kill(0, signal.SIGINT)
    (error,) = world.outcomes([0])
    assert isinstance(error, KeyboardInterrupt)
    wait_until(lambda: not world.plan.state.asking, "rank 0 has withdrawn")
    assert len(set(world.run(recover_cells.recover))) == 1


# -- splits -----------------------------------------------------------------------------------


def test_splits_stand_again_as_they_were(world):
    shapes = world.run(recover_cells.hold_splits)
    for how in ("mismatch", "timeout"):
        world.run(recover_cells.fail_and_recover, how, 2)
        assert world.run(recover_cells.check_held) == shapes
    world.run(recover_cells.drop_held)


def test_splits_that_a_rank_has_closed_or_lost_say_who(world):
    world.run(recover_cells.hold_splits)
    world.run(recover_cells.close_or_lose, 3, 1)
    world.run(recover_cells.fail_and_recover, "mismatch", 0)
    pair = world.run(recover_cells.say, "pair")
    assert pair[:2] == ["None", "None"]  # of the other half
    assert "rank 3 has closed or lost this split; make the split anew" in pair[2]
    assert pair[3].startswith("DistributedError: rank 3: the group is closed")
    world.start(recover_cells.say, "all", ranks=[0, 2, 3])
    every = world.outcomes([0, 2, 3])
    assert all("rank 1 has closed or lost this split" in said for said in every), every
    assert world.run(recover_cells.say, "half") == ["None"] * 4
    world.run(recover_cells.drop_held)


@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_a_split_that_cannot_be_formed_is_given_up_by_all_and_the_world_stands(
    rank_pool, transport
):
    world = rank_pool(4, (0, 0, 1, 1), transport)
    world.run(recover_cells.hold_splits)
    world.run(recover_cells.break_splits, 2)
    world.run(recover_cells.fail_and_recover, "mismatch", 0)
    for said in world.run(recover_cells.say, "all"):
        assert "this split could not be formed again: rank 2: " in said, said
    world.run(recover_cells.mend_splits)
    world.run(recover_cells.drop_held)


# -- what could be taken for something of the new epoch ---------------------------------------


def test_an_operation_of_before_raises_its_own_reason_and_leaves_the_array_of_now(world):
    for rank, (said, is_right) in enumerate(world.run(recover_cells.wait_late, 1)):
        assert is_right
        assert rank == 1 or said.startswith("CollectiveTimeout: "), said


def test_a_closed_group_touches_nothing_and_is_joined_again_by_all(world):
    for text, floats, _, integers, is_same in world.run(recover_cells.use_closed):
        assert "the group is closed" in text
        assert floats == integers == [7, 7, 7, 7]
        assert is_same


def test_who_comes_back_alone_is_told_who_is_missing(world):
    found = world.run(recover_cells.close_and_come_back, 2)
    assert found[2].startswith("CollectiveTimeout: px.recover() timed out after 0.5 s; missing: ")
    assert "rank 0" in found[2]
    for said in found[:2] + found[3:]:
        assert re.search("rank 2( on .*)?: closed the group", said)
    world.run(recover_cells.recover)


@pytest.mark.slow  # close waits for 5 s
@pytest.mark.parametrize("world", deep_but(["4 arena"], FOUR), indirect=True)
def test_after_a_close_that_gave_up_the_group_forms_anew(world):
    epoch = world.plan.epoch
    found = world.run(recover_cells.close_in_vain_and_recover, 1)
    assert [was_in_vain for was_in_vain, _, _ in found] == [False, True, False, False]
    assert all(re.search("rank 1( on .*)?: closed the group", its[1]) for its in found), found
    assert {after for _, _, after in found} == {epoch + 1}


LARGE, SMALL = 16 << 20, 16 << 10
FROZEN = [
    pytest.param(name, nbytes, marks=() if name == "4 arena" or nbytes == SMALL else deep)
    for name in FOUR
    for nbytes in (LARGE, SMALL)
]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("world", "nbytes"), FROZEN, indirect=["world"])
def test_memory_of_a_frozen_rank_s_operation_is_used_again_and_it_wakes_up(world, farm, nbytes):
    """SIGSTOP in mid-operation; the others are freed and reuse arrays and arena; SIGCONT.

    Ranks 0 to 2 form a world of their own in the same memory, which no supervisor would do while
    rank 3 lives: so the last look at the abort flag is all that keeps its values right.
    """
    frozen, others = 3, [0, 1, 2]
    for n_passed in (2,) if nbytes == LARGE else (3, 4, 5):
        world.start(recover_cells.sum_large, nbytes)
        world.wait_moved(frozen, n_passed)
        world.wait_in("all_sum", [frozen])
        world.kill(frozen, signal.SIGSTOP)
        try:
            world.give_up(frozen, "no sign of life")  # as the supervisor does
            for said, _ in world.outcomes(others):
                assert said.startswith(f"RankFailure: rank {frozen} on host"), said
            places = world.plan.hosts, world.plan.transport
            survivors = farm.unformed(3, places[0][:frozen], places[1])
            survivors.run(cells.join)
            assert survivors.run(recover_cells.reuse, 1e6) == [2, 2, 2]
        finally:
            world.kill(frozen, signal.SIGCONT)
        ((said, is_invalid),) = world.outcomes([frozen])
        assert "Error: " in said or "RankFailure: " in said, said
        assert is_invalid
        assert survivors.run(recover_cells.reuse, 2e6) == [2, 2, 2]
        world = farm.unformed(4, *places)
        world.run(cells.join)
        assert world.run(recover_cells.reuse, 3e6) == [2] * 4
    world.run(recover_cells.drop_held)
