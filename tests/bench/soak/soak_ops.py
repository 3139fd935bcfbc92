"""What the soak's ranks do: programs of collectives, every value checked against numpy.

Imported by the ranks (`soak.py` has them do so). A program follows from its seed: each rank knows
what all ranks put in, and judges what it gets by itself. It makes no faults.
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
from typing import Any

import numpy as np

import phalanx as px

_SMALL, _LARGE = (1, 7, 1000, 4096), (65_537, 1 << 18)  # elements; large: segments, and no buffers
_EPS = float(np.finfo(np.float32).eps)
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
        self._ops: tuple[Callable[[], None], ...] = (
            self.sums, self.sums, self.extremes, self.gathered, self.broadcast, self.scattered,
            self.exchanged, self.ring, self.several, self.in_part, self.numbers, self.objects,
        )  # fmt: skip

    def step(self) -> None:
        self._random.choice(self._ops)()

    # -- what ranks put in -----------------------------------------------------------------------

    def _inputs(self, ranks: range, multiple: int = 1) -> list[np.ndarray]:
        """The arrays of these ranks, of a length that is a multiple."""
        length = self._random.choice(_SMALL if self._random.random() < 0.95 else _LARGE)
        length = -(-length // multiple) * multiple
        is_float = self._random.random() < 0.4
        base = self._random.getrandbits(32)

        def of(rank: int) -> np.ndarray:
            draw = np.random.default_rng((base, rank))
            if is_float:
                return draw.standard_normal(length, np.float32)
            return draw.integers(-(1 << 40), 1 << 40, length)

        return [of(rank) for rank in ranks]

    def _all(self, multiple: int = 1) -> list[np.ndarray]:
        return self._inputs(range(self.size), multiple)

    # -- judging ---------------------------------------------------------------------------------

    def _same(self, what: str, got: Any, want: np.ndarray) -> None:
        self.n_ops += 1
        got = np.asarray(got)
        if got.dtype != want.dtype or got.shape != want.shape or not np.array_equal(got, want):
            self._wrong(what, got, want)

    def _sum(self, what: str, got: np.ndarray, terms: list[np.ndarray]) -> None:
        """Whole numbers exactly; floats within the error of any order of n - 1 additions."""
        if terms[0].dtype != np.float32:
            self._same(what, got, np.sum(terms, axis=0))
            return
        self.n_ops += 1
        exact = np.sum(terms, axis=0, dtype=np.float64)
        bound = len(terms) * _EPS * np.sum(np.abs(terms), axis=0, dtype=np.float64)
        if got.dtype != np.float32 or not (np.abs(got - exact) <= bound).all():
            self._wrong(what, got, exact)

    def _wrong(self, what: str, got: np.ndarray, want: np.ndarray) -> None:
        where = "?"
        if got.shape == want.shape:
            bad = np.flatnonzero(got != want)
            where = f"{bad.size} of {want.size} elements, the first at {bad[:1].tolist()}"
            where += f": {got.flat[bad[:3]].tolist()} for {want.flat[bad[:3]].tolist()}"
        msg = f"{what} #{self.n_ops} of {self._seed!r} on rank {self.rank}: {where}"
        msg += f" ({got.dtype}{got.shape} for {want.dtype}{want.shape})"
        raise Wrong(msg)

    # -- the operations --------------------------------------------------------------------------

    def sums(self) -> None:
        xs = self._all()
        got = px.all_sum(xs[self.rank])
        self._sum("all_sum", got, xs)
        if xs[0].dtype == np.float32:  # the same bits on all ranks
            seen = px.all_gather(zlib.crc32(got.tobytes()))
            self._same("all_sum's bits", seen, np.full(self.size, seen[0]))

    def extremes(self) -> None:
        xs = self._all()
        self._same("all_max", px.all_max(xs[self.rank]), np.max(xs, axis=0))
        self._same("all_min", px.all_min(xs[self.rank]), np.min(xs, axis=0))

    def gathered(self) -> None:
        xs = self._all()
        self._same("all_gather", px.all_gather(xs[self.rank]), np.concatenate(xs))

    def broadcast(self) -> None:
        xs, root = self._all(), self._random.randrange(self.size)
        self._same("broadcast", px.broadcast(xs[self.rank], root), xs[root])

    def scattered(self) -> None:
        xs = self._all(multiple=self.size)
        shares = [np.split(x, self.size)[self.rank] for x in xs]
        self._sum("sum_scatter", px.sum_scatter(xs[self.rank]), shares)

    def exchanged(self) -> None:
        xs = self._all(multiple=self.size)
        want = np.concatenate([np.split(x, self.size)[self.rank] for x in xs])
        self._same("all_to_all", px.all_to_all(xs[self.rank]), want)

    def ring(self) -> None:
        """Each to the next; those of odd rank receive first, as a large send waits for its receiver."""
        xs, before = self._all(), (self.rank - 1) % self.size
        after = (self.rank + 1) % self.size
        if self.rank % 2:
            got = px.recv_like(xs[self.rank], before)
            px.send(xs[self.rank], after)
        else:
            px.send(xs[self.rank], after)
            got = px.recv_like(xs[self.rank], before)
        self.n_ops += 1
        self._same("send and recv", got, xs[before])

    def several(self) -> None:
        """Asynchronous sums, waited for in another order."""
        sets = [self._all() for _ in range(3)]
        works = [px.all_sum(xs[self.rank], async_op=True) for xs in sets]
        for i in (2, 0, 1):
            self._sum("all_sum, asynchronous", works[i].wait(), sets[i])

    def in_part(self) -> None:
        """Sums of the even and the odd ranks, of which neither waits for the other."""
        xs = self._all()
        if self.part is not None:
            mine = range(self.rank % 2, self.size, 2)
            got = px.all_sum(xs[self.rank], group=self.part)
            self._sum("all_sum of a split", got, [xs[rank] for rank in mine])

    def numbers(self) -> None:
        want = np.asarray(self.size * (self.size + 1) // 2)
        self._same("all_sum of a number", px.all_sum(self.rank + 1), want)

    def objects(self) -> None:
        """Objects from all to all, and from one to all, and a barrier."""
        xs, root = self._all(), self._random.randrange(self.size)
        values = [{"rank": rank, "x": x[:50].tolist()} for rank, x in enumerate(xs)]
        mine = values[self.rank]
        found = {
            "all_gather_object": (px.all_gather_object(mine), values),
            "broadcast_object": (px.broadcast_object(mine, root), values[root]),
        }
        px.barrier()
        self.n_ops += 3
        for what, (got, want) in found.items():
            if got != want:
                msg = f"{what} #{self.n_ops} of {self._seed!r} on rank {self.rank}: {got}"
                raise Wrong(msg)


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
