"""When a wait can never end, and when it lasts long."""

from __future__ import annotations

import pytest

from phalanx.protocol import Activity, GroupProgress, Passed
from phalanx.supervisor.health.waits import (
    CONFIRM_S,
    WORLD,
    Activities,
    ImpossibleWait,
    ImpossibleWaitSearch,
    LongWait,
    SlowOperationDetector,
    find_impossible_wait,
)

SPLIT, OTHER = 77, 78


def idle(done=0, epoch=1, group=WORLD, queued=0):
    return Activity(epoch, {group: GroupProgress("", 0, done, queued)})


def inside(seq, op="all_sum", epoch=1, group=WORLD):
    return Activity(epoch, {group: GroupProgress(op, seq, seq - 1)})


def passed(peer, *counts, group=WORLD, epoch=1, **waits):
    """A rank in no operation, that has passed so many messages with one other."""
    return Activity(
        epoch, {group: GroupProgress("", 0, 0)}, messages={(group, peer): Passed(*counts, **waits)}
    )


def find(activities, running, gone, splits=None, ended=()):
    seen = Activities(dict(enumerate(activities)), 1, splits or {})
    return find_impossible_wait(seen, running=running, gone=gone, ended=ended)


@pytest.mark.parametrize(
    ("ranks", "gone", "found"),
    [
        ([inside(3), inside(3), idle(done=2)], 2, ImpossibleWait((0, 1), 2, "all_sum", 3)),
        ([inside(3), idle(done=3)], 1, None),  # it did its part
        ([inside(3), idle(done=2), idle(done=3)], 2, None),  # rank 1 may come
        # It has never joined this epoch.
        ([inside(1), idle(done=9, epoch=0)], 1, ImpossibleWait((0,), 1, "all_sum", 1)),
        ([inside(1), Activity(0, {})], 1, ImpossibleWait((0,), 1, "all_sum", 1)),
        ([inside(3), inside(3)], 1, None),  # a thread of it may still be inside
        ([inside(3), idle(done=1, queued=2)], 1, None),
        ([inside(3, epoch=0), idle()], 1, None),
        # Who has closed a group is missed by its peers themselves.
        ([inside(3), Activity(1, {})], 1, None),
        ([inside(3), Activity(1, {OTHER: GroupProgress("", 0, 0)})], 1, None),
        ([passed(1, 0, 0, receives=True), Activity(1, {})], 1, None),
        ([passed(1, 0, 0, receives=True), Activity(1, {OTHER: GroupProgress("", 0, 0)})], 1, None),
    ],
)
def test_a_rank_that_has_ended_its_cell_without_coming_is_named(ranks, gone, found):
    assert find(ranks, [rank for rank in range(len(ranks)) if rank != gone], [gone]) == found


def test_in_a_split_only_its_members_are_missed():
    ranks = [inside(3, group=SPLIT), idle(done=2), idle(done=2, group=SPLIT)]
    assert find(ranks, [0], [1, 2], {SPLIT: (0, 1, 2)}) == ImpossibleWait(
        (0,), 2, "all_sum", 3, (0, 1, 2)
    )
    assert find(ranks, [0], [1], {SPLIT: (0, 2)}) is None
    assert find(ranks, [0], [1, 2], {OTHER: (0, 1, 2)}) is None  # not heard of yet


def test_a_member_that_is_in_another_split_by_now_has_left_and_is_told_of_otherwise():
    ranks = [inside(3, group=SPLIT), idle(group=OTHER)]
    assert find(ranks, [0], [1], {SPLIT: (0, 1), OTHER: (1, 2)}) is None


def test_a_wait_in_the_world_is_found_beside_one_in_a_split():
    both = Activity(
        1, {WORLD: GroupProgress("barrier", 2, 1), SPLIT: GroupProgress("all_sum", 5, 4)}
    )
    there = Activity(1, {WORLD: GroupProgress("", 0, 2), SPLIT: GroupProgress("", 0, 4)})
    assert find([both, there], [0], [1], {SPLIT: (0, 1)}) == ImpossibleWait(
        (0,), 1, "all_sum", 5, (0, 1)
    )
    assert both.doing == "in barrier #2"
    assert there.doing == ""


