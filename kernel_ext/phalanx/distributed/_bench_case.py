"""One operation at one size, prepared to be timed and verified: what `bench` sweeps over.

It uses the public functions of `phalanx.distributed` only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx import distributed as px

__all__ = ["Case"]

# Test data repeats after so many elements: a prime, so that no chunk of a power of two looks like
# its neighbour; values below 251 keep the sum of 64 ranks exact in float32.
_PERIOD, _MODULUS = 65_521, 251


class Case:
    """One operation at one size: its arrays, its call, and what numpy says must come out."""

    def __init__(self, op: str, nbytes: int, dtype: np.dtype[Any], group: px.Group) -> None:
        self._op, self._group = op, group
        size, rank = group.size(), group.rank()
        shares = size if op == "all_gather" else 1
        self.count = 0 if op == "barrier" else max(1, nbytes // dtype.itemsize // shares)
        self.nbytes = self.count * dtype.itemsize * shares
        self._x = _repeat(_pattern(rank, dtype), self.count)
        self._out = np.empty(self.count * shares, dtype)
        self._expected: list[NDArray[Any]] = []
        if op == "all_sum":
            self._expected = [sum((_pattern(r, dtype) for r in range(1, size)), _pattern(0, dtype))]
        elif op == "all_gather":
            self._expected = [_pattern(r, dtype) for r in range(size)]
        elif op == "broadcast":
            self._expected = [_pattern(0, dtype)]
        self._call = self._bound_call()

    def _bound_call(self) -> Callable[[], object]:
        x, out, group = self._x, self._out, self._group
        if self._op == "all_sum":
            return lambda: px.all_sum(x, group=group, out=out)
        if self._op == "all_gather":
            return lambda: px.all_gather(x, group=group, out=out)
        if self._op == "broadcast":
            return lambda: px.broadcast(x, 0, group=group, out=out)
        return group.barrier

    def timed(self, calls: int) -> NDArray[np.float64]:
        """Seconds of each of so many calls on this rank, all ranks starting together."""
        clock, call, barrier = time.perf_counter, self._call, self._group.barrier
        seconds = np.empty(calls)
        for i in range(calls):
            barrier()
            start = clock()
            call()
            seconds[i] = clock() - start
        return seconds

    def count_wrong(self) -> int:
        """Call once into a poisoned output; wrong elements on this rank."""
        self._out.fill(-1)
        self._call()
        return sum(
            _count_other(self._out[i * self.count : (i + 1) * self.count], expected)
            for i, expected in enumerate(self._expected)
        )


def _pattern(rank: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """One period of rank's data: whole numbers, told apart by place and rank."""
    places = np.arange(_PERIOD, dtype=np.int64)
    return ((places * 7 + places // _MODULUS + rank * 31) % _MODULUS).astype(dtype)


def _repeat(pattern: NDArray[Any], count: int) -> NDArray[Any]:
    return np.resize(pattern, count) if count else pattern[:0].copy()


def _count_other(got: NDArray[Any], pattern: NDArray[Any]) -> int:
    """Elements of ``got`` that are not the pattern over and over; a period at a time."""
    n_other = 0
    for start in range(0, len(got), _PERIOD):
        part = got[start : start + _PERIOD]
        n_other += int(np.count_nonzero(part != pattern[: len(part)]))
    return n_other
