"""Who waits for whom as the pages of real ranks tell it: on one host, on several, in splits."""

from __future__ import annotations

import pytest
from distributed.farm.farm import Farm
from supervisor.deadlock import hopeless_cells as cells
from support.runs.tiers import deep, pairwise
from support.waiting import wait_until

from phalanx.errors import RankFailure
from phalanx.protocol import name_ranks
from phalanx.supervisor.health.impossible_waits import (
    Activities,
    Activity,
    GroupProgress,
    Passed,
    find_impossible_wait,
)

pytestmark = pytest.mark.slow  # many processes on two cores

WORLDS = {
    "4 arena": (4, (0, 0, 0, 0), "any"),
    "4 tcp": (4, (0, 0, 0, 0), "tcp"),
    "2+2 composed": (4, (0, 0, 1, 1), "any"),
    "2+2 interleaved": (4, (0, 1, 0, 1), "any"),
    "2+1+1 composed": (4, (0, 0, 1, 2), "any"),
}
SIZES = [1, 100_000]
LARGE = 5_000_000  # elements: no socket takes them while nobody reads
# A look is 0.1 ms: many looks are taken while ranks go on, and they have most of the core.
LOOK_EVERY_S = 0.001


@pytest.fixture(scope="module")
def farm():
    farm = Farm()
    yield farm
    farm.close()


@pytest.fixture(params=WORLDS)
def world(request, farm):
    size, hosts, transport = WORLDS[request.param]
    world = farm.world(size, hosts, transport)
    yield world
    if world.is_good:
        world.run(cells.forget)


class Judge:
    """What the root supervisor does: looks at the pages of all hosts, and frees all ranks."""

    def __init__(self, world, splits=None):
        self.world = world
        self.splits = splits or {}

    def activity(self, rank):
        plan = self.world.plan
        page = self.world.page_of(rank)
        epoch, groups, pair, messages = page.activity(plan.slots[rank])
        return Activity(
            epoch,
            {number: GroupProgress(*its) for number, its in groups.items()},
            pair,
            {key: Passed(*its) for key, its in messages.items()},
        )

    def look(self, running):
        ranks = range(self.world.size)
        now = {rank: self.activity(rank) for rank in ranks}
        return find_impossible_wait(
            Activities(now, self.world.plan.epoch, self.splits),
            running=running,
            gone=set(ranks) - set(running),
        )

    def free(self, running):
        """Look until a wait is found that is in vain, and end it."""
        found = wait_until(lambda: self.look(running), "a wait in vain", poll_s=LOOK_EVERY_S)
        self.world.give_up(found.missing, f"ended its cell; {found}")
        return found

    def wait_all_in(self, ranks):
        """Wait until each of these waits in something."""

        def is_waiting(rank):
            now = self.activity(rank)
            return now.doing or now.pair[1]

        wait_until(lambda: all(map(is_waiting, ranks)), "ranks that wait", poll_s=LOOK_EVERY_S)

    def accuse_nobody(self, running):
        """Look until the cells of these ranks are over; none of them may be accused."""

        def are_over():
            assert self.look(running) is None
            return all(map(self.world.has_outcome, running))

        wait_until(are_over, "the end of all cells", poll_s=LOOK_EVERY_S)


def assert_freed(world, ranks, missing):
    outcomes = world.outcomes(ranks)
    for outcome in outcomes:
        assert isinstance(outcome, RankFailure), outcome
        assert outcome.rank == missing
        assert "can never complete" in str(outcome)
    return str(outcomes[0])


@pytest.mark.parametrize(
    ("world", "missing", "length"),
    pairwise({"world": list(WORLDS), "missing": range(4), "length": SIZES}),
    indirect=["world"],
)
def test_the_missing_rank_is_named_and_no_leader(world, missing, length):
    judge = Judge(world)
    others = [rank for rank in range(world.size) if rank != missing]
    world.run(cells.sum_ones, length)  # all have come to this one
    world.start(cells.sum_ones, length, ranks=others)
    judge.wait_all_in(others)
    found = judge.free(others)
    assert (found.missing, found.waiting) == (missing, tuple(others))
    assert_freed(world, others, missing)


def test_in_a_split_across_hosts_and_in_a_split_of_that(world):
    made = world.run(cells.split, "outer", [0, 0, None, 0])
    made += world.run(cells.split, "inner", [1, None, None, 1], "outer")
    splits = dict(entry for entry in made if entry is not None)
    assert sorted(splits.values()) == [[0, 1, 3], [0, 3]]
    judge = Judge(world, splits)
    world.start(cells.sum_ones, 3, "outer", ranks=[0, 1, 3])
    assert world.outcomes([0, 1, 3]) == [True] * 3
    world.start(cells.sum_ones, 3, "inner", ranks=[0])
    world.start(cells.sum_ones, 3, "outer", ranks=[1])  # where rank 0 might come yet
    found = judge.free([0, 1])
    # Rank 3 has come to neither; which of the two is looked at first is chance.
    assert found.missing == 3
    assert found.split in ((0, 3), (0, 1, 3))
    said = assert_freed(world, [0, 1], 3)
    assert f"in the split of {name_ranks(found.split)}, in which " in said


def test_what_a_rank_that_is_gone_has_queued_is_waited_for(world):
    judge = Judge(world)
    others = [0, 1, 3]
    for length in SIZES:
        world.start(cells.submit_and_end, length, ranks=[2])
        assert world.outcomes([2]) == [None]
        world.start(cells.sum_range, length, ranks=others[:2])
        judge.wait_all_in(others[:2])
        for _ in range(50):
            assert judge.look(others) is None
        world.start(cells.sum_range, length, ranks=[3])
        judge.accuse_nobody(others)
        assert world.outcomes(others) == [True] * 3


# On one host, over tcp on one host, of the same host and of another one of several.
PEERS = {("4 arena", 1), ("4 tcp", 2), ("2+2 composed", 1), ("2+2 interleaved", 3)}


@pytest.mark.parametrize(
    ("world", "peer"),
    [
        pytest.param(world, peer, marks=() if (world, peer) in PEERS else deep)
        for world in WORLDS
        for peer in (1, 2, 3)
    ],
    indirect=["world"],
)
def test_messages_to_and_from_a_rank_that_is_gone(world, peer):
    judge = Judge(world)
    world.start(cells.send, peer, LARGE, ranks=[0])
    found = judge.free([0])
    assert (found.op, found.seq, found.missing) == ("send", 1, peer)
    assert f"send #1 to rank {peer}, in which rank 0 waits" in assert_freed(world, [0], peer)
    world = world.farm.world(world.size, world.plan.hosts, world.plan.transport)
    judge = Judge(world, dict(filter(None, world.run(cells.split, "half", [5, *[5] * 3]))))
    world.start(cells.recv, peer, "half", ranks=[0])
    found = judge.free([0])
    assert (found.op, found.seq, found.missing) == ("recv", 1, peer)
    assert f"recv #1 from rank {peer} in the split of ranks 0-3" in assert_freed(world, [0], peer)


def test_what_was_sent_is_on_its_way_and_no_reason_to_accuse(world):
    judge = Judge(world)
    for _ in range(3):
        world.start(cells.send, 0, ranks=[3])
        assert world.outcomes([3]) == [None]
        world.start(cells.recv, 3, ranks=[0])
        judge.accuse_nobody([0])
        assert world.outcomes([0]) == [None]
