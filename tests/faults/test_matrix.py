"""Every fault in every phase, in every kind of world: who raises what, how soon, and what is left.

The ranks are real processes and die of real signals; the farm is the parent that says so, as a
supervisor does. (A supervisor's own suite is test_supervised.py.) After each fault the survivors and
a new process form a world anew, and its sums are right.
"""

from __future__ import annotations

import re
import signal
import time

import psutil
import pytest
from distributed import cells
from faults import phases
from faults.phases import PHASES

BOUND_S = 2.0  # design.md section 5: on one machine
SUMS = (20, 1000)

WORLDS = {
    "2 arena": (2, (0, 0), "any"),
    "2 tcp": (2, (0, 0), "tcp"),
    "4 arena": (4, (0,) * 4, "any"),
    "4 tcp": (4, (0,) * 4, "tcp"),
    "2+2 composed": (4, (0, 0, 1, 1), "any"),
    "8 arena": (8, (0,) * 8, "any"),
    "3+3+2 composed": (8, (0, 0, 0, 1, 1, 1, 2, 2), "any"),
}
# How to break a rank, and what its parent says of it.
FATAL = {
    "SIGKILL": (signal.SIGKILL, "SIGKILL"),
    "SIGSEGV": (signal.SIGSEGV, "SIGSEGV"),
    "os._exit": (signal.SIGALRM, "exit status 3"),  # its handler calls os._exit(3)
}
# A Python handler runs between two bytecodes or while the engine waits, not while the rank is busy
# for good; and it is the parent's affair how a rank died, so one of the phases will do for that.
FAULTS = [(fault, phase) for phase in PHASES for fault in FATAL if fault == "SIGKILL"]
FAULTS += [(fault, phase) for fault in ("SIGSEGV", "os._exit") for phase in ("small", "python")]


def is_waiting(world, rank: int) -> bool:
    """Whether a rank has done all it can: it sleeps."""
    pid = world._farm.members[rank].process.pid
    return psutil.Process(pid).status() == psutil.STATUS_SLEEPING


def wait_until(condition, what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def wait_begun(world, phase: str, victim: int) -> None:
    """Until the phase is under way: its peers work, or have come as far as they can."""
    if phase in {"recv", "send", "idle", "python"}:
        wait_until(lambda: is_waiting(world, victim), "the victim is to sleep")
    else:
        pids = [world._farm.members[rank].process.pid for rank in range(world.size)]
        begin = {pid: cpu_s(pid) for pid in pids}
        wait_until(lambda: all(cpu_s(pid) > begin[pid] + 0.02 for pid in pids), "ranks are to work")


def names(text: str, rank: int) -> bool:
    """Whether a timeout names a rank: as missing or late, or as somebody of a host that is."""
    missing = re.split("missing: |it waits for ", text)[-1]
    return str(rank) in re.findall(r"\d+", missing) or "a rank of another host" in missing


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def check_recovered(farm, size, hosts, transport) -> None:
    """A world of the survivors and a new process stands, and is right."""
    world = farm.world(size, hosts, transport)
    assert world.run(cells.stream_of_sums, *SUMS) == [SUMS[0]] * size


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "phase"), FAULTS)
@pytest.mark.parametrize("where", WORLDS)
def test_a_fatal_fault_frees_everyone_and_names_the_rank(fault_farm, where, fault, phase):
    size, hosts, transport = WORLDS[where]
    number, said = FATAL[fault]
    world = fault_farm.world(size, hosts, transport)
    for victim in {0, size - 1} if phase == "small" else {size - 1}:
        world = fault_farm.world(size, hosts, transport)
        others = [rank for rank in range(size) if rank != victim]
        world.start(phases.run, phase, victim)
        wait_begun(world, phase, victim)
        begin_s = time.monotonic()
        world.kill(victim, number)
        for ending in world.outcomes(others, timeout=10):
            assert ending.error == "RankFailure", ending
            assert ending.culprit == victim, ending
            assert f"rank {victim}" in ending.text
            assert f"host{hosts[victim]}" in ending.text
            assert said in ending.text
            assert "\n" not in ending.text
            assert ending.when_s - begin_s < BOUND_S
        # In every later operation, too.
        world.start(cells.after_failure, ranks=others)
        for lines in world.outcomes(others):
            assert all(f"rank {victim}" in line for line in lines), lines
    check_recovered(fault_farm, size, hosts, transport)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["small", "large", "split", "async_op", "recv", "send", "idle"])
@pytest.mark.parametrize("where", ["4 arena", "4 tcp", "2+2 composed"])
def test_a_frozen_rank_is_missed_in_time_and_wakes_to_an_error(fault_farm, where, phase):
    size, hosts, transport = WORLDS[where]
    victim = size - 1
    world = fault_farm.world(size, hosts, transport)
    others = [rank for rank in range(size) if rank != victim]
    in_split = [rank for rank in others if rank % 2 == victim % 2]
    # That a heart stands still takes a while to see.
    limit_s = 2.0 if phase in {"large", "async_op"} else 1.0
    world.start(phases.run, phase, victim, limit_s)
    wait_begun(world, phase, victim)
    begin_s = time.monotonic()
    world.kill(victim, signal.SIGSTOP)
    try:
        endings = world.outcomes(in_split if phase == "split" else others, timeout=10)
    finally:
        world.kill(victim, signal.SIGCONT)
    for ending in endings:
        assert ending.error == "CollectiveTimeout", ending
        assert ending.when_s - begin_s < limit_s + BOUND_S
    texts = [ending.text for ending in endings]
    assert any(names(text, victim) for text in texts), texts
    if phase in {"large", "async_op"} and hosts == (0,) * size:
        # Also where the first to give up is in the ring's other half, and waits for its neighbours.
        assert all(f"rank {victim} has given no sign of life" in text for text in texts), texts
    if phase in {"small", "large", "async_op"}:
        (woken,) = world.outcomes([victim], timeout=10)
        assert woken.error in {"CollectiveTimeout", "DistributedError"}, woken
    check_recovered(fault_farm, size, hosts, transport)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("where", WORLDS)
def test_a_rank_that_dies_while_the_world_forms(fault_farm, where, number):
    size, hosts, transport = WORLDS[where]
    victim = size // 2
    world = fault_farm.unformed(size, hosts, transport)
    others = [rank for rank in range(size) if rank != victim]
    world.start(phases.connect, ranks=others)
    begin_s = time.monotonic()
    world.kill(victim, number)
    for ending in world.outcomes(others, timeout=10):
        assert (ending.error, ending.culprit) == ("RankFailure", victim), ending
        assert ending.when_s - begin_s < BOUND_S
    check_recovered(fault_farm, size, hosts, transport)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["4 arena", "4 tcp", "2+2 composed"])
def test_faults_leave_no_descriptor_behind(fault_farm, where):
    size, hosts, transport = WORLDS[where]
    counts = []
    for _ in range(4):
        check_recovered(fault_farm, size, hosts, transport)
        world = fault_farm.world(size, hosts, transport)
        counts.append(world.run(phases.n_descriptors)[:-1])
        world.start(phases.run, "small", size - 1)
        wait_begun(world, "small", size - 1)
        world.kill(size - 1, signal.SIGKILL)
        world.outcomes(range(size - 1))
    assert counts[1:] == [counts[1]] * 3, counts
