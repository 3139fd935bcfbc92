"""What is concluded of waits, against ranks of which the truth is known."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from supervisor.deadlock.simulator import Event, Simulator, settle
from support.runs.tiers import examples

from phalanx.supervisor.health.deadlock import DeadlockSearch, find_deadlock
from phalanx.supervisor.health.waits import (
    CONFIRM_S,
    WORLD,
    Activities,
    ImpossibleWaitSearch,
)

# One number for a world and all that happens in it: drawn one by one they cost ten times as much.
SEEDS = st.integers(0, (1 << 32) - 1)


def make_programs(random):
    """Make groups, and each rank's part of events that could be done in one order."""
    size = random.randint(2, 5)
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
    programs = [
        [
            event
            for event in events
            if rank in ((event.sender, event.receiver) if event.is_message else groups[event.group])
        ]
        for rank in range(size)
    ]
    return groups, programs


def make_leaving(random):
    """Make ranks of which some leave early; one that was not asked does nothing at all."""
    groups, programs = make_programs(random)
    for mine in programs:
        if random.random() < 0.33:
            del mine[random.randint(0, len(mine)) :]
    return Simulator(groups, programs)


def make_crossed(random):
    """Make ranks of which some do their events in another order, and some with a second thread."""
    groups, programs = make_programs(random)
    others = {}
    for rank, mine in enumerate(programs):
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
            mine[:] = [e for e in mine if (e.group, e.sender, e.receiver) != lane]
    return Simulator(groups, programs, others)


def read(simulator, pause=lambda: None):
    """Read pages one after the other, while the ranks go on."""
    activities = {}
    for rank in range(len(simulator.ranks)):
        activities[rank] = simulator.activity(rank)
        pause()
    return Activities(activities, 1, simulator.splits)


# -- waits for a rank that has ended --------------------------------------------------------------


def look_for_impossible(search, now_s, simulator, pause=lambda: None):
    running, gone = simulator.running, simulator.gone
    return search.look(read(simulator, pause), now_s=now_s, running=running, gone=gone)


def is_waiting(simulator, rank, found):
    """Whether a rank is in the wait that was found."""
    now = simulator.activity(rank)
    if found.op == "all_sum":
        members = found.split or simulator.groups[WORLD]
        candidates = [n for n, its in simulator.groups.items() if its == members]
        return any(now.groups[n].op and now.groups[n].seq == found.seq for n in candidates)
    passed = [its for (_, peer), its in now.messages.items() if peer == found.missing]
    if found.op == "send":
        return any(its.sends and its.sent + 1 == found.seq for its in passed)
    return any(its.receives and its.received + 1 == found.seq for its in passed)


@settings(max_examples=examples(400), deadline=None)
@given(SEEDS)
def test_no_wait_that_can_end_is_called_impossible(seed):
    random = Random(seed)
    simulator = make_leaving(random)
    threads = simulator.threads()

    def go_on(n=2):
        for _ in range(n):
            simulator.step(random.choice(threads))

    found, search = None, ImpossibleWaitSearch()
    for step in range(random.randint(0, 60)):
        go_on(1)
        found = found or look_for_impossible(search, step * CONFIRM_S, simulator, go_on)
        # Between two looks every thread has its turn, in any order.
        for thread in random.sample(threads, len(threads)):
            simulator.step(thread)
    settle(simulator, random)
    if found is not None:
        assert found.missing in simulator.gone
        assert all(is_waiting(simulator, rank, found) for rank in found.waiting)


@settings(max_examples=examples(400), deadline=None)
@given(SEEDS)
def test_a_rank_that_waits_for_one_that_has_left_is_freed(seed):
    random = Random(seed)
    simulator = make_leaving(random)
    settle(simulator, random)
    search = ImpossibleWaitSearch()
    look_for_impossible(search, 0.0, simulator)
    found = look_for_impossible(search, CONFIRM_S, simulator)
    assert (found is None) == (not simulator.running)
    if found is not None:
        assert found.missing in simulator.gone
        assert set(found.waiting) <= simulator.running


# -- ranks that wait for each other ---------------------------------------------------------------


def look_for_deadlock(search, simulator, pause=lambda: None):
    running = simulator.running
    return search.look(read(simulator, pause), now_s=0.0, running=running)


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
    simulator = make_crossed(random)
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
        found = found or look_for_deadlock(search, simulator, go_on)
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
    simulator = make_crossed(random)
    settle(simulator, random)
    search, impossible = DeadlockSearch(send_s=0.0), ImpossibleWaitSearch()
    for _ in range(3):
        found = look_for_deadlock(search, simulator)
        for thread in 2 * simulator.threads():
            assert not simulator.step(thread)
    if not simulator.running:
        assert found is None
    elif not any(rank.other for rank in simulator.ranks):  # nor waits for one that has ended
        look_for_impossible(impossible, 0.0, simulator)
        assert found or look_for_impossible(impossible, CONFIRM_S, simulator)
    if found is not None:  # the 10 s line names it as well
        assert find_deadlock(read(simulator), running=simulator.running, with_threads=True)


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
        assert look_for_deadlock(search, simulator) is None
    assert search.is_suspicious
    for thread in 5 * (sender, receiver):
        simulator.step(thread)
    assert simulator.running == set()
