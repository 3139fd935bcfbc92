"""Measure latency and bandwidth between pairs of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import phalanx as px
from phalanx.protocol import LinkMeasurement

_SMALL = 8  # bytes of a message that measures latency only
_PROBE, _MOST = 16 << 10, 1 << 20  # bytes: of the probe that picks the large size; of that at most
_SMALL_CALLS, _LARGE_CALLS = 21, 5
_BUDGET_S = 0.05  # round trip of a large message: a slow link gets less than 1 MiB
_Row = tuple[float, float, int, int]


def measure_links(*, progress: Callable[[int], None] | None = None) -> tuple[LinkMeasurement, ...]:
    """Measure the path between each pair of ranks; every rank calls it.

    ``progress`` is called before each pair with the number of pairs that are done.

    Messages make round trips (`send`, `recv`), and every reply is compared with the data sent.
    Latency is the median of the small messages; bandwidth is the fastest large message. About 10 ms
    per pair on one machine.

    Examples
    --------
    >>> measure_links()
    ()
    """
    world = px.init()
    size, rank = world.size(), world.rank()
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    mine = np.zeros((len(pairs), 4))
    for at, (a, b) in enumerate(pairs):
        world.barrier()  # the pair before has ended, so no other data moves
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


def _ask(world: px.Group, peer: int) -> _Row:
    """Return latency in µs, GB/s, bytes and wrong elements of round trips."""
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
        return took[1:]  # the first call warms up

    latency_s = float(np.median(times(_SMALL, _SMALL_CALLS))) / 2
    probe_s = min(times(_PROBE, 1))
    nbytes = int(min(_MOST, max(_PROBE, _PROBE * _BUDGET_S / probe_s)))
    px.send(np.array([nbytes]), peer, group=world)
    one_way_s = min(times(nbytes, _LARGE_CALLS)) / 2
    return latency_s * 1e6, nbytes / one_way_s / 1e9, nbytes, n_wrong


def _echo(world: px.Group, peer: int) -> None:
    """Send every message back to the peer."""

    def give_back(nbytes: int, calls: int) -> None:
        for _ in range(calls + 1):
            px.send(px.recv((nbytes,), np.uint8, peer, group=world), peer, group=world)

    give_back(_SMALL, _SMALL_CALLS)
    give_back(_PROBE, 1)
    nbytes = int(np.asarray(px.recv((1,), np.int64, peer, group=world))[0])
    give_back(nbytes, _LARGE_CALLS)
