"""Long waits: found once, with who is missing."""

from __future__ import annotations

from phalanx.protocol import Activity, GroupProgress, Passed
from phalanx.supervisor.health.waits import WORLD, Activities, LongWait, SlowOperationDetector

SPLIT = 77


def idle(done=0, epoch=1, group=WORLD):
    return Activity(epoch, {group: GroupProgress("", 0, done)})


def inside(seq, op="all_sum", epoch=1, group=WORLD):
    return Activity(epoch, {group: GroupProgress(op, seq, seq - 1)})


def waiting(op, peer, seq=1):
    count = {"sends": True} if op == "send" else {"receives": True}
    return Activity(
        1, {WORLD: GroupProgress("", 0, 0)}, {(WORLD, peer): Passed(seq - 1, seq - 1, **count)}
    )


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
    now = waiting("recv", 2), waiting("recv", 2, seq=4), idle(7), waiting("send", 2)
    ranks.look(0.0, *now)
    assert ranks.look(10.0, *now) == [
        LongWait((0, 1), "recv from rank 2", (2,), {}),
        LongWait((3,), "send to rank 2", (2,), {}),
    ]


def test_a_message_whose_other_half_is_under_way_misses_nobody():
    ranks = Watched()
    now = waiting("recv", 1), waiting("send", 0)
    ranks.look(0.0, *now)
    assert {wait.missing for wait in ranks.look(10.0, *now)} == {()}


def test_words_for_what_a_rank_is_in():
    assert inside(3).doing == "in all_sum #3"
    assert waiting("recv", 2).doing == "in recv from rank 2"
    assert waiting("send", 0).doing == "in send to rank 0"
