"""The soak's work, and what ranks and people do wrong: one function each, which says what must follow.

A fault returns the seconds from its beginning to the first right sum of all ranks; work returns
how many operations were right.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from soak_driver import Wrong, fail_if
from soak_field import BOUND_S, Field, pick

FREED_S = 5.0  # the promised 2 s, on a machine that is busy with other things


def expect_soon(begin_s: float, bound_s: float, what: str) -> None:
    """It must not have taken longer."""
    seconds = time.monotonic() - begin_s
    fail_if(seconds > bound_s, f"{what} took {seconds:.2f} s, more than {bound_s:g} s")


# -- work ------------------------------------------------------------------------------------------


def work(field: Field, rng: random.Random, seed: str) -> int:
    """Some cells of operations."""
    n_ops = 0
    for i in range(rng.randint(1, 6)):
        values = field.good(field.work(f"{seed}:{i}", rng.choice((1, 10, 50))))
        fail_if(
            len(set(values)) != 1,
            f"ranks have counted different numbers of operations: {values}",
            Wrong,
        )
        n_ops += values[0]
    return n_ops


def some_ranks(field: Field, rng: random.Random, seed: str) -> int:
    """Cells of some of the ranks, which leave the others be."""
    for _ in range(3):
        ranks = pick(rng, field.ranks, field.size)
        fail_if(
            field.good("rank * 10", ranks) != [rank * 10 for rank in ranks],
            "a cell of some ranks has other values",
            Wrong,
        )
    return 0


def exchange(field: Field, rng: random.Random, seed: str) -> int:
    """Values there and back, also in classes of either side."""
    value = [rng.getrandbits(62) for _ in range(rng.choice((1, 1000)))]
    found = field.client.ask("exchange", BOUND_S, name="pushed", value=value).well()
    wanted = [[its] * field.size for its in (value, sum(value), value)]
    fail_if(found != wanted, "what was pushed is not what was pulled", Wrong)
    return 0


def call(field: Field, rng: random.Random, seed: str) -> int:
    """Functions that ranks are called with, values in blocks, expressions, and values of cells."""
    items = [rng.getrandbits(20) for _ in range(rng.randint(field.size, 50))]
    squares, sums, gathered, doubled, of_cell = field.client.ask(
        "call", BOUND_S, items=items
    ).well()
    is_right = (
        squares == [item * item for item in items]
        and sums == [items[0] + 1] * field.size
        and gathered == items
        and sum(doubled) == 2 * sum(items)
        and of_cell == [{"rank": rank} for rank in field.ranks]
    )
    fail_if(not is_right, "what was called came to something else", Wrong)
    return 0


_PRINTS = (
    "for _ in range(20): sys.stdout.write(('y' * 999 + '\\n') * 1000)",
    "for i in range(5_000): print('step', i, 'loss', 0.123456)",
    "print('x' * 10_000_000)",
    "for _ in range(2000): _ = os.write(1, b'z' * 999 + b'\\n')",
)


def print_much(field: Field, rng: random.Random, seed: str) -> int:
    """More than a client that draws has room for: ranks wait, and none for ever."""
    code = rng.choice(_PRINTS) + f"\nprint('end of', {seed!r})\nrank"
    values = field.good("import os, sys\n" + code)
    fail_if(values != list(field.ranks), "a cell that prints has other values", Wrong)
    rank = rng.choice(field.ranks)
    kept = field.client.ask("output", BOUND_S, rank=rank).well()
    fail_if(f"end of {seed}\n" not in kept, f"rank {rank} has shown {kept!r}", Wrong)
    return 0


def mend(field: Field, rng: random.Random, seed: str) -> int:
    """A mismatch, px.recover() within the cell, and operations after it."""
    odd, way = rng.randrange(field.size), rng.choice(("shape", "dtype", "root", "op"))
    values = field.good(f"soak_ops.mend({seed!r}, part, {odd}, {way!r}, 20)")
    return int(values[0])


def fork(field: Field, rng: random.Random, seed: str) -> int:
    """Forked children beside operations, and what they print."""
    values = field.good(f"soak_ops.fork({seed!r}, part, {rng.choice((5, 50))})")
    for rank in field.ranks:
        kept = field.client.ask("output", BOUND_S, rank=rank).well()
        fail_if(f"a child of {seed}\n" not in kept, f"rank {rank} has shown {kept!r}", Wrong)
    return int(values[0])


def survive(field: Field, rng: random.Random, seed: str) -> int:
    """A script of which a rank is killed: the others recover and go on without it."""
    victim = rng.randrange(field.size)
    code = f"import soak_ops; soak_ops.survive({seed!r}, {victim}, {rng.randrange(20)})"
    words = ["-n", str(field.size), "--transport", field.transport, "--keep-going"]
    ended = subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", *words, sys.executable, "-c", code],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=2 * BOUND_S,
    )  # fmt: skip
    said = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    (found,) = set(said.values()) or {"nothing"}
    first, size, n_ops = [*found.split(), "", "", ""][:3]
    is_right = (
        ended.returncode == 0
        and said.keys() == {f"[{rank}]" for rank in field.ranks if rank != victim}
        and (first, size) == (str(victim), str(field.size - 1))
    )
    fail_if(not is_right, f"the others than rank {victim} were to go on: {ended}")
    return int(n_ops)


# -- ranks that are at fault -------------------------------------------------------------------------


def mismatch(field: Field, rng: random.Random, seed: str) -> float:
    """Ranks that disagree: all are told."""
    odd, way = rng.randrange(field.size), rng.choice(("shape", "dtype", "root", "op"))
    answer = field.end(field.begin(f"soak_ops.disagree({seed!r}, part, {odd}, {way!r})"))
    begin_s = time.monotonic()
    told = {answer.failures.get(rank, ["nothing"])[0] for rank in field.ranks}
    fail_if(
        told != {"CollectiveMismatch"},
        f"all ranks were to be told of the mismatch ({way}): {answer}",
    )
    return field.recover(begin_s)


def own_error(field: Field, rng: random.Random, seed: str) -> float:
    """A rank that raises: the others are freed."""
    odd = rng.randrange(field.size)
    code = f"soak_ops.run({seed!r}, 5, part)\nif rank == {odd}: 1 / 0\n"
    answer = field.end(field.begin(code + "px.all_sum(1)"))
    begin_s = time.monotonic()
    answer.expect("ZeroDivisionError")
    answer.expect_freed(set(field.ranks) - {odd}, [odd])
    return field.recover(begin_s)


def late(field: Field, rng: random.Random, seed: str) -> float:
    """A rank that comes after the others' deadline."""
    slow = rng.randrange(field.size)
    answer = field.end(field.begin(f"soak_ops.late({seed!r}, part, {slow})"))
    begin_s = time.monotonic()
    for rank in set(field.ranks) - {slow}:
        fail_if(
            answer.failures.get(rank, ["nothing"])[0] != "CollectiveTimeout",
            f"rank {rank} was to get a CollectiveTimeout: {answer}",
        )
    return field.recover(begin_s)


