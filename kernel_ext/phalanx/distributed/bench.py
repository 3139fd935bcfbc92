"""The sweep: how fast a collective is, by size, measured on the ranks and verified at every size.

It uses the public functions of `phalanx.distributed` only and prints nothing; words and factors
are nccl-tests' (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). `sendrecv` is theirs too:
each rank sends to the next and receives from the one before, both at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx import distributed as px
from phalanx.protocol import Measurement

from ._bench_case import DTYPES, OPERATIONS, Case
from ._bench_fit import (
    AlgorithmChange,
    AlphaBeta,
    algorithm_changes,
    fit_alpha_beta,
    fit_measurements,
    time_left,
)
from ._bench_limits import measure_limits, unknown_limit
from ._bench_links import measure_links
from ._bench_request import (
    available_memory,
    check_memory,
    check_memory_of_hosts,
    check_request,
    parse_size,
    physical_memory,
    sizes_between,
)
from ._bench_wire import limits_of_ranks
from ._describe import algorithms_by_size

__all__ = [
    "DTYPES",
    "OPERATIONS",
    "AlgorithmChange",
    "AlphaBeta",
    "algorithm_changes",
    "available_memory",
    "busbw_factor",
    "check_memory",
    "check_request",
    "fit_alpha_beta",
    "fit_measurements",
    "limits_of_ranks",
    "measure_limits",
    "measure_links",
    "parse_size",
    "physical_memory",
    "sizes_between",
    "sweep",
    "time_left",
    "unknown_limit",
]

_FEWEST = 5  # iterations that a budget leaves at least


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
        is free on a machine of the ranks.

    Examples
    --------
    >>> [m.n_wrong for m in sweep("all_sum", [8, 1024], iterations=1)]
    [0, 0]
    """
    world = px.init() if group is None else group
    kind = check_request(op, dtype, iterations, warmup, ranks=world.size())
    # Each machine is to hold the arrays of its own ranks, of which the caller may have seen none.
    free = _all_of(world, available_memory())
    check_memory_of_hosts(sizes, world.describe()["hosts"], free.tolist())
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
    algorithm, transport = _path_of(group, op, dtype.name, case.nbytes_given)
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


def _path_of(group: px.Group, op: str, dtype: str, nbytes: int) -> tuple[str, str]:
    """Algorithm and transport that the group says it takes.

    Where it does not tell of this very size, its neighbours are named.
    """
    said = group.describe([nbytes])
    transport = "+".join(sorted(set(said["transports"]) - {"self"})) or "self"
    by_size = algorithms_by_size(said, op, dtype)
    below = [by_size[size] for size in sorted(by_size) if size <= nbytes]
    above = [by_size[size] for size in sorted(by_size) if size >= nbytes]
    return " or ".join(dict.fromkeys(below[-1:] + above[:1])), transport
