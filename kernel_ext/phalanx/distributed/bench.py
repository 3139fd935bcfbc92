"""The sweep: how fast a collective is, by size, measured on the ranks and verified at every size.

It uses the public functions of `phalanx.distributed` only and prints nothing; words and factors
are nccl-tests' (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). `sendrecv` is theirs too:
each rank sends to the next and receives from the one before, both at once.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx import distributed as px
from phalanx.protocol import Measurement

from ._bench_case import DTYPES, OPERATIONS, Case, dtype_named

__all__ = [
    "DTYPES",
    "OPERATIONS",
    "busbw_factor",
    "check_memory",
    "check_request",
    "parse_size",
    "physical_memory",
    "sizes_between",
    "sweep",
]

# Arrays of a message's size that one rank may hold at a time: input, output, staging.
_COPIES = 3
_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])(?:iB)?|B)?", re.IGNORECASE | re.ASCII)
_FEWEST = 5  # iterations that a budget leaves at least


def parse_size(text: str) -> int:
    """Return the number of bytes that a size like ``64M`` says.

    Parameters
    ----------
    text : str
        Digits, and K, M, G or T (powers of 1024), also written KiB, MiB, GiB, TiB.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ValueError
        It is not such a size.

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
    return int(number) << (10 * (" KMGT".index(unit.upper())) if unit else 0)