# -- stops -----------------------------------------------------------------------------------------

_BUSY = (
    "while True: pass",
    "import time; time.sleep(60)",
    "if rank == 0:\n    while True: pass\npx.all_sum(1)",
    "import time\nif rank == size - 1: time.sleep(60)\npx.recv((3,), 'int64', rank + 1)",
)


def _busy(field: Field, rng: random.Random, seed: str) -> str:
    return rng.choice((field.endless(seed), rng.choice(_BUSY)))


def stop(field: Field, rng: random.Random, seed: str) -> float:
    """`interrupt` from another thread."""
    cell = field.begin(_busy(field, rng, seed))
    field.wait_busy(cell)
    time.sleep(rng.random() * 0.1)
    begin_s = time.monotonic()
    field.client.ask("interrupt", BOUND_S, aside=True).well()
    answer = field.end(cell)
    expect_soon(begin_s, FREED_S, "the stop")
    if "KeyboardInterrupt" not in {ename for ename, _ in answer.failures.values()}:
        # Ranks that only wait for each other in vain are freed without us.
        fail_if(
            not (answer.is_a("CellError") and "can never complete" in answer.text),
            f"KeyboardInterrupt was due: {answer}\n{answer.trace}",
        )
    return field.recover(begin_s)


def stop_in_step(field: Field, rng: random.Random, seed: str) -> float:
    """A stop in a loop of steps: all ranks have done the same number, or a line says where they are."""
    field.good("n_done, params = 0, np.zeros(100)")
    cell = field.begin(f"soak_ops.train(part, {rng.randrange(field.size)})")
    field.wait_busy(cell)
    time.sleep(rng.random() * 0.1)
    begin_s = time.monotonic()
    field.client.ask("interrupt", BOUND_S, aside=True).well()
    answer = field.end(cell)
    expect_soon(begin_s, FREED_S, "the stop")
    answer.expect("KeyboardInterrupt", "CellError")
    seconds = field.recover(begin_s)
    done = field.good("(n_done, params.tolist())")
    is_told = any("variables may differ" in text for text in answer.notices)
    total = field.size * (field.size + 1) / 2  # of a step
    n_done = done[0][0]
    is_in_step = done == [(n_done, [n_done * total] * 100)] * field.size
    where = [(n_steps, params[0] / total) for n_steps, params in done]
    fail_if(
        not (is_in_step or is_told), f"ranks stopped after these steps and sums: {where}", Wrong
    )
    return seconds


_CYCLES = (
    "px.recv((3,), 'int64', (rank + 1) % size)",
    "px.send(np.zeros(1 << 23), (rank + 1) % size)",  # more than sockets hold
    "px.recv((3,), 'int64', 1) if rank == 0 else px.all_sum(1)",
    "px.all_sum(1, group=part if rank == 1 else world)",
    "for group in (part, world) if rank == 1 else (world, part): px.all_sum(1, group=group)",
)


def cycle(field: Field, rng: random.Random, seed: str) -> float:
    """Ranks that wait for each other: all are told."""
    cell = field.begin(rng.choice(_CYCLES))
    begin_s = time.monotonic()
    answer = field.end(cell)
    expect_soon(begin_s, FREED_S, "the end of the wait")
    told = {answer.failures.get(rank, ["nothing"])[0] for rank in field.ranks}
    fail_if(told != {"CollectiveMismatch"}, f"all ranks were to be told of the cycle: {answer}")
    return field.recover(begin_s)


def time_limit(field: Field, rng: random.Random, seed: str) -> float:
    """A cell that runs longer than it may."""
    begin_s = time.monotonic()
    code = rng.choice((field.endless(seed), *_BUSY[:3]))
    answer = field.end(field.begin(code, timeout=0.3))
    expect_soon(begin_s, 0.3 + FREED_S, "the time limit of 0.3 s")
    answer.expect("TimeoutError")
    return field.recover(begin_s)


Work = Callable[[Field, random.Random, str], int]
Fault = Callable[[Field, random.Random, str], float]

# How often each is dealt in a deck.
WORK: dict[Work, int] = {
    work: 10, some_ranks: 2, exchange: 2, mend: 3, call: 2, print_much: 2, fork: 2, survive: 1,
}  # fmt: skip
MISTAKES: dict[Fault, int] = {
    mismatch: 3, own_error: 2, late: 1, stop: 3, stop_in_step: 3, cycle: 3, time_limit: 2,
}  # fmt: skip
