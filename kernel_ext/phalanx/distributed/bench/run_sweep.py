"""Sweep a collective over sizes: measure and verify each.

The terms and factors are those of nccl-tests (https://github.com/NVIDIA/nccl-tests,
doc/PERFORMANCE.md). So is `sendrecv`: each rank sends to the next and receives from the one before,
both at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import phalanx as px
from phalanx.protocol import Measurement

from ..group.group import algorithms_by_size
from .request import Case, available_memory, check_memory_of_hosts, check_request

_FEWEST = 5  # iterations that are made even if they exceed the budget


def busbw_factor(op: str, ranks: int) -> float:
    """Return bus bandwidth divided by algorithm bandwidth, as in nccl-tests.

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
    """Measure a collective at each size; all ranks call it together.

    ``sizes`` are bytes of a message; for ``sum_scatter``, ``all_gather`` and ``all_to_all`` the
    bytes of all ranks' shares together. They are rounded down to whole elements. A barrier has no
    size and gives one measurement. The calls of one size may take ``budget_s`` seconds: slow calls
    are made fewer times, at least 5 times.

    Yields a measurement per size, the same on every rank except the path, which is the rank's own.
    The time is that of the slowest rank. Wrong elements are summed over all ranks and found by
    comparison with numpy before and after the timing.

    Raises `ValueError` as `check_request` and `check_memory`.

    Examples
    --------
    >>> [m.n_wrong for m in sweep("all_sum", [8, 1024], iterations=1)]
    [0, 0]
    """
    world = px.init() if group is None else group
    kind = check_request(op, dtype, iterations, warmup, ranks=world.size())
    # Each machine must hold the arrays of its own ranks; the caller may run on another machine.
    free = _all_of(world, available_memory())
    check_memory_of_hosts(sizes, world.describe()["hosts"], free.tolist())
    wanted = (0,) if op == "barrier" else tuple(sizes)
    return (_measure(op, nbytes, kind, iterations, warmup, budget_s, world) for nbytes in wanted)


def _all_of(group: px.Group, value: float) -> NDArray[np.float64]:
    """Gather the values of all ranks, by rank."""
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
    # At most the requested calls, and at least _FEWEST unless fewer were requested.
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
    """Return the algorithm and transport that the group reports for a size.

    If the group does not report the exact size, the algorithms of its neighbours are named.
    """
    said = group.describe([nbytes])
    transport = "+".join(sorted(set(said["transports"]) - {"self"})) or "self"
    by_size = algorithms_by_size(said, op, dtype)
    below = [by_size[size] for size in sorted(by_size) if size <= nbytes]
    above = [by_size[size] for size in sorted(by_size) if size >= nbytes]
    return " or ".join(dict.fromkeys(below[-1:] + above[:1])), transport
