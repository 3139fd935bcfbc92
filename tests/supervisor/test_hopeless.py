"""When a wait can never end."""

from __future__ import annotations

from phalanx.supervisor._hopeless import Activity, Hopeless, find_hopeless


def idle(done=0, epoch=1):
    return Activity(epoch, -1, "", 0, (done, *[0] * 31))


def inside(seq, op="all_sum", epoch=1, channel=0):
    return Activity(epoch, channel, op, seq, (seq - 1, *[0] * 31))


def find(activities, running, gone):
    return find_hopeless(dict(enumerate(activities)), epoch=1, running=running, gone=gone)


def test_a_rank_that_ended_without_coming_is_named():
    found = find([inside(3), inside(3), idle(done=2)], running=[0, 1], gone=[2])
    assert found == Hopeless((0, 1), 2, "all_sum", 3)


def test_a_rank_that_did_its_part_and_ended_is_no_trouble():
    assert find([inside(3), idle(done=3)], running=[0], gone=[1]) is None


def test_a_busy_rank_is_waited_for():
    assert find([inside(3), idle(done=2), idle(done=3)], running=[0, 1], gone=[2]) is None


def test_a_rank_that_never_joined_this_epoch_counts_as_not_come():
    found = find([inside(1), idle(done=9, epoch=0)], running=[0], gone=[1])
    assert found is not None
    assert found.missing == 1


def test_a_thread_of_a_rank_that_ended_may_still_be_inside():
    assert find([inside(3), inside(3)], running=[0], gone=[1]) is None


def test_waits_of_another_time_or_group_are_left_alone():
    assert find([inside(3, epoch=0), idle()], running=[0], gone=[1]) is None
    assert find([inside(3, channel=2), idle()], running=[0], gone=[1]) is None
