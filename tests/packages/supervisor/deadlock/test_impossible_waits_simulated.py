"""Verdicts on waits, against ranks of which the truth is known."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from supervisor.deadlock.simulator import Event, Simulator, settle
from support.runs.tiers import examples

from phalanx.supervisor.health.impossible_waits import (
    CONFIRM_S,
    WORLD,
    Activities,
    ImpossibleWaitSearch,
)


@st.composite
def simulators(draw):
    size = draw(st.integers(2, 5))
    groups = {WORLD: tuple(range(size))}
    for number in range(1, draw(st.integers(1, 4))):
        members = draw(st.sets(st.integers(0, size - 1), min_size=2))
        groups[number] = tuple(sorted(members))
    events = []
    for _ in range(draw(st.integers(1, 12))):
        group = draw(st.sampled_from(sorted(groups)))
        members = groups[group]
        if draw(st.booleans()):
            sender, receiver = draw(st.permutations(members))[:2]
            events.append(Event(group, sender, receiver, is_large=draw(st.booleans())))
        else:
            submitters = draw(st.sets(st.sampled_from(members)))
            events.append(Event(group, asyncs=frozenset(submitters)))
    programs = []
    for rank in range(size):
        mine = [
            event
            for event in events
            if rank in ((event.sender, event.receiver) if event.is_message else groups[event.group])
        ]
        # Most ranks do all; one that leaves early may do nothing at all (it was not asked).
        early = draw(st.integers(0, 2)) == 0
        programs.append(mine[: draw(st.integers(0, len(mine)))] if early else mine)
    return Simulator(groups, programs)


def look(search, now_s, simulator, pause=lambda: None):
    """Read pages one after the other, while the ranks go on; then judge."""
    running, gone = simulator.running, simulator.gone
    activities = {}
    for rank in sorted(running | gone):
        activities[rank] = simulator.activity(rank)
        pause()
    seen = Activities(activities, 1, simulator.splits)
    return search.look(seen, now_s=now_s, running=running, gone=gone)


def is_in(simulator, rank, found):
    """Whether a rank is in the wait that was found."""
    now = simulator.activity(rank)
    if found.op == "all_sum":
        number = next(
            (n for n, members in simulator.splits.items() if members == found.split), WORLD
        )
        candidates = [n for n, m in simulator.groups.items() if m == simulator.groups[number]]
        return any(now.groups[n].op and now.groups[n].seq == found.seq for n in candidates)
    return any(
        peer == found.missing
        and (
            its.sends and its.sent + 1 if found.op == "send" else its.receives and its.received + 1
        )
        == found.seq
        for (_, peer), its in now.messages.items()
    )


@settings(max_examples=examples(200), deadline=None)
@given(simulators(), st.randoms(use_true_random=False), st.integers(0, 60))
def test_no_wait_that_can_end_is_called_hopeless(simulator, random, n_steps):
    threads = simulator.threads()

    def go_on(n=2):
        for _ in range(n):
            simulator.step(random.choice(threads))

    found, search = None, ImpossibleWaitSearch()
    for step in range(n_steps):
        go_on(1)
        found = found or look(search, step * CONFIRM_S, simulator, go_on)
        # Between two looks every thread has its turn, in any order.
        for thread in random.sample(threads, len(threads)):
            simulator.step(thread)
    settle(simulator, random)
    if found is not None:
        assert found.missing in simulator.gone
        assert all(is_in(simulator, rank, found) for rank in found.waiting)


@settings(max_examples=examples(200), deadline=None)
@given(simulators(), st.randoms(use_true_random=False))
def test_a_rank_that_cannot_go_on_is_freed(simulator, random):
    settle(simulator, random)
    search = ImpossibleWaitSearch()
    look(search, 0.0, simulator)
    found = look(search, CONFIRM_S, simulator)
    assert (found is None) == (not simulator.running)
    if found is not None:
        assert found.missing in simulator.gone
        assert set(found.waiting) <= simulator.running
