"""When ranks wait for each other."""

from __future__ import annotations

import pytest

from phalanx.protocol import Activity, GroupProgress, Passed, UserWait
from phalanx.supervisor.health.deadlock import DeadlockSearch, find_deadlock
from phalanx.supervisor.health.waits import WORLD, Activities

SPLIT, OTHER = 77, 78
SPLITS = {SPLIT: (0, 1), OTHER: (1, 2)}


def waits(op, seq, group=WORLD, peer=-1, site="", *, standings=None, passed=None, **said):
    """A rank whose program waits in an operation or a message."""
    groups = {
        WORLD: GroupProgress("", 0, 4),
        SPLIT: GroupProgress("", 0, 0),
        OTHER: GroupProgress("", 0, 0),
    }
    groups |= standings or {}
    messages = {}
    if peer >= 0:
        messages[group, peer] = Passed(0, 0, sends=op == "send", receives=op == "recv")
    elif op != "work":
        groups[group] = GroupProgress(op, seq, seq - 1)
    said = {"looks": 1, "has_threads": False, **said}
    wait = UserWait(9, group, op, seq, peer, site=site, **said)
    return Activity(1, groups, messages=messages | (passed or {}), wait=wait)


def goes_on(**said):
    return Activity(1, waits("barrier", 5).groups | {WORLD: GroupProgress("", 0, 4)}, **said)


def find(*activities, running=None, splits=SPLITS, **options):
    return find_deadlock(
        Activities(dict(enumerate(activities)), 1, splits),
        running=range(len(activities)) if running is None else running,
        **options,
    )


IN_WORLD = waits("all_sum", 5, site="a.py:7")
IN_SPLIT = waits("all_max", 1, SPLIT, site="a.py:3")


def test_each_rank_is_named_with_its_call_and_place():
    found = find(IN_SPLIT, IN_WORLD, waits("all_sum", 5, site="a.py:7"))
    assert str(found) == (
        "ranks 0-1 wait for each other: rank 0 in all_max #1 in the split of ranks 0-1 at a.py:3, "
        "ranks 1-2 in all_sum #5 at a.py:7; "
        "call operations of all groups, and messages, in one order on every rank"
    )
    assert (found.cycle, found.waiting, found.acting) == ((0, 1), (0, 1, 2), ())


def test_a_message_against_an_operation_and_two_large_sends():
    found = find(waits("recv", 1, peer=1, site="cell line 2"), IN_WORLD)
    assert "rank 0 in recv #1 from rank 1 at cell line 2, rank 1 in all_sum #5" in str(found)
    found = find(waits("send", 1, peer=1), waits("send", 1, peer=0))
    assert found.sends
    assert str(found).endswith(
        "rank 0 in send #1 to rank 1, rank 1 in send #1 to rank 0; "
        "a large send ends when it is received: let one side receive first"
    )


def test_a_cycle_of_three_splits():
    splits = {1: (0, 1), 2: (1, 2), 3: (2, 0)}
    ranks = []
    for rank, mine in enumerate((1, 2, 3)):
        groups = {n: GroupProgress("", 0, 0) for n, members in splits.items() if rank in members}
        groups |= {WORLD: GroupProgress("", 0, 0), mine: GroupProgress("all_sum", 1, 0)}
        ranks.append(Activity(1, groups, wait=UserWait(1, mine, "all_sum", 1, has_threads=False)))
    assert find(*ranks, splits=splits).cycle == (0, 1, 2)


@pytest.mark.parametrize(
    "other",
    [
        goes_on(),
        waits("all_max", 1, SPLIT),  # it has come
        waits("all_sum", 5, has_threads=True),
        waits("all_sum", 5, standings={SPLIT: GroupProgress("", 0, 0, 1)}),  # its queue is about to
        waits("all_sum", 5, standings={SPLIT: GroupProgress("", 0, 1)}),
        Activity(1, {WORLD: GroupProgress("all_sum", 5, 4)}, wait=IN_WORLD.wait),  # has closed it
        Activity(2, IN_WORLD.groups, wait=IN_WORLD.wait),
    ],
    ids=["goes_on", "came", "threads", "queued", "did_it", "closed", "another_epoch"],
)
def test_a_rank_that_may_go_on_or_has_come_is_waited_for(other):
    assert find(IN_SPLIT, IN_WORLD) is not None
    assert find(IN_SPLIT, other) is None


