"""The soak's deaths: of ranks, which may also be frozen or replaced alive, and of the client.

As in `soak_steps`; ranks that are lost come back in `Field.recover`.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import signal
import time
from collections.abc import Collection
from concurrent.futures import Future

from soak_driver import Answer, Wrong, fail_if
from soak_field import BOUND_S, Field, pick
from soak_steps import FREED_S, Fault, expect_soon

# -- deaths ----------------------------------------------------------------------------------------


def die(field: Field, rng: random.Random, seed: str) -> float:
    """Ranks that end themselves amid operations."""
    victims, way = pick(rng, field.ranks, 2), rng.choice(("exit", "kill", "parent"))
    code = f"soak_ops.die({seed!r}, part, {victims}, {rng.randrange(20)}, {way!r})"
    begin_s = time.monotonic()
    answer = field.end(field.begin(code))
    # The death of one frees the other from its last operation, so that it may live on.
    dead = {rank for rank, seen in enumerate(field.states()) if seen["state"] == "dead"}
    fail_if(
        not dead or not dead <= set(victims), f"{victims} were to die, and {dead} did: {answer}"
    )
    field.lose(dead)
    _expect_lost(answer, dead, begin_s)
    return field.recover(begin_s)


def _expect_lost(answer: Answer, victims: Collection[int], begin_s: float) -> None:
    answer.expect("RankFailure", ranks=victims)
    expect_soon(begin_s, FREED_S, "the freeing")


def kill_in_cell(field: Field, rng: random.Random, seed: str) -> float:
    """Ranks that are killed amid operations."""
    victims = pick(rng, field.ranks, rng.choice((1, 1, field.size)))
    cell = field.begin(field.endless(seed))
    field.wait_busy(cell)
    time.sleep(rng.random() * 0.1)
    begin_s = field.kill(*victims)
    _expect_lost(field.end(cell), victims, begin_s)
    return field.recover(begin_s)


def kill_between(field: Field, rng: random.Random, seed: str) -> float:
    """Ranks that are killed between cells; the others go on without them."""
    victims = pick(rng, field.ranks, field.size - 1)
    living = [rank for rank in field.ranks if rank not in victims]
    begin_s = field.kill(*victims)
    field.wait_dead(victims)
    answer = field.end(field.begin("rank"))
    fail_if(
        answer.well() != [str(rank) for rank in living],
        f"ranks {living} were to run the cell: {answer}",
    )
    fail_if(
        not any("runs without" in notice for notice in answer.notices),
        f"nobody said who is missing: {answer.notices}",
    )
    field.end(field.begin("px.all_sum(1)")).expect_freed(living, victims)
    field.end(field.begin("1", victims[-1:])).expect("RankFailure", ranks=victims[-1:])
    return field.recover(begin_s)


def kill_and_run(field: Field, rng: random.Random, seed: str) -> float:
    """A rank that is killed as the next cell is sent."""
    victim = rng.randrange(field.size)
    begin_s = field.kill(victim)
    time.sleep(rng.choice((0.0, 0.002, 0.01)))
    answer = field.end(field.begin(field.endless(seed)))
    if answer.is_a("CellError") and not answer.is_a("RankFailure"):
        answer.expect_freed(set(field.ranks) - {victim}, [victim])
    else:
        answer.expect("RankFailure", ranks=[victim])
    expect_soon(begin_s, FREED_S, "the freeing")
    return field.recover(begin_s)


# -- restarts of ranks that live ---------------------------------------------------------------------


def replace(field: Field, rng: random.Random, seed: str) -> float:
    """Ranks replaced between cells, with or without the names of another."""
    begin_s = time.monotonic()
    ranks = pick(rng, field.ranks, 2)
    refused = field.client.ask("restart", BOUND_S, ranks=ranks)
    refused.expect("DistributedError")
    fail_if("--force" not in refused.text, f"a living rank was to be refused: {refused}")
    source = rng.choice([None, *(rank for rank in field.ranks if rank not in ranks)])
    field.restart(ranks, ranks=ranks, force=True, copy_from=source)
    return field.recover(begin_s, {} if source is None else dict.fromkeys(ranks, source))


def replace_in_cell(field: Field, rng: random.Random, seed: str) -> float:
    """A rank replaced amid operations."""
    victim = rng.randrange(field.size)
    cell = field.begin(field.endless(seed))
    field.wait_busy(cell)
    begin_s = time.monotonic()
    asked = field.client.begin("restart", aside=True, ranks=[victim], force=True)
    field.lose([victim])
    answer = field.end(cell)
    _expect_lost(answer, [victim], begin_s)
    replaced = field.client.wait(asked, 90.0).well()
    fail_if(replaced != [victim], f"restart replaced {replaced}, not {victim}")
    return field.recover(begin_s)


# -- freezes ---------------------------------------------------------------------------------------


def _freeze(field: Field, rng: random.Random, seed: str) -> tuple[Future[Answer], int, int, float]:
    """Freeze a rank in a cell until the others are freed: the cell, the rank, its process, since."""
    victim = rng.randrange(field.size)
    pid = field.pid(victim)
    is_before = rng.random() < 0.3
    begin_s = time.monotonic()
    if is_before:
        os.kill(pid, signal.SIGSTOP)
    cell = field.begin(field.endless(seed))
    try:
        field.wait_busy(cell, [rank for rank in field.ranks if rank != victim])
        if not is_before:
            time.sleep(rng.random() * 0.1)
            begin_s = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
        field.wait_for(
            f"all but rank {victim}, which is frozen, are freed",
            lambda seen: all(state == "idle" for rank, state in seen.items() if rank != victim),
            field.silence_s + FREED_S,
        )
    except BaseException:
        _wake(pid)
        raise
    return cell, victim, pid, begin_s


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def freeze_and_wake(field: Field, rng: random.Random, seed: str) -> float:
    """A rank that is frozen, missed, and wakes."""
    cell, victim, pid, begin_s = _freeze(field, rng, seed)
    _wake(pid)
    answer = field.end(cell)
    answer.expect_freed(set(field.ranks) - {victim}, [victim])
    fail_if(victim not in answer.failures, f"rank {victim} woke and went on: {answer}")
    return field.recover(begin_s)


def freeze_and_replace(field: Field, rng: random.Random, seed: str) -> float:
    """A rank that is frozen, missed, and replaced."""
    cell, victim, pid, begin_s = _freeze(field, rng, seed)
    try:
        asked = field.client.begin("restart", aside=True, ranks=[victim], force=True)
        field.lose([victim])
        field.end(cell).expect("RankFailure", ranks=[victim])
        replaced = field.client.wait(asked, 90.0).well()
    finally:
        _wake(pid)
    fail_if(replaced != [victim], f"restart replaced {replaced}, not {victim}")
    return field.recover(begin_s)


def freeze_shortly(field: Field, rng: random.Random, seed: str) -> float:
    """A rank that is frozen for less than the silence limit: nothing happens."""
    victim = rng.randrange(field.size)
    pid = field.pid(victim)
    cell = field.begin(field.work(seed, 200))
    field.wait_busy(cell)
    begin_s = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(field.silence_s * rng.uniform(0.1, 0.5))
    finally:
        _wake(pid)
    values = [ast.literal_eval(value) for value in field.end(cell).well()]
    fail_if(
        len(values) != field.size or len(set(values)) != 1,
        f"ranks have counted different numbers of operations: {values}",
        Wrong,
    )
    return field.recover(begin_s)


# -- the client's deaths -----------------------------------------------------------------------------


def _joined_well(field: Field, joined: Answer) -> None:
    """What a cell that went on without a client has as values, where they were seen."""
    values = {value for value in joined.well() if value is not None}
    fail_if(len(values) > 1, f"ranks have counted different numbers of operations: {values}", Wrong)


def kernel_dies(field: Field, rng: random.Random, seed: str) -> float:
    """Between cells."""
    begin_s = time.monotonic()
    _joined_well(field, field.new_client())
    return field.recover(begin_s)


def kernel_dies_in_cell(field: Field, rng: random.Random, seed: str) -> float:
    """While ranks compute, which go on."""
    cell = field.begin(field.work(seed, rng.choice((100, 500))))
    field.wait_busy(cell)
    time.sleep(rng.random() * 0.3)
    begin_s = time.monotonic()
    _joined_well(field, field.new_client())
    return field.recover(begin_s)


def kernel_dies_sending(field: Field, rng: random.Random, seed: str) -> float:
    """As it sends a cell, which some ranks may get: the others say so, which frees those that did."""
    field.begin(field.work(seed, 100))
    time.sleep(rng.random() * 0.02)
    begin_s = time.monotonic()
    joined = field.new_client()
    if joined.error:
        joined.expect("CellError")
        fail_if(
            not {ename for ename, _ in joined.failures.values()} <= {"RankFailure", "CellLost"},
            f"only RankFailures, or cells that were never sent, were due: {joined}",
        )
    return field.recover(begin_s)


def kernel_and_rank_die(field: Field, rng: random.Random, seed: str) -> float:
    """A rank is killed while nobody looks on."""
    cell = field.begin(field.endless(seed))
    field.wait_busy(cell)
    victim = rng.randrange(field.size)
    pid = field.pid(victim)
    begin_s = time.monotonic()
    field.client.kill()
    os.kill(pid, signal.SIGKILL)
    field.lose([victim])
    joined = field.new_client()
    if joined.error:
        joined.expect("RankFailure", "CellError")
    return field.recover(begin_s)


def kernel_dies_restarting(field: Field, rng: random.Random, seed: str) -> float:
    """As a rank is replaced."""
    victims = pick(rng, field.ranks, 2)
    begin_s = field.kill(*victims)
    field.wait_dead(victims)
    field.client.begin("restart")
    time.sleep(rng.random())
    _joined_well(field, field.new_client())
    # The root goes on with what it was asked; until then nobody can ask for the same.
    deadline_s = time.monotonic() + 60.0
    while any("is being restarted" in state["detail"] for state in field.states()):
        fail_if(time.monotonic() > deadline_s, "a restart does not end")
        time.sleep(0.02)
    return field.recover(begin_s)


def hand_over(field: Field, rng: random.Random, seed: str) -> float:
    """One client lets go, or another takes the ranks from it."""
    begin_s = time.monotonic()
    if rng.random() < 0.5:
        joined = field.new_client(take=True)
    else:
        field.client.ask("detach", BOUND_S).well()
        joined = field.new_client(kill=rng.random() < 0.5)
    _joined_well(field, joined)
    return field.recover(begin_s)


# How often each is dealt in a deck.
DEATHS: dict[Fault, int] = {
    die: 2, kill_in_cell: 3, kill_between: 2, kill_and_run: 2, replace: 1, replace_in_cell: 1,
    freeze_and_wake: 1, freeze_and_replace: 1, freeze_shortly: 1, kernel_dies: 1,
    kernel_dies_in_cell: 2, kernel_dies_sending: 2, kernel_and_rank_die: 1,
    kernel_dies_restarting: 1, hand_over: 1,
}  # fmt: skip
