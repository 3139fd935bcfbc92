"""What the control page says of a wait that lasts, for the search for ranks that wait for each other."""

from __future__ import annotations

from distributed.cells import pair_cells, work_cells
from support.waiting import wait_until


def wait_of(world, rank):
    return world.page_of(rank).wait(world.plan.slots[rank])


def seen(world, rank):
    """Wait until the rank waits for long, and has said where."""

    def look():
        found = wait_of(world, rank)
        return found if found is not None and found[-1] else None

    return wait_until(look, f"a long wait of rank {rank}")


def test_a_message_is_shown_and_hidden_and_each_wait_has_a_number(rank_pool):
    world = rank_pool(2)
    assert wait_of(world, 0) is None
    numbers, messages = [], []
    for _ in range(2):
        world.start(pair_cells.recv, 1, 8, ranks=[0])
        number, tag, op, message, peer, looks, _, site = seen(world, 0)
        assert (tag, op, peer) == (0, "recv", 1)
        messages.append(message)
        assert site.startswith("pair_cells.py:")
        wait_until(lambda n=looks: wait_of(world, 0)[5] >= n + 2, "two more looks")
        numbers.append(number)
        world.start(pair_cells.send, 0, 8, ranks=[1])
        assert world.outcomes() == [True, None]
        assert wait_of(world, 0) is None
    assert len(set(numbers)) == 2
    assert messages[1] == messages[0] + 1


def test_a_wait_for_what_was_submitted_says_how_much_may_be_left(rank_pool):
    world = rank_pool(2)
    world.start(work_cells.wait_for_each, 3, 0, ranks=[0])
    _, tag, op, left, peer, _, _, site = seen(world, 0)
    assert (tag, op, left, peer) == (0, "work", 2, -1)
    assert site.startswith("work_cells.py:")
    world.start(work_cells.wait_for_each, 3, 0, ranks=[1])
    assert world.outcomes() == [None] * 2
    assert wait_of(world, 0) is None


def test_a_wait_with_a_limit_of_its_own_is_not_shown(rank_pool):
    world = rank_pool(3)
    world.start(work_cells.wait_for_each, 1, 60.0, ranks=[0])
    world.wait_in("all_sum", [0], n_queued=1)
    world.start(pair_cells.recv, 1, 8, ranks=[2])
    wait_until(lambda: seen(world, 2)[5] >= 3, "a wait that was begun later has lasted")
    assert wait_of(world, 0) is None
    world.start(pair_cells.send, 2, 8, ranks=[1])
    assert world.outcomes([1, 2]) == [None, True]
    world.start(work_cells.wait_for_each, 1, 60.0, ranks=[1, 2])
    assert world.outcomes() == [None] * 3
