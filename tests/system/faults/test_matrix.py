"""Break a rank in every phase, in every kind of world: all are freed in time, with the right error.

The ranks are real processes and die of real signals; the farm is the parent that says so, as a
supervisor does. After each fault the survivors and a new process form a world anew, and its sums are
right. The first tier has each pair of formation, size, phase, fault and victim.
"""

from __future__ import annotations

import re
import signal
import time
from itertools import product
from pathlib import Path

import pytest
from distributed.cells import cells
from faults import phases
from faults.phases import PHASES
from support.promise import BOUND_S, HOLDS, check
from support.runs.tiers import deep_but, pairwise
from support.waiting import wait_until

SUMS = (20, 1000)

# Formation and size: a fault that shows with a phase shows in a formation, or from a size on.
WORLDS = {
    ("arena", 2): (2, (0, 0), "any"),
    ("arena", 4): (4, (0,) * 4, "any"),
    ("arena", 8): (8, (0,) * 8, "any"),
    ("tcp", 2): (2, (0, 0), "tcp"),
    ("tcp", 4): (4, (0,) * 4, "tcp"),
    ("composed", 4): (4, (0, 0, 1, 1), "any"),
    ("composed", 8): (8, (0, 0, 0, 1, 1, 1, 2, 2), "any"),
}
FORMATIONS, SIZES = ["arena", "tcp", "composed"], [2, 4, 8]
# How to break a rank, and what its parent says of it.
FATAL = {
    "SIGKILL": (signal.SIGKILL, "SIGKILL"),
    "SIGSEGV": (signal.SIGSEGV, "SIGSEGV"),
    "os._exit": (signal.SIGALRM, "exit status 3"),  # its handler calls os._exit(3)
}


def is_fatal_case(formation: str, size: int, phase: str, fault: str, victim: str) -> bool:
    """Whether there is such a world, and the fault is one for this phase.

    How a rank died is the affair of its parent, so two phases will do for that. A Python handler
    runs between two bytecodes or while the engine waits, not while the rank is busy for good.
    """
    return (formation, size) in WORLDS and (fault == "SIGKILL" or phase in {"small", "python"})


def wait_begun(world, phase: str, victim: int, folder: Path) -> None:
    """Wait until the phase is under way: its ranks work, or have come as far as they can."""
    others = [rank for rank in range(world.size) if rank != victim]
    awaited = {"recv": "recv", "send": "send", "idle": "all_sum"}
    if phase in awaited:
        wait_until((folder / str(victim)).exists, "the victim sleeps")
        for rank in others:
            wait_until(
                lambda rank=rank: world.is_in(awaited[phase], rank) or world.has_outcome(rank),
                f"rank {rank} is in {phase}",
            )
        return
    for rank in range(world.size):
        if phase in {"python", "split"}:
            wait_until((folder / str(rank)).exists, f"rank {rank} has begun")
        # What a rank does alone, as each of two does in its part, is not on the page.
        if phase != "python" and not (phase == "split" and world.size == 2):
            world.wait_moved(rank)


def names(text: str, rank: int) -> bool:
    """Whether a timeout names a rank: as missing or late, or as somebody of a host that is."""
    missing = re.split("missing: |it waits for ", text)[-1]
    return str(rank) in re.findall(r"\d+", missing) or "a rank of another host" in missing


def check_recovered(farm, size, hosts, transport) -> None:
    """A world of the survivors and a new process stands, and is right."""
    world = farm.world(size, hosts, transport)
    assert world.run(cells.stream_of_sums, *SUMS) == [SUMS[0]] * size


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    ("formation", "size", "phase", "fault", "victim"),
    pairwise(
        {
            "formation": FORMATIONS,
            "size": SIZES,
            "phase": list(PHASES),
            "fault": list(FATAL),
            "victim": ["last", "first"],
        },
        is_fatal_case,
    ),
)
def test_a_fatal_fault_frees_everyone_and_names_the_rank(
    fault_farm, tmp_path, formation, size, phase, fault, victim
):
    size, hosts, transport = WORLDS[formation, size]
    number, said = FATAL[fault]
    victim = 0 if victim == "first" else size - 1
    others = [rank for rank in range(size) if rank != victim]
    world = fault_farm.world(size, hosts, transport)
    world.start(phases.run, phase, victim, None, str(tmp_path))
    wait_begun(world, phase, victim, tmp_path)
    begin_s = time.monotonic()
    world.kill(victim, number)
    if phase == "python":
        wait_until(lambda: world.plan.state.is_aborted, "the farm knows of the death")
        begin_s = time.monotonic()
        (tmp_path / phases.GO).touch()
    endings = world.outcomes(others)
    for ending in endings:
        assert ending.error == "RankFailure", ending
        assert ending.culprit == victim, ending
        assert f"rank {victim}" in ending.text
        assert f"host{hosts[victim]}" in ending.text
        assert said in ending.text
        assert "\n" not in ending.text
    check(max(ending.when_s for ending in endings) - begin_s)
    # In every later operation, too.
    world.start(cells.after_failure, ranks=others)
    for lines in world.outcomes(others):
        assert all(f"rank {victim}" in line for line in lines), lines
    check_recovered(fault_farm, size, hosts, transport)