def test_what_a_process_that_is_over_had_queued_will_not_come():
    for there in (idle(done=1, queued=2), inside(3)):
        assert find([inside(3), there], [0], [1]) is None
        found = find([inside(3), there], [0], [1], ended=[1])
        assert found == ImpossibleWait((0,), 1, "all_sum", 3)
    assert find([inside(3), idle(done=3, queued=2)], [0], [1], ended=[1]) is None


@pytest.mark.parametrize(("op", "waits"), [("recv", "receives"), ("send", "sends")])
def test_a_message_that_nobody_will_ever_send_or_take(op, waits):
    def counted(n):
        return (n, 9) if op == "send" else (9, n)

    waiting = passed(1, *counted(2), **{waits: True})
    for theirs, found in ((2, ImpossibleWait((0,), 1, op, 3)), (3, None), (4, None)):
        there = passed(0, *reversed(counted(theirs)))
        assert find([waiting, there], [0], [1]) == found
        assert find([waiting, there], [0, 1], []) is None
        assert find([passed(1, *counted(2)), there], [0], [1]) is None
        # Of another rank, of another group, of the past.
        assert find([waiting, there, idle()], [0, 1], [2]) is None
    none = ImpossibleWait((0,), 1, op, 3)
    assert find([waiting, passed(0, 9, 9, epoch=0)], [0], [1]) == none
    assert find([waiting, passed(2, 9, 9)], [0], [1]) == none
    assert find([passed(1, 0, 0, epoch=0, **{waits: True}), idle()], [0], [1]) is None


def test_messages_in_a_split_are_its_own():
    waiting = passed(1, 0, 1, group=SPLIT, receives=True)
    splits = {SPLIT: (0, 1)}
    assert find([waiting, passed(0, 2, 0, group=SPLIT)], [0], [1], splits) is None
    both = Activity(
        1,
        {WORLD: GroupProgress("", 0, 0), SPLIT: GroupProgress("", 0, 0)},
        messages={(SPLIT, 0): Passed(1, 0), (WORLD, 0): Passed(5, 0)},
    )
    assert find([waiting, both], [0], [1], splits) == ImpossibleWait((0,), 1, "recv", 2, (0, 1))
    assert find([waiting, both], [0], [1]) is None  # not heard of yet


def test_a_send_is_accused_only_if_it_still_waits_at_a_second_look():
    """The peer may have made room and ended just before the first look."""
    search = ImpossibleWaitSearch()

    def look(now_s, sent):
        activities = {0: passed(1, sent, 0, sends=True), 1: passed(0, 0, 1)}
        return search.look(Activities(activities, 1, {}), now_s=now_s, running=[0], gone=[1])

    assert look(0.0, sent=1) is None
    assert look(CONFIRM_S / 2, sent=1) is None
    assert look(CONFIRM_S, sent=2) is None  # it has gone on: another send, seen for the first time
    assert look(2 * CONFIRM_S, sent=2) == ImpossibleWait((0,), 1, "send", 3)


def test_the_same_send_of_another_epoch_is_another_send():
    search = ImpossibleWaitSearch()

    def look(now_s, epoch):
        activities = {0: passed(1, 0, 0, epoch=epoch, sends=True), 1: passed(0, 0, 0, epoch=epoch)}
        return search.look(Activities(activities, epoch, {}), now_s=now_s, running=[0], gone=[1])

    assert look(0.0, epoch=1) is None
    assert look(10.0, epoch=2) is None  # no look saw that the first send went on
    assert look(10.0 + CONFIRM_S, epoch=2) == ImpossibleWait((0,), 1, "send", 1)


def test_a_recv_and_an_operation_are_accused_at_the_first_look():
    search = ImpossibleWaitSearch()
    never_sent = {0: passed(1, 0, 1, receives=True), 1: passed(0, 1, 0)}
    found = search.look(Activities(never_sent, 1, {}), now_s=0.0, running=[0], gone=[1])
    assert found == ImpossibleWait((0,), 1, "recv", 2)
    never_entered = {0: inside(3), 1: idle(done=2)}
    found = search.look(Activities(never_entered, 1, {}), now_s=0.0, running=[0], gone=[1])
    assert found == ImpossibleWait((0,), 1, "all_sum", 3)


# -- waits that last long --------------------------------------------------------------------------


