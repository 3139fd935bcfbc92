"""The world's state machine: rendezvous, epochs, cells, losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.protocol import CellEnded, Gather, Gathered, Recover, Refused, SplitClosed, SplitFormed
from phalanx.supervisor.world.state import WorldState


def test_a_round_is_answered_when_all_shares_are_there():
    world = WorldState(3)
    assert world.gather(0, Gather(10, 1, 0, b"a")) == []
    assert world.gather(2, Gather(12, 1, 0, b"c")) == []
    parts = (b"a", b"b", b"c")
    assert world.gather(1, Gather(11, 1, 0, b"b")) == [
        (0, Gathered(10, parts)),
        (1, Gathered(11, parts)),
        (2, Gathered(12, parts)),
    ]


@given(st.permutations([(rank, number) for rank in range(3) for number in range(2)]))
def test_rounds_do_not_mix_whatever_the_order(order):
    world = WorldState(3)
    answers = []
    for rank, number in order:
        share = f"{rank}.{number}".encode()
        answers += world.gather(rank, Gather(100 * number + rank, 1, number, share))
    assert len(answers) == 6
    for rank, answer in answers:
        number = answer.id // 100
        assert answer.id % 100 == rank
        assert answer.parts == tuple(f"{r}.{number}".encode() for r in range(3))


def test_a_lost_rank_frees_those_who_wait_and_is_named_to_those_who_come():
    world = WorldState(3)
    world.gather(0, Gather(1, 1, 0, b""))
    assert world.lose(2, "killed") == [(0, Refused(1, 2, "killed"))]
    assert world.gather(1, Gather(2, 1, 0, b"")) == [(1, Refused(2, 2, "killed"))]
    assert world.state(2) == "dead"
    assert world.begin_cell("cell", (0, 1, 2)).dead == {2: "killed"}


def test_a_replaced_rank_takes_part_when_the_next_epoch_begins():
    world = WorldState(2)
    world.mark_ready(1)
    world.lose(1, "killed")
    assert not world.begin_cell("cell", (0,)).reform
    world.end_cell(0, CellEnded("cell", ok=True))
    world.revive(1)
    assert world.state(1) == "idle"
    allowed = world.begin_cell("next", (0, 1))
    assert (allowed.epoch, allowed.reform, allowed.dead) == (2, True, {})


def test_an_aborted_epoch_begins_anew_with_the_next_cell():
    world = WorldState(2)
    world.gather(0, Gather(1, 1, 0, b""))
    assert world.abort(1, "stopped") == [(0, Refused(1, -1, "stopped"))]
    allowed = world.begin_cell("cell", (0, 1))
    assert (allowed.epoch, allowed.reform) == (2, True)
    assert not world.begin_cell("other", (0, 1)).reform
    (_, refused), *_ = world.gather(0, Gather(7, 1, 0, b""))
    assert isinstance(refused, Refused)
    assert "epoch 1 is over" in refused.message


def test_who_cannot_be_reached_is_named_to_those_who_join_until_the_next_epoch():
    world = WorldState(3)
    world.gather(0, Gather(1, 1, 0, b""))
    assert world.abort(1, "frozen", 2) == [(0, Refused(1, 2, "frozen"))]
    assert world.abort(1, "frozen", 2) == []
    assert world.gather(1, Gather(2, 1, 0, b"")) == [(1, Refused(2, 2, "frozen"))]
    assert world.begin_cell("cell", (0, 1, 2)).reform
    assert world.gather(1, Gather(4, 2, 0, b"")) == []


def test_an_abort_of_an_old_epoch_changes_nothing():
    world = WorldState(2)
    world.abort(1, "first")
    world.begin_cell("cell", (0, 1))
    assert world.abort(1, "late") == []
    assert not world.begin_cell("next", (0, 1)).reform


def test_cells_end_rank_by_rank_and_with_the_dead():
    world = WorldState(3)
    world.begin_cell("cell", (0, 1, 2))
    assert [world.state(rank) for rank in range(3)] == ["busy"] * 3
    world.end_cell(0, CellEnded("cell", ok=True))
    world.lose(1, "gone")
    assert world.unfinished() == {2}
    world.end_cell(2, CellEnded("cell", ok=True))
    assert world.unfinished() == set()
    assert [world.state(rank) for rank in range(3)] == ["starting", "dead", "starting"]
    world.mark_ready(2)
    assert world.state(2) == "idle"


def test_how_a_rank_is_gone_is_told_of_the_cell_that_runs():
    world = WorldState(3)
    world.begin_cell("cell", (0, 1))
    world.end_cell(
        2, CellEnded("enter", ok=True)
    )  # with which it joined a new epoch: no cell of the user's
    world.end_cell(1, CellEnded("cell", ok=False))
    assert world.gone() == {1, 2}
    assert world.absence_reason(1) == "ended its cell with an error"
    assert world.absence_reason(2) == "is not asked to run this cell"


def test_a_split_is_known_from_its_first_member_to_its_last():
    world = WorldState(3)
    formed = SplitFormed(1, channel=2, number=77, members=(2, 0))
    world.form_split(2, formed)
    assert world.splits == {77: (2, 0)}
    world.form_split(0, formed)
    world.close_split(2, SplitClosed(1, 77))
    assert world.splits == {77: (2, 0)}
    world.close_split(0, SplitClosed(1, 77))
    world.close_split(0, SplitClosed(1, 77))
    assert world.splits == {}


def test_splits_end_with_their_epoch_and_those_of_another_are_not_taken():
    world = WorldState(2)
    world.form_split(0, SplitFormed(1, 1, 77, (0, 1)))
    world.abort(1, "stopped")
    world.begin_cell("cell", (0, 1))
    assert world.splits == {}
    world.form_split(0, SplitFormed(1, 1, 77, (0, 1)))
    assert world.splits == {}


def test_a_rank_that_was_left_to_an_earlier_cell_takes_no_part_in_the_next():
    world = WorldState(3)
    world.begin_cell("stuck", (0, 1, 2))
    world.end_cell(0, CellEnded("stuck", ok=False))
    world.end_cell(2, CellEnded("stuck", ok=False))
    world.abort(1, "stopped")
    # It cannot join: the epoch is not begun anew without it.
    assert not world.begin_cell("next", (0, 2)).reform
    assert world.unfinished() == {0, 1, 2}
    assert world.gone() == {1}
    assert world.absence_reason(1) == "still runs the cell before"
    world.end_cell(1, CellEnded("stuck", ok=True))
    assert world.absence_reason(1) == "is not asked to run this cell"
    world.end_cell(0, CellEnded("next", ok=True))
    world.end_cell(2, CellEnded("next", ok=True))
    assert world.unfinished() == set()
    allowed = world.begin_cell("all", (0, 1, 2))
    assert (allowed.epoch, allowed.reform) == (2, True)
    assert world.gone() == set()


def test_a_rank_that_was_left_is_missed_by_nobody_once_the_others_are_done():
    world = WorldState(2)
    world.begin_cell("stuck", (0, 1))
    world.end_cell(0, CellEnded("stuck", ok=True))
    world.begin_cell("next", (0,))
    world.end_cell(0, CellEnded("next", ok=True))
    assert world.unfinished() == {1}
    assert world.gone() == {0}


# -- the next epoch in the midst of a cell -----------------------------------------------------


def test_the_world_is_asked_by_all_before_anything_happens():
    world = WorldState(3)
    for rank in (0, 2):
        world.ask(rank, Recover(10 + rank, 1, is_over=False))
        assert not world.is_unanimous
    assert world.asking == {0, 2}
    world.ask(1, Recover(11, 1, is_over=False))
    assert world.is_unanimous
    assert world.is_good
    assert world.take_asking() == [(0, 10), (2, 12), (1, 11)]
    assert world.asking == set()


@pytest.mark.parametrize("ask", [Recover(2, 1, is_over=True), Recover(2, 0, is_over=False)])
def test_one_rank_that_needs_the_next_epoch_is_enough(ask):
    world = WorldState(2)
    world.ask(0, Recover(1, 1, is_over=False))
    assert world.is_good
    world.ask(1, ask)
    assert not world.is_good


def test_an_epoch_begins_with_nothing_of_the_one_before():
    world = WorldState(2)
    world.form_split(0, SplitFormed(1, 1, 7, (0, 1)))
    world.gather(0, Gather(1, 1, 0, b"old"))
    world.abort(1, "stopped")
    world.begin_epoch()
    assert world.epoch == 2
    assert world.splits == {}
    assert world.gather(1, Gather(2, 2, 0, b"b")) == []
    parts = (b"a", b"b")
    assert world.gather(0, Gather(3, 2, 0, b"a")) == [
        (0, Gathered(3, parts)),
        (1, Gathered(2, parts)),
    ]
    world.form_split(0, SplitFormed(2, 1, 7, (0, 1)))
    world.close_split(0, SplitClosed(1, 7))  # of the split of before, which had the same number
    assert world.splits == {7: (0, 1)}


def test_who_asks_in_vain_is_refused_for_a_rank_that_has_ended_or_died():
    world = WorldState(3)
    world.begin_cell("cell", (0, 1, 2))
    world.ask(0, Recover(5, 1, is_over=True))
    assert world.refuse_asking(world.gone()) == []
    world.end_cell(2, CellEnded("cell", ok=True))
    ((rank, refused),) = world.refuse_asking(world.gone())
    assert (rank, refused.id, refused.rank) == (0, 5, 2)
    assert refused.message == "ended its cell; px.recover() of the others can never complete"
    world.ask(1, Recover(6, 1, is_over=True))
    ((rank, refused),) = world.lose(0, "killed")
    assert (rank, refused.id, refused.rank) == (1, 6, 0)
    assert refused.message.startswith("killed; the group cannot be formed without it")


def test_a_rank_that_was_refused_and_ended_its_cell_is_not_the_cause_for_the_next():
    world = WorldState(3)
    world.begin_cell("cell", (0, 2))
    world.ask(0, Recover(5, 1, is_over=True))
    ((_, first),) = world.refuse_asking(world.gone())
    world.end_cell(0, CellEnded("cell", ok=False))
    world.ask(2, Recover(6, 1, is_over=True))
    ((_, second),) = world.refuse_asking(world.gone())
    assert (first.rank, second.rank) == (1, 1)
    assert first.message == second.message


def test_who_gives_up_learns_who_has_not_come_at_all():
    world = WorldState(3)
    for rank in (0, 1):
        world.ask(rank, Recover(10 + rank, 1, is_over=True))
        world.gather(rank, Gather(20 + rank, 1, 0, b""))
    assert world.withdraw(0, 10) == world.withdraw(0, 20) == [2]
    assert world.withdraw(1, 11) == world.withdraw(1, 21) == [2]  # rank 0 was here
    assert world.withdraw(1, 11) == []
    assert world.asking == set()


# -- with fewer ranks ---------------------------------------------------------------------------


def test_a_world_that_may_shrink_goes_on_with_all_that_live():
    world = WorldState(4, has_cells=False, may_shrink=True)
    world.ask(0, Recover(10, 1, is_over=True))
    assert world.lose(2, "killed") == []  # nobody is refused for it
    assert world.gather(1, Gather(1, 1, 0, b"")) == [(1, Refused(1, 2, "killed"))]
    world.ask(3, Recover(13, 1, is_over=True))
    assert not world.is_unanimous
    assert world.refuse_asking(()) == []
    assert world.withdraw(3, 13) == [1]  # the dead are not waited for
    world.lose(1, "has ended (exit status 0)")
    world.ask(3, Recover(14, 1, is_over=True))
    assert world.is_unanimous
    assert not world.is_good
    assert world.members == (0, 1, 2, 3)
    world.begin_epoch()
    assert (world.members, world.lacking) == ((0, 3), {})
    assert world.take_asking() == [(0, 10), (3, 14)]
    assert world.gather(3, Gather(2, 2, 0, b"d")) == []
    parts = (b"a", b"d")
    assert world.gather(0, Gather(3, 2, 0, b"a")) == [
        (0, Gathered(3, parts)),
        (3, Gathered(2, parts)),
    ]


def test_a_rank_that_is_started_again_is_waited_for():
    world = WorldState(3, has_cells=False, may_replace=True)
    assert not world.joins_next
    world.gather(0, Gather(1, 1, 0, b""))
    world.ask(2, Recover(12, 1, is_over=True))
    assert world.lose(1, "killed", will_return=True) == [(0, Refused(1, 1, "killed"))]
    assert (world.dead, world.asking) == ({1: "is being restarted"}, {2})
    world.revive(1)
    # Who comes late to the epoch learns of the death as the others did.
    assert world.gather(0, Gather(2, 1, 0, b"")) == [(0, Refused(2, 1, "killed"))]
    assert world.joins_next
    world.ask(0, Recover(10, 1, is_over=True))
    assert world.withdraw(2, 12) == [1]
    world.ask(2, Recover(13, 1, is_over=True))
    world.ask(1, Recover(11, 0, is_over=True))
    assert world.lose(1, "killed again", will_return=True) == []
    world.revive(1)
    assert not world.is_unanimous
    world.ask(1, Recover(1, 0, is_over=True))
    assert (world.is_unanimous, world.is_good) == (True, False)
    world.begin_epoch()
    assert (world.members, world.joins_next) == ((0, 1, 2), False)


def test_when_the_rank_does_not_return_those_who_wait_are_refused():
    world = WorldState(2, has_cells=False, may_replace=True)
    world.lose(1, "killed", will_return=True)
    world.revive(1)
    world.ask(0, Recover(10, 1, is_over=True))
    (answer,) = world.lose(1, "killed again")
    assert (answer[0], answer[1].id, answer[1].rank) == (0, 10, 1)


def test_the_last_that_dies_leaves_nobody_to_go_on():
    world = WorldState(2, has_cells=False, may_shrink=True)
    world.lose(0, "killed")
    world.lose(1, "killed")
    assert not world.is_unanimous
