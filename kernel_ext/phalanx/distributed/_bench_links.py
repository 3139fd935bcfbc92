"""How fast each path between two ranks is, measured while no other moves.

It uses the public functions of `phalanx.distributed` only, and prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from phalanx import distributed as px
from phalanx.protocol import LinkMeasurement

__all__ = ["measure_links"]

_SMALL = 8  # bytes that say nothing of bandwidth
_PROBE, _MOST = 16 << 10, 1 << 20  # bytes: what finds out how many are worth while
_SMALL_CALLS, _LARGE_CALLS = 21, 5
_BUDGET_S = 0.05  # there and back, of a large message: a modem is not sent 1 MiB


def measure_links(
    group: px.Group | None = None, *, progress: Callable[[int], None] | None = None
) -> tuple[LinkMeasurement, ...]:
    """Measure the path between each two ranks, one after the other; every rank calls this alike.

    Parameters
    ----------
    group : Group, optional
        None: the one of `init`.
    progress : callable, optional
        Told how many pairs are done, before each next one.

    Returns
    -------
    tuple of LinkMeasurement
        One for each pair, the same on every rank; what came back was compared with what went.

    Notes
    -----
    Messages go there and back (`send`, `recv`); of the small ones the median counts, of the large
    ones the fastest. Some 10 ms a pair on one machine.

    Examples
    --------
    >>> measure_links()
    ()
    """
    world = px.init() if group is None else group
    size, rank = world.size(), world.rank()
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    mine = np.zeros((len(pairs), 4))
    for at, (a, b) in enumerate(pairs):
        world.barrier()  # the pair before has ended, and nothing else moves
        if progress is not None:
            progress(at)
        if rank == a:
            mine[at] = _ask(world, b)
        elif rank == b:
            _echo(world, a)
    found = np.asarray(px.all_sum(mine, group=world)) if pairs else mine
    return tuple(
        LinkMeasurement(a, b, float(row[0]), float(row[1]), int(row[2]), int(row[3]))
        for (a, b), row in zip(pairs, found, strict=True)
    )


def _ask(world: px.Group, peer: int) -> tuple[float, float, int, int]:
    """Send there and back, and take the time."""
    n_wrong = 0

    def times(nbytes: int, calls: int) -> list[float]:
        nonlocal n_wrong
        x = np.arange(nbytes, dtype=np.uint8)
        took = []
        for _ in range(calls + 1):
            start = time.perf_counter()
            px.send(x, peer, group=world)
            back = px.recv_like(x, peer, group=world)
            took.append(time.perf_counter() - start)
            n_wrong += int(np.count_nonzero(np.asarray(back) != x))
        return took[1:]  # the first one warms up

    latency_s = float(np.median(times(_SMALL, _SMALL_CALLS))) / 2
    probe_s = min(times(_PROBE, 1))
    nbytes = int(min(_MOST, max(_PROBE, _PROBE * _BUDGET_S / probe_s)))
    px.send(np.array([nbytes]), peer, group=world)
    one_way_s = min(times(nbytes, _LARGE_CALLS)) / 2
    return latency_s * 1e6, nbytes / one_way_s / 1e9, nbytes, n_wrong


def _echo(world: px.Group, peer: int) -> None:
    """Send back what comes."""

    def give_back(nbytes: int, calls: int) -> None:
        for _ in range(calls + 1):
            px.send(px.recv((nbytes,), np.uint8, peer, group=world), peer, group=world)

    give_back(_SMALL, _SMALL_CALLS)
    give_back(_PROBE, 1)
    nbytes = int(np.asarray(px.recv((1,), np.int64, peer, group=world))[0])
    give_back(nbytes, _LARGE_CALLS)