def sizes_between(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return ``begin``, ``begin * factor`` and so on, up to ``end``.

    Parameters
    ----------
    begin, end : int
        Bytes; ``1 <= begin <= end``.
    factor : int
        At least 2.

    Returns
    -------
    tuple of int
        Bytes, growing.

    Raises
    ------
    ValueError
        The range is empty or would not grow.

    Examples
    --------
    >>> sizes_between(8, 100, 4)
    (8, 32)
    """
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


def busbw_factor(op: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests has it.

    Examples
    --------
    >>> busbw_factor("all_sum", 4), busbw_factor("all_gather", 4), busbw_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if op in ("all_sum", "all_max", "all_min"):
        return 2 * (ranks - 1) / ranks
    if op in ("sum_scatter", "all_gather", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def physical_memory() -> int:
    """Return the bytes of memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(sizes: Sequence[int], ranks: int, memory: int) -> None:
    """Refuse a sweep that the machine could not hold.

    Parameters
    ----------
    sizes : sequence of int
        Bytes.
    ranks : int
        How many hold arrays of that size at a time, all on one machine at worst.
    memory : int
        Bytes of the smallest machine.

    Raises
    ------
    ValueError
        The largest size needs more than that; the text names the largest that fits.
    """
    largest = max(sizes, default=0)
    most = memory // (ranks * _COPIES)
    if largest > most:
        msg = (
            f"{largest >> 20} MiB on {ranks} ranks needs {largest * ranks * _COPIES / 2**30:.1f} GiB, "
            f"this machine has {memory / 2**30:.1f} GiB; the largest size that fits is {most >> 20}M"
        )
        raise ValueError(msg)


def check_request(
    op: str, dtype: str, iterations: int, warmup: int = 0, *, ranks: int = 2
) -> np.dtype[Any]:
    """Check what a sweep is asked for, before anything runs; return the dtype.

    Raises
    ------
    ValueError
        An unknown operation or dtype (names the nearest), fewer than one iteration, or fewer ranks
        than the operation needs.

    Examples
    --------
    >>> check_request("all_sum", "float32", 20)
    dtype('float32')
    """
    if op not in OPERATIONS:
        msg = f"there is no sweep of '{op}'{_nearest(op, OPERATIONS)}"
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
            msg = f"'{dtype}' is no dtype that ranks exchange{_nearest(dtype, DTYPES)}"
        raise ValueError(msg)
    return dtype_named(dtype)


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{hint} (there are: {', '.join(names)})"


def sweep(
    op: str,
    sizes: Sequence[int],
    *,
    dtype: str = "float32",
    iterations: int = 20,
    warmup: int = 5,
    budget_s: float = 5.0,
    group: px.Group | None = None,
) -> Iterator[Measurement]:
    """Measure a collective at each size; every rank of the group calls this alike.

    Parameters
    ----------
    op : str
        What is measured, one of `OPERATIONS`. A barrier has no size and gives one measurement; in
        ``sendrecv`` each rank sends to the next and receives from the one before.
    sizes : sequence of int
        Bytes of a message; of ``sum_scatter``, ``all_gather`` and ``all_to_all`` all ranks' shares
        together. Rounded down to whole elements.
    dtype : str, optional
        Of the elements, one of `DTYPES`.
    iterations, warmup : int, optional
        Calls timed, and calls made before that.
    budget_s : float, optional
        Seconds that the calls of one size may take; slow ones are made less often, 5 times at
        least, and the measurement says how often.
    group : Group, optional
        None: the one of `init`.

    Returns
    -------
    iterator of Measurement
        One per size, the same on every rank but for the path, which is its own: the time is the
        slowest rank's, the wrong elements are those of all ranks, counted against numpy before
        and after the timing.

    Raises
    ------
    ValueError
        An unknown operation or dtype, fewer than one iteration, too few ranks, or more memory than
        there is.

    Examples
    --------
    >>> [m.n_wrong for m in sweep("all_sum", [8, 1024], iterations=1)]
    [0, 0]
    """
    world = px.init() if group is None else group
    kind = check_request(op, dtype, iterations, warmup, ranks=world.size())
    smallest = int(_all_of(world, physical_memory()).min())
    check_memory(sizes, world.size(), smallest)
    wanted = (0,) if op == "barrier" else tuple(sizes)
    return (_measure(op, nbytes, kind, iterations, warmup, budget_s, world) for nbytes in wanted)


def _all_of(group: px.Group, value: float) -> NDArray[np.float64]:
    """Every rank's value, by rank, on every rank."""
    return np.asarray(px.all_gather(np.array([value], np.float64), group=group))


def _measure(
    op: str,
    nbytes: int,
    dtype: np.dtype[Any],
    iterations: int,
    warmup: int,
    budget_s: float,
    group: px.Group,
) -> Measurement:
    case = Case(op, nbytes, dtype, group)
    n_wrong = int(_all_of(group, case.count_wrong()).sum())
    first = case.timed(max(1, min(2, warmup)))
    slowest = float(_all_of(group, float(first.min())).max())
    affordable = int(budget_s / max(slowest, 1e-9))
    # No more calls than asked for, no fewer than _FEWEST unless that is what was asked for.
    done = max(min(iterations, affordable), min(iterations, _FEWEST))
    if warmup > 2:
        case.timed(min(warmup - 2, max(1, affordable)))
    mine = case.timed(done)
    by_rank = np.asarray(px.all_gather(mine, group=group)).reshape(group.size(), done)
    times = by_rank.max(axis=0)
    n_wrong += int(_all_of(group, case.count_wrong()).sum())
    seconds = float(np.median(times))
    algbw = case.nbytes / seconds / 1e9
    algorithm, transport = _path_of(group, op, case.nbytes)
    return Measurement(
        op=op,
        algorithm=algorithm,
        transport=transport,
        dtype=dtype.name,
        ranks=group.size(),
        count=case.count,
        nbytes=case.nbytes,
        time_us=seconds * 1e6,
        p99_us=float(np.quantile(times, 0.99)) * 1e6,
        algbw_gbs=algbw,
        busbw_gbs=algbw * busbw_factor(op, group.size()),
        n_wrong=n_wrong,
        iterations=done,
    )


def _path_of(group: px.Group, op: str, nbytes: int) -> tuple[str, str]:
    """Algorithm and transport that the group says it takes.

    It tells the algorithm at some sizes; between two that differ both are named.
    """
    said = group.describe()
    transport = "+".join(sorted(set(said["transports"]) - {"self"})) or "self"
    by_size: dict[int, str] = said["engine"].get("algorithms", {}).get(op, {})
    below = [by_size[size] for size in sorted(by_size) if size <= nbytes]
    above = [by_size[size] for size in sorted(by_size) if size >= nbytes]
    return " or ".join(dict.fromkeys(below[-1:] + above[:1])), transport
