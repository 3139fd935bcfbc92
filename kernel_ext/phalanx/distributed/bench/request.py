"""Check the arguments of a sweep and prepare its cases."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import phalanx as px
from phalanx.errors import did_you_mean

from ..arrays.arguments import like_dtype
from ..arrays.frameworks import DTYPE_NAMES

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
# numpy has bfloat16 only from ml_dtypes; find_spec looks for ml_dtypes without importing it.
DTYPES = tuple(n for n in DTYPE_NAMES if n != "bfloat16" or find_spec("ml_dtypes") is not None)

# Period of the test data in elements: a prime, so that chunks of a power of two in size differ
# from their neighbours. Values below 251 keep the sum of 64 ranks exact in float32.
_PERIOD, _MODULUS = 65_521, 251
# For these, nccl-tests counts the elements of one rank's share, and the bytes of all shares.
_IN_SHARES = frozenset(("all_gather", "sum_scatter", "all_to_all"))
_UNBUFFERED = (64 << 10) + 1  # bytes from which `send` may wait for its receiver

_MOST = 1 << 63  # bytes: no machine integer can hold this length
# Arrays of a message's size that one rank may hold at a time: input, output, staging.
_COPIES = 3

_SIZE = re.compile(r"(\d{1,1000})\s*(?:([KMGTPE])(?:iB)?|B)?", re.IGNORECASE | re.ASCII)


def dtype_named(name: str) -> np.dtype[Any]:
    like, _ = like_dtype("bench", name)
    # Make an array: that imports ml_dtypes, and numpy knows the ml_dtypes names afterwards.
    found: np.dtype[Any] = like((0,)).give().dtype
    return found


class Case:
    """One operation at one size: arrays, call and expected result."""

    def __init__(self, op: str, nbytes: int, dtype: np.dtype[Any], group: px.Group) -> None:
        self._op, self._group = op, group
        size, rank = group.size(), group.rank()
        shares = size if op in _IN_SHARES else 1
        self.count = 0 if op == "barrier" else max(1, nbytes // dtype.itemsize // shares)
        self.nbytes = self.count * dtype.itemsize * shares
        n_in = self.count * (1 if op == "all_gather" else shares)
        n_out = self.count * (1 if op == "sum_scatter" else shares)
        self._x = _repeat(_pattern(rank, dtype), n_in)
        self.nbytes_given = self._x.nbytes  # input of one rank; the engine selects by this size
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
        """Return a call that sends and receives at the same time.

        `send` buffers small arrays, so they need no thread. For larger arrays every rank would
        wait in `send`: a deadlock.
        """
        x, group = self._x, self._group
        after = (group.rank() + 1) % group.size()
        before = (group.rank() - 1) % group.size()
        if self.nbytes < _UNBUFFERED:

            def exchange() -> Any:
                px.send(x, after, group=group)
                return px.recv_like(x, before, group=group)

            return exchange
        sender = ThreadPoolExecutor(1, "phalanx-bench-send")  # ends when garbage-collected

        def exchange_at_once() -> Any:
            sent = sender.submit(px.send, x, after, group=group)
            got = px.recv_like(x, before, group=group)
            sent.result()
            return got

        return exchange_at_once

    def timed(self, calls: int) -> NDArray[np.float64]:
        """Time each call on this rank in seconds, after a barrier."""
        clock, call, barrier = time.perf_counter, self._call, self._group.barrier
        seconds = np.empty(calls)
        for i in range(calls):
            barrier()
            start = clock()
            call()
            seconds[i] = clock() - start
        return seconds

    def count_wrong(self) -> int:
        """Call once into a poisoned output and count this rank's wrong elements."""
        if self._op == "sendrecv":
            # recv_like allocates the result, most likely in the memory freed last: poison that.
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
    """Return the repeating pattern of each part of this rank's result."""
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
    """Return one period of test data: integers from place and rank."""
    places = np.arange(_PERIOD, dtype=np.int64)
    numbers = (places * 7 + places // _MODULUS + rank * 31) % _MODULUS
    if dtype.kind == "b":
        return (numbers % 2).astype(dtype)
    if dtype.kind == "c":  # real parts are often equal, so that imaginary parts decide
        return (numbers % 4 + 1j * numbers).astype(dtype)
    return numbers.astype(dtype)


def _from(pattern: NDArray[Any], start: int) -> NDArray[Any]:
    """Rotate the pattern so that it begins with element ``start``."""
    return np.roll(pattern, -(start % _PERIOD))


def _repeat(pattern: NDArray[Any], count: int) -> NDArray[Any]:
    return np.resize(pattern, count) if count else pattern[:0].copy()


def _poison(out: NDArray[Any], op: str) -> None:
    """Fill with values that are rarely or never right.

    NaN, -1 or the largest integer; for bool the value that is rarer in the result.
    """
    if out.dtype.kind == "b":
        out.fill(op == "all_min")
    else:
        out.view(np.uint8).fill(0xFF)


def _count_other(got: NDArray[Any], pattern: NDArray[Any]) -> int:
    """Count the elements of ``got`` that differ from the repeated pattern."""
    n_other = 0
    for start in range(0, len(got), _PERIOD):
        part = got[start : start + _PERIOD]
        n_other += int(np.count_nonzero(part != pattern[: len(part)]))
    return n_other


def parse_size(text: str) -> int:
    """Convert a size like ``64M`` to bytes.

    A size is digits, and K, M, G, T, P or E (powers of 1024), also written KiB, MiB and so on. It
    is less than 8 EiB.

    Examples
    --------
    >>> parse_size("8"), parse_size("1K"), parse_size("64MiB")
    (8, 1024, 67108864)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        msg = f"'{text}' is not a size; write bytes as 8, 1K, 64M or 2G (powers of 1024)"
        raise ValueError(msg)
    number, unit = match.groups()
    nbytes = int(number) << (10 * " KMGTPE".index(unit.upper()) if unit else 0)
    _check_length(nbytes)
    return nbytes


def _check_length(nbytes: int) -> None:
    if nbytes >= _MOST:
        said = f"2**{nbytes.bit_length() - 1} or more bytes"
        msg = f"a message of {said} is longer than any machine can hold; give less than 8E"
        raise ValueError(msg)


def sizes_between(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return ``begin``, ``begin * factor`` and so on, up to ``end``.

    Examples
    --------
    >>> sizes_between(8, 100, 4)
    (8, 32)
    """
    _check_length(max(begin, end))
    if begin < 1:
        msg = f"a sweep begins at 1 byte or more, not at {begin}"
        raise ValueError(msg)
    if end < begin:
        msg = (
            f"a sweep from {begin} to {end} bytes is empty; the end must not be less than the begin"
        )
        raise ValueError(msg)
    if factor < 2:
        msg = f"the factor between sizes must be 2 or more, not {factor}"
        raise ValueError(msg)
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def physical_memory() -> int:
    """Return the bytes of memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Return this machine's free and reclaimable memory in bytes."""
    info = Path("/proc/meminfo")
    if info.exists():
        found = re.search(r"^MemAvailable:\s*(\d+) kB$", info.read_text("ascii"), re.MULTILINE)
        if found is not None:
            return int(found[1]) << 10
    return physical_memory()


def check_memory(
    sizes: Sequence[int], ranks: int, memory: int, machine: str = "this machine"
) -> None:
    """Refuse a sweep that needs more than a machine's free bytes.

    The machine holds the arrays of ``ranks`` ranks. The error names the largest size that fits.
    """
    if not ranks:
        return
    largest = max(sizes, default=0)
    most = memory // (ranks * _COPIES)
    if largest > most:
        msg = (
            f"{_say(largest)} on {ranks} {'rank' if ranks == 1 else 'ranks'} needs "
            f"{_say(largest * _COPIES)} of memory per rank, {_say(largest * _COPIES * ranks)} in all; "
            f"{machine} has {_say(memory)} free; the largest size that fits is {most >> 20}M"
        )
        raise ValueError(msg)


def check_memory_of_hosts(
    sizes: Sequence[int], hosts: Sequence[str], memory: Sequence[float]
) -> None:
    """Check the machine with the least free memory per rank; see `check_memory`.

    ``hosts`` and ``memory`` are by rank, so that every rank decides alike.
    """
    ranks = Counter(hosts)
    worst = min(range(len(hosts)), key=lambda rank: memory[rank] / ranks[hosts[rank]])
    name = hosts[worst] if len(ranks) > 1 and hosts[worst] else "this machine"
    check_memory(sizes, ranks[hosts[worst]], int(memory[worst]), name)


def _say(nbytes: int) -> str:
    unit = min(6, max(0, nbytes.bit_length() - 1) // 10)
    number = f"{nbytes / (1 << 10 * unit):.1f}".removesuffix(".0")
    return f"{number} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[unit]}"


def check_request(
    op: str, dtype: str, iterations: int, warmup: int = 0, *, ranks: int = 2
) -> np.dtype[Any]:
    """Check the arguments of a sweep and return the dtype.

    Raises `ValueError` for an unknown operation or dtype (the text names the nearest), fewer than
    one iteration, or fewer ranks than the operation needs.

    Examples
    --------
    >>> check_request("all_sum", "float32", 20)
    dtype('float32')
    """
    if op not in OPERATIONS:
        msg = f"there is no sweep of {op!r}; {did_you_mean(str(op), OPERATIONS)}"
        raise ValueError(msg)
    if op == "sendrecv" and ranks < 2:
        msg = "sendrecv needs 2 ranks or more: each sends to the next"
        raise ValueError(msg)
    if iterations < 1 or warmup < 0:
        msg = f"a sweep needs 1 iteration or more, and no negative warm-up ({iterations}, {warmup})"
        raise ValueError(msg)
    if dtype not in DTYPES:
        if dtype == "bfloat16":
            msg = "numpy has no bfloat16 of its own; install ml_dtypes"
        else:
            msg = f"{dtype!r} is no dtype that ranks exchange; {did_you_mean(str(dtype), DTYPES)}"
        raise ValueError(msg)
    return dtype_named(dtype)
