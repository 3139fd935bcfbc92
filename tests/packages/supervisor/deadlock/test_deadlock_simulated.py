"""Deadlocks, against ranks of which the truth is known."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from supervisor.deadlock.simulator import Event, Simulator, settle
from support.runs.tiers import examples

from phalanx.supervisor.health.deadlock import DeadlockSearch, find_deadlock
from phalanx.supervisor.health.impossible_waits import (
    CONFIRM_S,
    WORLD,
    Activities,
    ImpossibleWaitSearch,
)


def events_of_world(random, size):
    """Make groups, and events that could be done in this order."""
    groups = {WORLD: tuple(range(size))}
    for number in range(1, random.randint(1, 4)):
        groups[number] = tuple(sorted(random.sample(range(size), random.randint(2, size))))
    events = []
    for _ in range(random.randint(1, 10)):
        group = random.choice(sorted(groups))
        if random.random() < 0.5:
            message = Event(group, *random.sample(groups[group], 2), random.random() < 0.5)
            events += [message] * random.randint(1, 3)  # more than there is room for
        else:
            submitters = [member for member in groups[group] if random.random() < 0.4]
            events.append(Event(group, asyncs=frozenset(submitters)))
    return groups, events


def make_world(random):
    """Make ranks of which some do their events in another order, and some with a second thread."""
    size = random.randint(2, 5)
    groups, events = events_of_world(random, size)
    programs, others = [], {}
    for rank in range(size):
        mine = [
            event
            for event in events
            if rank in ((event.sender, event.receiver) if event.is_message else groups[event.group])
        ]
        if len(mine) > 1 and random.random() < 0.5:
            mine.insert(random.randrange(len(mine)), mine.pop(random.randrange(len(mine) - 1)))
        for event in [event for event in mine if rank in event.asyncs]:
            if random.random() < 0.5:
                at = random.randint(mine.index(event) + 1, len(mine))
                mine.insert(at, Event(event.group, left=random.randint(0, 1)))
        lanes = sorted({(e.group, e.sender, e.receiver) for e in mine if e.is_message})
        if lanes and random.random() < 0.25:
            lane = random.choice(lanes)
            others[rank] = [e for e in mine if (e.group, e.sender, e.receiver) == lane]
            mine = [e for e in mine if (e.group, e.sender, e.receiver) != lane]
        programs.append(mine)
    return Simulator(groups, programs, others)


# One number for a world and all that happens in it: drawn one by one they cost ten times as much.
SEEDS = st.integers(0, (1 << 32) - 1)


def look(search, simulator, pause=lambda: None):
    """Read pages one after the other, while the ranks go on; then judge."""
    running = simulator.running
    activities = {}
    for rank in range(len(simulator.ranks)):
        activities[rank] = simulator.activity(rank)
        pause()
    return search.look(Activities(activities, 1, simulator.splits), now_s=0.0, running=running)


def is_in(simulator, wait):
    """Whether a thread still is in the wait."""
    (number, group), seq = wait
    rank = simulator.ranks[number]
    if group >= 0:
        return bool(rank.queues[group]) and rank.inside.get(group) == seq
    return rank.wait is not None and rank.wait.number == seq


@settings(max_examples=examples(800), deadline=None)
@given(SEEDS)
def test_no_rank_that_can_go_on_is_accused(seed):
    random = Random(seed)
    simulator = make_world(random)
    threads = simulator.threads()
    awake = list(threads)

    def go_on():
        if random.random() < 0.1:  # the machine runs others for a while
            awake[:] = random.sample(threads, random.randint(1, len(threads)))
        for _ in range(random.randrange(4)):
            simulator.step(random.choice(awake))

    found, search = None, DeadlockSearch(send_s=0.0)
    for _ in range(random.randint(0, 60)):
        go_on()
        found = found or look(search, simulator, go_on)
    settle(simulator, random)
    if found is not None:
        assert len(found.cycle) > 1
        assert set(found.cycle) <= set(found.waiting) <= simulator.running
        assert not found.acting
        assert all(is_in(simulator, wait) for wait in found.waits)


@settings(max_examples=examples(400), deadline=None)
@given(SEEDS)
def test_each_rank_that_cannot_go_on_is_accused(seed):
    random = Random(seed)
    simulator = make_world(random)
    settle(simulator, random)
    search, hopeless = DeadlockSearch(send_s=0.0), ImpossibleWaitSearch()
    for _ in range(3):
        found = look(search, simulator)
        for thread in 2 * simulator.threads():
            assert not simulator.step(thread)
    activities = {rank: simulator.activity(rank) for rank in range(len(simulator.ranks))}
    seen = Activities(activities, 1, simulator.splits)
    if not simulator.running:
        assert found is None
    elif not any(rank.other for rank in simulator.ranks):  # nor waits for one that has ended
        world = {"running": simulator.running, "gone": simulator.gone}
        hopeless.look(seen, now_s=0.0, **world)
        assert found is not None or hopeless.look(seen, now_s=CONFIRM_S, **world) is not None
    if found is not None:  # the 10 s line names it as well
        assert find_deadlock(seen, running=simulator.running, with_threads=True)


def test_a_sender_that_has_room_and_has_not_run_since_is_no_reason():
    """Rank 1 has made room and waits for what rank 0 does after its send."""
    message, both = Event(WORLD, 0, 1), Event(WORLD)
    simulator = Simulator({WORLD: (0, 1)}, [[message, message, both], [message, both, message]])
    sender, receiver = (0, -1), (1, -1)
    for _ in range(5):
        simulator.step(sender)
    assert simulator.activity(0).wait.op == "send"
    search = DeadlockSearch(send_s=0.0)
    for _ in range(5):
        for _ in range(3):
            simulator.step(receiver)
        assert look(search, simulator) is None
    assert search.is_suspicious
    for thread in 5 * (sender, receiver):
        simulator.step(thread)
    assert simulator.running == set()