FROZEN_IN = ["small", "large", "split", "async_op", "recv", "send", "idle"]
# Each phase once, and in each formation one that waits, one that works, and the sign of life.
FROZEN_FIRST = [
    ("arena", "small"), ("arena", "large"), ("arena", "recv"), ("tcp", "large"), ("tcp", "send"),
    ("tcp", "split"), ("composed", "idle"), ("composed", "async_op"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    "case", deep_but(FROZEN_FIRST, product(FORMATIONS, FROZEN_IN)), ids="-".join
)
def test_a_frozen_rank_is_missed_in_time_and_wakes_to_an_error(fault_farm, tmp_path, case):
    formation, phase = case
    size, hosts, transport = WORLDS[formation, 4]
    victim = size - 1
    world = fault_farm.world(size, hosts, transport)
    others = [rank for rank in range(size) if rank != victim]
    in_split = [rank for rank in others if rank % 2 == victim % 2]
    # That a heart stands still takes a while to see; and beside other tests an operation in which
    # nobody is frozen may take long, too.
    limit_s = (2.0 if phase in {"large", "async_op"} else 1.0) * (1 if HOLDS else 3)
    world.start(phases.run, phase, victim, limit_s, str(tmp_path))
    wait_begun(world, phase, victim, tmp_path)
    begin_s = time.monotonic()
    world.kill(victim, signal.SIGSTOP)
    try:
        endings = world.outcomes(in_split if phase == "split" else others)
    finally:
        world.kill(victim, signal.SIGCONT)
    for ending in endings:
        assert ending.error == "CollectiveTimeout", ending
    check(max(ending.when_s for ending in endings) - begin_s, limit_s + BOUND_S)
    texts = [ending.text for ending in endings]
    assert any(names(text, victim) for text in texts), texts
    if phase in {"large", "async_op"} and hosts == (0,) * size:
        # Also where the first to give up is in the ring's other half, and waits for its neighbours.
        assert all(f"rank {victim} has given no sign of life" in text for text in texts), texts
    if phase in {"small", "large", "async_op"}:
        (woken,) = world.outcomes([victim])
        assert woken.error in {"CollectiveTimeout", "DistributedError"}, woken
    check_recovered(fault_farm, size, hosts, transport)


DEAD_AT_FIRST = [
    ("arena", 2, "SIGKILL"), ("arena", 8, "SIGSEGV"), ("tcp", 4, "SIGKILL"),
    ("composed", 4, "SIGSEGV"), ("composed", 8, "SIGKILL"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    "case",
    deep_but(DEAD_AT_FIRST, [(*where, how) for where in WORLDS for how in ("SIGKILL", "SIGSEGV")]),
    ids=lambda case: "-".join(map(str, case)),
)
def test_a_rank_that_dies_while_the_world_forms(fault_farm, case):
    size, hosts, transport = WORLDS[case[:2]]
    victim = size // 2
    world = fault_farm.unformed(size, hosts, transport)
    others = [rank for rank in range(size) if rank != victim]
    world.start(phases.connect, ranks=others)
    begin_s = time.monotonic()
    world.kill(victim, signal.Signals[case[2]])
    endings = world.outcomes(others)
    for ending in endings:
        assert (ending.error, ending.culprit) == ("RankFailure", victim), ending
    check(max(ending.when_s for ending in endings) - begin_s)
    check_recovered(fault_farm, size, hosts, transport)


@pytest.mark.slow
@pytest.mark.parametrize("formation", deep_but(["composed"], FORMATIONS))
def test_faults_leave_no_descriptor_behind(fault_farm, tmp_path, formation):
    size, hosts, transport = WORLDS[formation, 4]
    counts = []
    for _ in range(4):
        check_recovered(fault_farm, size, hosts, transport)
        world = fault_farm.world(size, hosts, transport)
        counts.append(world.run(phases.n_descriptors)[:-1])
        world.start(phases.run, "small", size - 1)
        wait_begun(world, "small", size - 1, tmp_path)
        world.kill(size - 1, signal.SIGKILL)
        world.outcomes(range(size - 1))
    assert counts[1:] == [counts[1]] * 3, counts