class Watched:
    def __init__(self):
        self.watch = SlowOperationDetector(10.0)

    def look(self, now_s, *activities, splits=None):
        seen = Activities(dict(enumerate(activities)), 1, splits or {})
        return self.watch.look(seen, now_s=now_s)


def test_a_long_wait_is_told_of_once_with_who_is_missing():
    ranks, now = Watched(), (inside(12), idle(done=11), inside(12))
    assert ranks.look(0.0, *now) == []
    assert ranks.look(9.9, *now) == []
    found = LongWait((0, 2), "all_sum #12", (1,), {1: "last completed #11"})
    assert ranks.look(10.0, *now) == [found]
    assert ranks.look(11.0, *now) == []
    assert ranks.look(99.0, *now) == []


def test_the_next_operation_is_another_wait():
    ranks = Watched()
    assert ranks.look(0.0, inside(12), idle(11)) == []
    assert ranks.look(9.0, inside(13), idle(12)) == []
    assert ranks.look(18.0, inside(13), idle(12)) == []
    assert [wait.what for wait in ranks.look(19.0, inside(13), idle(12))] == ["all_sum #13"]
    ranks.look(20.0, inside(14), idle(13))
    assert [wait.what for wait in ranks.look(30.0, inside(14), idle(13))] == ["all_sum #14"]


def test_who_comes_after_the_line_was_told_brings_no_second_one():
    ranks = Watched()
    ranks.look(0.0, inside(3), idle(2), idle(2))
    assert len(ranks.look(10.0, inside(3), idle(2), idle(2))) == 1
    assert ranks.look(20.0, inside(3), inside(3), idle(2)) == []
    assert ranks.look(31.0, inside(3), inside(3), idle(2)) == []


def test_all_there_is_told_of_when_all_have_been_there_for_long():
    ranks = Watched()
    ranks.look(0.0, inside(3), idle(2))
    ranks.look(9.0, inside(3), inside(3))
    assert ranks.look(11.0, inside(3), inside(3)) == []
    assert ranks.look(19.0, inside(3), inside(3)) == [LongWait((0, 1), "all_sum #3", (), {})]


def test_who_has_done_it_or_is_further_is_not_missing():
    ranks = Watched()
    now = inside(3), idle(done=3), inside(4), idle(done=2)
    ranks.look(0.0, *now)
    (wait, other) = ranks.look(10.0, *now)
    assert (wait.waiting, wait.missing) == ((0,), (3,))
    assert (other.waiting, other.missing) == ((2,), (0, 1, 3))


def test_in_a_split_its_members_are_missing():
    ranks = Watched()
    now = inside(5, group=SPLIT), idle(4, group=SPLIT), idle(9)
    ranks.look(0.0, *now, splits={SPLIT: (0, 1)})
    (wait,) = ranks.look(10.0, *now, splits={SPLIT: (0, 1)})
    assert (wait.waiting, wait.missing) == ((0,), (1,))


def test_what_is_of_another_epoch_is_no_wait():
    ranks = Watched()
    ranks.look(0.0, inside(5, epoch=0), idle())
    assert ranks.look(99.0, inside(5, epoch=0), idle()) == []


def test_who_waits_for_messages_of_one_rank_is_told_of_together():
    ranks = Watched()
    now = (
        passed(2, 0, 0, receives=True),
        passed(2, 0, 3, receives=True),
        idle(7),
        passed(2, 0, 0, sends=True),
    )
    ranks.look(0.0, *now)
    assert ranks.look(10.0, *now) == [
        LongWait((0, 1), "recv from rank 2", (2,), {}),
        LongWait((3,), "send to rank 2", (2,), {}),
    ]


def test_a_message_whose_other_half_is_under_way_misses_nobody():
    ranks = Watched()
    now = passed(1, 0, 0, receives=True), passed(0, 0, 0, sends=True)
    ranks.look(0.0, *now)
    assert {wait.missing for wait in ranks.look(10.0, *now)} == {()}


def test_words_for_what_a_rank_is_in():
    assert inside(3).doing == "in all_sum #3"
    assert passed(2, 0, 0, receives=True).doing == "in recv from rank 2"
    assert passed(0, 0, 0, sends=True).doing == "in send to rank 0"