def test_who_has_ended_its_part_and_splits_that_are_unknown_are_left_alone():
    assert find(IN_SPLIT, IN_WORLD, running=[0]) is None
    assert find(IN_SPLIT, IN_WORLD, splits={}) is None


def test_other_threads_may_be_ignored_and_are_named():
    acting = waits("all_sum", 5, has_threads=True)
    assert find(IN_SPLIT, acting, with_threads=True).acting == (1,)


def test_a_wait_for_queued_operations_is_one_for_those_who_miss_in_them():
    queue = {SPLIT: GroupProgress("all_sum", 1, 0, 2)}
    waiting = waits("work", 1, SPLIT, standings=queue, site="a.py:2")
    found = find(waiting, IN_WORLD)
    assert "rank 0 in all_sum #1 in the split of ranks 0-1 at a.py:2" in str(found)
    assert find(waits("work", 2, SPLIT, standings=queue), IN_WORLD) is None  # it is over
    came = waits("all_sum", 5, standings={SPLIT: GroupProgress("all_sum", 1, 0, 1)})
    assert find(waiting, came) is None


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (waits("recv", 1, peer=1), {"passed": {(WORLD, 0): Passed(1, 0)}}),
        (waits("recv", 1, peer=1), {"passed": {(WORLD, 0): Passed(0, 0, sends=True)}}),
        (waits("send", 1, peer=1), {"passed": {(WORLD, 0): Passed(0, 1)}}),
        (waits("send", 1, peer=1), {"passed": {(WORLD, 0): Passed(0, 0, receives=True)}}),
    ],
)
def test_a_message_that_has_passed_or_passes_is_no_wait(mine, theirs):
    assert find(mine, IN_WORLD) is not None
    assert find(mine, waits("all_sum", 5, **theirs)) is None


def test_a_long_message_passes_though_neither_end_waits_at_this_moment():
    ends = waits("send", 3, peer=1), waits("recv", 3, peer=0)
    between = {0: {(WORLD, 1): Passed(2, 0)}, 1: {(WORLD, 0): Passed(0, 2)}}
    ranks = [
        Activity(1, its.groups, messages=between[rank], wait=its.wait)
        for rank, its in enumerate(ends)
    ]
    assert find(*ranks) is None


class Looks:
    """A search, and the ranks it looks at: two that wait for each other."""

    def __init__(self, send_s=0.0, op="recv"):
        self.search = DeadlockSearch(send_s)
        self.op = op

    def __call__(self, *looks, now_s=0.0, numbers=(1, 1)):
        ranks = {rank: waits(self.op, 1, peer=1 - rank, looks=n) for rank, n in enumerate(looks)}
        ranks = {
            rank: Activity(1, its.groups, messages=its.messages,
                           wait=its.wait._replace(number=numbers[rank]))
            for rank, its in ranks.items()
        }  # fmt: skip
        found = self.search.look(Activities(ranks, 1, SPLITS), now_s=now_s, running=ranks)
        return None if found is None else found.cycle


def test_each_rank_must_look_twice_after_the_second_look():
    look = Looks()
    assert look(1, 1) is None
    assert look.search.is_suspicious
    assert look(5, 5) is None
    assert look(7, 6) is None
    assert look(9, 7) == (0, 1)


def test_another_wait_begins_anew():
    look = Looks()
    for _ in range(2):
        assert look(1, 1) is None
    assert look(9, 9, numbers=(1, 2)) is None
    assert look(20, 20, numbers=(1, 2)) is None
    assert look(22, 22, numbers=(1, 2)) == (0, 1)


def test_a_send_is_given_time():
    look = Looks(send_s=1.0, op="send")
    assert [look(n, n, now_s=n / 10) for n in (0, 2, 4, 9)] == [None] * 4
    assert look(10, 10, now_s=1.0) == (0, 1)
