"""What the soak's ranks do: programs of calls of the contract suite, each judged by the rank itself.

Imported by the ranks (`soak.py` has them do so). A program follows from its seed: each rank knows
what all ranks put in. It makes no faults.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages"))

from distributed.operations import contract
from distributed.operations.contract import Case

import phalanx as px

_SMALL, _LARGE = (1, 7, 1000, 4096), (65_537, 1 << 18)  # elements; large: segments, and no buffers
LONG_S = 20.0  # so long a program without an end lasts where nothing breaks it


class Wrong(Exception):
    """A value is not what numpy has."""


class Program:
    """Operations that all ranks of a world do in one order; `step` does one and checks it.

    ``part`` is a split of the world by ``rank % 2``, or None.
    """

    def __init__(self, seed: str, part: Any = None) -> None:
        self.world = px.init()
        self.rank, self.size = self.world.rank(), self.world.size()
        self.part = part
        self.n_ops = 0
        self._seed = seed
        self._random = random.Random(seed)
        self._steps: tuple[Callable[[], None], ...] = (
            *[self.call] * 8, self.several, self.in_part, self.numbers, self.objects,
        )  # fmt: skip

    def step(self) -> None:
        try:
            self._random.choice(self._steps)()
        except AssertionError as error:
            msg = f"#{self.n_ops} of {self._seed!r} on rank {self.rank}: {error}"
            raise Wrong(msg) from error

    def _draw(self, size: int, ops: tuple[str, ...] = contract.OPS) -> Case:
        """Draw a call: all ranks draw alike, also where their groups are of different sizes."""
        draw = self._random
        length = draw.choice(_SMALL if draw.random() < 0.98 else _LARGE)
        op, dtype, root = draw.choice(ops), draw.choice(contract.DTYPES), draw.getrandbits(16)
        if op in contract.DIVIDED:  # then it is of one rank's share
            length = -(-length // self.size)
        return Case(op, (length,), dtype, seed=draw.getrandbits(32), root=root % size)

    def call(self) -> None:
        """Any call of the contract; where all get the same, they have the same bits."""
        case = self._draw(self.size)
        (got,) = contract.check_here([case])
        self.n_ops += 1
        if case.op in contract.SAME_ON_ALL:
            seen = px.all_gather(zlib.crc32(got.tobytes()))
            assert (seen == seen[0]).all(), f"bits of {case}: {seen}"
            self.n_ops += 1

    def several(self) -> None:
        """Asynchronous sums, waited for in another order."""
        cases = [self._draw(self.size, ("all_sum",)) for _ in range(3)]
        works = [px.all_sum(case.input(self.rank, self.size), async_op=True) for case in cases]
        for i in (2, 0, 1):
            inputs = [cases[i].input(rank, self.size) for rank in range(self.size)]
            contract.check_one(cases[i], inputs, self.rank, works[i].wait().tobytes())
            self.n_ops += 1

    def in_part(self) -> None:
        """A call of the even and one of the odd ranks, of which neither waits for the other."""
        case = self._draw(self.size if self.part is None else self.part.size())
        if self.part is not None:
            contract.check_here([case], self.part)
            self.n_ops += 1

    def numbers(self) -> None:
        total = px.all_sum(self.rank + 1)
        assert total == self.size * (self.size + 1) // 2, f"all_sum of a number: {total}"
        self.n_ops += 1

    def objects(self) -> None:
        """Objects from all to all, and from one to all, and a barrier."""
        base, root = self._random.getrandbits(30), self._random.randrange(self.size)
        values = [{"rank": rank, "x": [base + rank] * 50} for rank in range(self.size)]
        mine = values[self.rank]
        found, of_root = px.all_gather_object(mine), px.broadcast_object(mine, root)
        px.barrier()
        self.n_ops += 3
        assert (found, of_root) == (values, values[root]), f"objects: {found}, {of_root}"


def run(seed: str, n_ops: int, part: Any) -> int:
    """Do that many operations or a few more; how many."""
    program = Program(seed, part)
    while program.n_ops < n_ops:
        program.step()
    return program.n_ops


def until_broken(seed: str, part: Any) -> None:
    """Do operations until something breaks, which it must in time."""
    program = Program(seed, part)
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < LONG_S:
        program.step()
    msg = f"nothing broke in {LONG_S:g} s"
    raise Wrong(msg)


def die(seed: str, part: Any, victims: list[int], n_ops: int, way: str) -> None:
    """As `until_broken`, but the victims end themselves after some operations, or with a forked child."""
    program = Program(seed, part)
    while program.n_ops < n_ops:
        program.step()
    if program.rank in victims:
        if way == "exit":
            os._exit(3)
        if way == "parent":
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
        os.kill(os.getpid(), signal.SIGKILL)
    until_broken(seed, part)


def survive(seed: str, victim: int, n_ops: int) -> None:
    """In a script: lose a rank amid operations, and go on with the others; say how far they came."""
    world = px.init()
    try:
        die(seed, None, [victim], n_ops, "kill")
    except px.RankFailure as error:
        px.recover(LONG_S)
        print(error.rank, world.size(), run(f"{seed}+", 50, world.split(world.rank() % 2)))


def fork(seed: str, part: Any, n_ops: int) -> int:
    """Fork a child that sums an array while this rank alters it and goes on; how many were right."""
    forks = multiprocessing.get_context("fork")
    mine, its = forks.Pipe()
    x = np.full(1 << 17, px.init().rank() + 1)  # of the heap that other ranks read

    def in_child() -> None:
        its.recv()
        print("a child of", seed)
        its.send(int(x.sum()))

    want = int(x.sum())
    child = forks.Process(target=in_child)
    child.start()
    x[:] = -1
    n_done = run(seed, n_ops, part)
    mine.send("go on")
    got = mine.recv()
    child.join()
    if (got, child.exitcode) != (want, 0):
        msg = f"a child came to {got} and status {child.exitcode}, not to {want}"
        raise Wrong(msg)
    return n_done


def train(part: Any, slow: int) -> None:
    """Count steps in `n_done`, with their sums in `params`; one rank is slow. It ends when it is stopped."""
    names = sys.modules["__main__"].__dict__
    rank, begin_s = px.init().rank(), time.monotonic()
    while time.monotonic() - begin_s < LONG_S:
        if rank == slow:
            time.sleep(0.003)
        names["params"] += px.all_sum(np.full(100, rank + 1.0))
        names["n_done"] += 1
    msg = f"nobody stopped it in {LONG_S:g} s"
    raise Wrong(msg)


def disagree(seed: str, part: Any, odd: int, way: str) -> None:
    """One rank calls what the others do not, after some operations; this raises on all."""
    program = Program(seed, part)
    for _ in range(program._random.randrange(4)):
        program.step()
    is_odd = program.rank == odd
    if way == "shape":
        px.all_sum(np.ones(5 if is_odd else 4))
    elif way == "dtype":
        px.all_max(np.ones(4, np.int64 if is_odd else np.float32))
    elif way == "root":
        px.broadcast(np.ones(4), 1 if is_odd else 0)
    elif is_odd:
        px.all_gather(np.ones(4))
    else:
        px.all_sum(np.ones(4))
    msg = f"ranks disagreed ({way}) and were not told"
    raise Wrong(msg)


def mend(seed: str, part: Any, odd: int, way: str, n_ops: int) -> int:
    """Disagree, recover within the cell, and go on; how many operations were right."""
    try:
        disagree(seed, part, odd, way)
    except px.CollectiveMismatch:
        px.recover()
    return run(f"{seed}+", n_ops, part)


def late(seed: str, part: Any, slow: int) -> None:
    """One rank comes after the deadline of the others; this raises on all."""
    program = Program(seed, part)
    program.step()
    if program.rank == slow:
        time.sleep(0.6)
    px.all_sum(np.ones(3), timeout=0.2)
    msg = "a deadline passed unseen"
    raise Wrong(msg)
