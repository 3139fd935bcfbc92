"""One rank of `all_sum_vs_mlx`: a start line of its own, the data, the clock.

    start_line.py phalanx|mlx PATH SIZES BUDGET_S

The start line is a page of memory that the ranks share and that belongs to no peer, so that all
peers are timed from the same moment: the time of one call is the slowest rank's, entry to return.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from phalanx import _native

_LINE = 16  # float64s from one rank's counter to the next: 128 bytes, so that none share a line
_SPINS = 2000  # looks before giving the core away; some 0.2 ms of Python
_MOST_CALLS = 2000
_PERIOD = 65_521
# Of an array: the call, and how its result becomes a numpy array for checking.
Prepare = Callable[[np.ndarray], tuple[Callable[[], Any], Callable[[Any], np.ndarray]]]


class StartLine:
    """A barrier and a row of times per rank, in a file that every rank maps."""

    def __init__(self, path: str | os.PathLike[str], rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        nbytes = 8 * size * (_LINE + _MOST_CALLS)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, nbytes)
        self._map = mmap.mmap(file, nbytes)
        os.close(file)
        words = np.frombuffer(self._map, np.float64)
        self._counters = words[: size * _LINE : _LINE]
        self._times = words[size * _LINE :].reshape(size, _MOST_CALLS)
        self._round = 0.0

    def wait(self, *, quietly: bool = False) -> None:
        """Come together; quietly: leave the core to the others meanwhile."""
        self._round += 1
        counters, mine = self._counters, self._round
        counters[self.rank] = mine
        spins = 0
        while counters.min() < mine:
            spins += 1
            if quietly:
                time.sleep(0.0005)
            elif spins > _SPINS:
                os.sched_yield()

    def slowest(self, seconds: np.ndarray) -> np.ndarray:
        """Each call's longest time over the ranks, on every rank."""
        self.wait()
        self._times[self.rank, : len(seconds)] = seconds
        self.wait()
        longest = self._times[:, : len(seconds)].max(axis=0)
        self.wait()
        return longest

    def flag_ns(self) -> float:
        """How long a flag takes from core to core now; measured by rank 0, the others sleep."""
        self.wait(quietly=self.rank != 0)
        if self.rank == 0:
            self._times[0, 0] = _native.flag_latency_ns()
        self.wait(quietly=True)
        known = float(self._times[0, 0])
        self.wait()
        return known


def rank_data(rank: int, nbytes: int) -> np.ndarray:
    """Whole numbers below 251, so that float32 sums are exact in any order."""
    places = np.arange(_PERIOD, dtype=np.int64)
    pattern = ((places * 7 + rank * 31) % 251).astype(np.float32)
    return np.resize(pattern, max(1, nbytes // 4))


def measure(
    line: StartLine,
    sizes: list[int],
    budget_s: float,
    prepare: Prepare,
) -> list[dict[str, Any]]:
    """Time a sum at each size."""
    records = []
    for nbytes in sizes:
        call, as_numpy = prepare(rank_data(line.rank, nbytes))
        expected = np.sum([rank_data(r, nbytes) for r in range(line.size)], axis=0)
        before = line.flag_ns()
        wrong = float(np.count_nonzero(as_numpy(call()) != expected))
        calls = _timed(line, call, 3)
        n_calls = int(min(_MOST_CALLS, max(20, budget_s / max(float(calls.min()), 1e-7))))
        _timed(line, call, min(10, n_calls))
        times = _timed(line, call, n_calls)
        wrong += float(np.count_nonzero(as_numpy(call()) != expected))
        after = line.flag_ns()
        records.append(
            {
                "nbytes": nbytes,
                "median_us": float(np.median(times)) * 1e6,
                "p99_us": float(np.quantile(times, 0.99)) * 1e6,
                "calls": n_calls,
                "n_wrong": int(line.slowest(np.array([wrong]))[0]),
                "flag_ns": [before, after],
            }
        )
    return records


def _timed(line: StartLine, call: Callable[[], Any], n_calls: int) -> np.ndarray:
    clock = time.perf_counter
    seconds = np.empty(n_calls)
    for i in range(n_calls):
        line.wait()
        start = clock()
        result = call()
        seconds[i] = clock() - start
        del result
    return line.slowest(seconds)


def phalanx_call() -> tuple[int, int, Prepare]:
    """Return the rank, the size, and how a sum of phalanx is prepared."""
    import phalanx as px

    group = px.init(strict=True)
    return group.rank(), group.size(), lambda x: ((lambda: px.all_sum(x)), np.asarray)


def mlx_call() -> tuple[int, int, Prepare]:
    """Return the same of MLX's ring."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    group = mx.distributed.init(strict=True, backend="ring")

    def prepare(x: np.ndarray) -> tuple[Callable[[], Any], Callable[[Any], np.ndarray]]:
        source = mx.array(x)
        mx.eval(source)

        def call() -> Any:
            result = mx.distributed.all_sum(source)
            mx.eval(result)
            return result

        return call, np.array

    return group.rank(), group.size(), prepare


if __name__ == "__main__":
    library, path, sizes, budget_s = sys.argv[1:]
    rank, size, prepare = {"mlx": mlx_call, "phalanx": phalanx_call}[library]()
    line = StartLine(path, rank, size)
    found = measure(line, json.loads(sizes), float(budget_s), prepare)
    if rank == 0:
        print(json.dumps({"records": found}), flush=True)
