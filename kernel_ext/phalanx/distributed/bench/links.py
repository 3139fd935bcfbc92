"""Measure latency and bandwidth between pairs of ranks, also on chosen networks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from phalanx import distributed as px
from phalanx.errors import DistributedError
from phalanx.protocol import LinkMeasurement

from ..world_spec import WorldSpec

__all__ = ["measure_links", "measure_networks", "pairing_rounds"]

_SMALL = 8  # bytes of a message that measures latency only
_PROBE, _MOST = 16 << 10, 1 << 20  # bytes: of the probe that picks the large size; of that at most
_SMALL_CALLS, _LARGE_CALLS = 21, 5
_BUDGET_S = 0.05  # round trip of a large message: a slow link gets less than 1 MiB
# On a network chosen for measurement. A limiter of a switch or a cloud lets some 100 KB pass faster
# than its rate, after each pause. So messages are larger, 1 MiB picks their size, and the median of
# the times counts.
_NETWORK_SIZES, _NETWORK_BUDGET_S = (1 << 20, 4 << 20), 0.2
_CONNECT_S = 8.0  # a host that drops packets never answers
_Pair = tuple[int, int]
_Row = tuple[float, float, int, int]


def measure_links(
    group: px.Group | None = None, *, progress: Callable[[int], None] | None = None
) -> tuple[LinkMeasurement, ...]:
    """Measure the path between each pair of ranks; every rank calls it.

    Parameters
    ----------
    group : Group, optional
        ``None``: the group made by `init`.
    progress : callable, optional
        Called before each pair with the number of pairs that are done.

    Returns
    -------
    tuple of LinkMeasurement
        One per pair, the same on every rank; every reply was compared with the data sent.

    Notes
    -----
    Messages make round trips (`send`, `recv`). Latency is the median of the small messages;
    bandwidth is the fastest large message. About 10 ms per pair on one machine.

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


def measure_networks(
    networks: Mapping[str, Mapping[int, str]],
    group: px.Group | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[LinkMeasurement, ...]:
    """Measure each pair of ranks on each network; every rank calls it.

    Parameters
    ----------
    networks : mapping of str to mapping of int to str
        By name of the network, the address of each rank that has one there.
    group : Group, optional
        ``None``: the group made by `init`.
    progress : callable, optional
        Called before each round of pairs with the number of pairs that are done.

    Returns
    -------
    tuple of LinkMeasurement
        One per network and pair, the same on every rank. ``failure`` is set if the pair could not
        connect.

    Notes
    -----
    Pairs without a common rank are measured at the same time. Each pair is a split of the group
    with its own connection.

    Examples
    --------
    >>> measure_networks({})
    ()
    """
    world = px.init() if group is None else group
    me = world.rank()
    failures: dict[tuple[str, _Pair], str] = {}
    mine: dict[tuple[str, _Pair], _Row] = {}
    for name, addresses in networks.items():
        spec = replace(world._spec, addresses=(addresses[me],)) if me in addresses else world._spec
        for pairs in pairing_rounds(sorted(addresses)):
            if progress is not None:
                progress(len(failures))
            found, problem = _measure_pairs(world, spec, pairs)
            if problem and len(pairs) > 1:  # one pair has failed, and the split with it: try each
                for pair in pairs:
                    found, failures[name, pair] = _measure_pairs(world, spec, [pair])
                    mine |= {(name, which): row for which, row in found.items()}
                continue
            failures |= {(name, pair): problem for pair in pairs}
            mine |= {(name, pair): row for pair, row in found.items()}
    if not failures:
        return ()
    table = np.array([mine.get(key, (0.0, 0.0, 0, 0)) for key in failures])
    rows = np.asarray(px.all_sum(table, group=world)).tolist()
    return tuple(
        LinkMeasurement(a, b, row[0], row[1], int(row[2]), int(row[3]), name, why)
        for ((name, (a, b)), why), row in zip(failures.items(), rows, strict=True)
    )


def pairing_rounds(ranks: Sequence[int]) -> Iterator[list[_Pair]]:
    """Yield rounds of pairs without a common rank, as in tournaments.

    n - 1 rounds (n if n is odd): de Werra 1981, doi:10.1016/S0304-0208(08)73478-9.

    Examples
    --------
    >>> list(pairing_rounds([0, 1, 5]))
    [[(1, 5)], [(0, 5)], [(0, 1)]]
    """
    n_places = len(ranks) + len(ranks) % 2
    for turn in range(n_places - 1):
        ring = [(turn + k) % (n_places - 1) for k in range(n_places - 1)]
        places = [(ring[0], n_places - 1), *((ring[k], ring[-k]) for k in range(1, n_places // 2))]
        pairs = [(min(a, b), max(a, b)) for a, b in places if max(a, b) < len(ranks)]
        yield [(ranks[a], ranks[b]) for a, b in pairs]


def _measure_pairs(
    world: px.Group, spec: WorldSpec, pairs: Sequence[_Pair]
) -> tuple[dict[_Pair, _Row], str]:
    """Measure pairs at the same time, each on its own connection.

    Returns this rank's results (the lower rank of a pair has them), and why the pairs could not
    connect, the same text on every rank.
    """
    me = world.rank()
    own = next((pair for pair in pairs if me in pair), None)
    try:
        part = world._split(None if own is None else pairs.index(own), -1, spec, _CONNECT_S)
    except DistributedError as error:
        if type(error) is not DistributedError:  # the group itself has failed
            raise
        return {}, str(error).removeprefix("the group could not be split: ")
    if part is None or own is None:
        return {}, ""
    with part:
        if part.rank() == 0:
            return {own: _ask(part, 1, _NETWORK_SIZES)}, ""
        _echo(part, 0, _NETWORK_SIZES)
    return {}, ""


def _ask(world: px.Group, peer: int, sizes: Sequence[int] = (_MOST,)) -> _Row:
    """Return latency in µs, GB/s, bytes and wrong elements of round trips.

    Each message picks the size of the next, at most the next of ``sizes``.
    """
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
    nbytes = _PROBE
    budget_s = _BUDGET_S if len(sizes) == 1 else _NETWORK_BUDGET_S
    for most in sizes:
        probe_s = min(times(nbytes, 1))
        nbytes = int(min(most, max(_PROBE, nbytes * budget_s / probe_s)))
        px.send(np.array([nbytes]), peer, group=world)
    took = times(nbytes, _LARGE_CALLS)
    one_way_s = (min(took) if len(sizes) == 1 else float(np.median(took))) / 2
    return latency_s * 1e6, nbytes / one_way_s / 1e9, nbytes, n_wrong


def _echo(world: px.Group, peer: int, sizes: Sequence[int] = (_MOST,)) -> None:
    """Send every message back to the peer."""

    def give_back(nbytes: int, calls: int) -> None:
        for _ in range(calls + 1):
            px.send(px.recv((nbytes,), np.uint8, peer, group=world), peer, group=world)

    give_back(_SMALL, _SMALL_CALLS)
    nbytes = _PROBE
    for _ in sizes:
        give_back(nbytes, 1)
        nbytes = int(np.asarray(px.recv((1,), np.int64, peer, group=world))[0])
    give_back(nbytes, _LARGE_CALLS)
