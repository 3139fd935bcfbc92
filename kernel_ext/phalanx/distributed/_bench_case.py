"""One operation at one size, prepared to be timed and verified: what `bench` sweeps over.

It uses the public functions of `phalanx.distributed` only, and the names of the dtypes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx import distributed as px

from ._arrays import like_dtype
from ._views import DTYPE_NAMES

__all__ = ["DTYPES", "OPERATIONS", "Case", "dtype_named"]

OPERATIONS = (
    "all_sum",
    "all_max",
    "all_min",
    "sum_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "sendrecv",
    "barrier",
)
# numpy has bfloat16 from ml_dtypes only; looked for, not loaded.
DTYPES = tuple(n for n in DTYPE_NAMES if n != "bfloat16" or find_spec("ml_dtypes") is not None)

# Test data repeats after so many elements: a prime, so that no chunk of a power of two looks like
# its neighbour; values below 251 keep the sum of 64 ranks exact in float32.
_PERIOD, _MODULUS = 65_521, 251
# Of these nccl-tests counts the elements of one rank's share, and the bytes of all shares.
_IN_SHARES = frozenset(("all_gather", "sum_scatter", "all_to_all"))
_UNBUFFERED = (64 << 10) + 1  # bytes from which `send` may wait for its receiver


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of one of `DTYPES`."""
    like, _ = like_dtype("bench", name)
    # Through an array: ml_dtypes is loaded on the way, numpy knows its names from then on.
    found: np.dtype[Any] = like((0,)).give().dtype
    return found


class Case:
    """One operation at one size: its arrays, its call, and what numpy says must come out."""

    def __init__(self, op: str, nbytes: int, dtype: np.dtype[Any], group: px.Group) -> None:
        self._op, self._group = op, group
        size, rank = group.size(), group.rank()
        shares = size if op in _IN_SHARES else 1
        self.count = 0 if op == "barrier" else max(1, nbytes // dtype.itemsize // shares)
        self.nbytes = self.count * dtype.itemsize * shares
        n_in = self.count * (1 if op == "all_gather" else shares)
        n_out = self.count * (1 if op == "sum_scatter" else shares)
        self._x = _repeat(_pattern(rank, dtype), n_in)
        self.nbytes_given = self._x.nbytes  # by one rank, by which the engine chooses
        self._out = np.empty(n_out, dtype)
        self._expected = _expected(op, rank, size, self.count, dtype)
        self._call = self._bound_call()

    def _bound_call(self) -> Callable[[], Any]:
        x, out, group = self._x, self._out, self._group
        if self._op == "barrier":
            return group.barrier
        if self._op == "broadcast":
            return lambda: px.broadcast(x, 0, group=group, out=out)
        if self._op == "sendrecv":
            return self._bound_exchange()
        function: Callable[..., Any] = getattr(px, self._op)
        return lambda: function(x, group=group, out=out)

    def _bound_exchange(self) -> Callable[[], Any]:
        """Send to the next rank and receive from the one before, both at once.

        What `send` puts aside needs no thread; all that sent more first would wait for each other.
        """
        x, group = self._x, self._group
        after = (group.rank() + 1) % group.size()
        before = (group.rank() - 1) % group.size()
        if self.nbytes < _UNBUFFERED:

            def exchange() -> Any:
                px.send(x, after, group=group)
                return px.recv_like(x, before, group=group)

            return exchange
        sender = ThreadPoolExecutor(1, "phalanx-bench-send")  # ends when it is garbage

        def exchange_at_once() -> Any:
            sent = sender.submit(px.send, x, after, group=group)
            got = px.recv_like(x, before, group=group)
            sent.result()
            return got

        return exchange_at_once

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
        if self._op == "sendrecv":
            # It makes its own result, most likely of the memory that was given back last.
            _poison(np.empty_like(self._out), self._op)
        else:
            _poison(self._out, self._op)
        got = self._call()
        return sum(
            _count_other(got[i * self.count : (i + 1) * self.count], expected)
            for i, expected in enumerate(self._expected)
        )


def _expected(
    op: str, rank: int, size: int, count: int, dtype: np.dtype[Any]
) -> list[NDArray[Any]]:
    """Give what repeats in each part of ``count`` elements of this rank's result."""
    if op == "barrier":
        return []
    if op == "sendrecv":
        return [_pattern((rank - 1) % size, dtype)]
    if op == "broadcast":
        return [_pattern(0, dtype)]
    patterns = [_pattern(r, dtype) for r in range(size)]
    if op == "all_gather":
        return patterns
    if op == "all_to_all":
        return [_from(pattern, rank * count) for pattern in patterns]
    if op in ("all_max", "all_min"):
        extreme = np.maximum if op == "all_max" else np.minimum
        return [extreme.reduce(np.stack(patterns))]
    # Half precision is summed in float32 and rounded once.
    wide = dtype if dtype.kind in "biu" or dtype.itemsize > 2 else np.dtype(np.float32)
    total = sum((p.astype(wide) for p in patterns[1:]), patterns[0].astype(wide)).astype(dtype)
    return [_from(total, rank * count) if op == "sum_scatter" else total]


def _pattern(rank: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """One period of rank's data: whole numbers, told apart by place and rank."""
    places = np.arange(_PERIOD, dtype=np.int64)
    numbers = (places * 7 + places // _MODULUS + rank * 31) % _MODULUS
    if dtype.kind == "b":
        return (numbers % 2).astype(dtype)
    if dtype.kind == "c":  # real parts that are often equal, so that imaginary ones decide
        return (numbers % 4 + 1j * numbers).astype(dtype)
    return numbers.astype(dtype)


def _from(pattern: NDArray[Any], start: int) -> NDArray[Any]:
    """Turn the pattern so that it begins with the element of this place."""
    return np.roll(pattern, -(start % _PERIOD))


def _repeat(pattern: NDArray[Any], count: int) -> NDArray[Any]:
    return np.resize(pattern, count) if count else pattern[:0].copy()


def _poison(out: NDArray[Any], op: str) -> None:
    """Fill with what is seldom or never right: NaN, -1, the largest; of bool the rarer one."""
    if out.dtype.kind == "b":
        out.fill(op == "all_min")
    else:
        out.view(np.uint8).fill(0xFF)


def _count_other(got: NDArray[Any], pattern: NDArray[Any]) -> int:
    """Elements of ``got`` that are not the pattern over and over; a period at a time."""
    n_other = 0
    for start in range(0, len(got), _PERIOD):
        part = got[start : start + _PERIOD]
        n_other += int(np.count_nonzero(part != pattern[: len(part)]))
    return n_other
