"""What the ranks' own machines can do without us: a plain stream from host to host, or a copy there.

Connections are made and proved as those of any group; what goes over them is plain sockets' work.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import numpy as np

from phalanx import _native
from phalanx import distributed as px
from phalanx.errors import DistributedError
from phalanx.protocol import Limit

from ._bench_limits import measure_limits, unknown_limit
from ._connect import connect_links
from ._handshake import Identity, Lane
from ._listen import close_all
from ._split import GroupRendezvous, abort_check
from ._world import WorldSpec

__all__ = ["limits_of_ranks"]

# As long as on one machine (_bench_limits); of many hosts each pair has its part of two breaths.
_SECONDS, _ALL_SECONDS = 0.2, 2.0
_WARM_UP = 0.25  # of that time a stream may take to come to speed, before it is counted
_PIECE_NBYTES = 256 << 10
_PATIENCE_S = 5.0  # judgement: the ranks' own connections stand, so these do in a few round trips


def limits_of_ranks(
    group: px.Group | None = None, *, seconds: float = _SECONDS
) -> tuple[Limit, ...]:
    """Measure what bounds the ranks where they are; every rank calls this alike.

    Parameters
    ----------
    group : Group, optional
        None: the one of `init`.
    seconds : float, optional
        How long each thing is measured.

    Returns
    -------
    tuple of Limit
        On rank 0; on the others nothing. Of one host what `measure_limits` finds there, of several
        the slowest plain stream between two that are neighbours in the ranks' order. One that did
        not come through is not known (0), and says so. Nothing of ranks that an MPI library has.

    Examples
    --------
    >>> [limit.transport for limit in limits_of_ranks(seconds=0.01)]
    ['arena']
    """
    world = px.init() if group is None else group
    spec = world._spec
    if spec.transport == "mpi":
        return ()
    leaders = sorted({spec.hosts.index(host) for host in spec.hosts})
    if len(leaders) > 1:
        found = _wire(world, spec, leaders, seconds)
        return (found,) if world.rank() == 0 else ()
    transports = {"tcp"} if spec.transport == "tcp" else {"arena"}
    limits = measure_limits(transports, seconds=seconds) if world.rank() == 0 else ()
    world.barrier()  # the others do nothing meanwhile
    return limits


def _wire(world: px.Group, spec: WorldSpec, leaders: Sequence[int], seconds: float) -> Limit:
    """Time one stream after the other, around the hosts; all ranks find the same."""
    n = len(leaders)
    pairs = [(leaders[i], leaders[(i + 1) % n]) for i in range(n if n > 2 else 1)]
    seconds = min(seconds, _ALL_SECONDS / len(pairs))
    mine = np.zeros((len(pairs), 2))
    # All are here: who waited in vain for others to connect would end the epoch.
    world.barrier()
    links = _connect(world, spec, pairs)
    try:
        for at, (source, target) in enumerate(pairs):
            world.barrier()  # the stream before has ended, and nothing else moves
            if spec.rank == source and target in links:
                _send(links[target], seconds)
            elif spec.rank == target and source in links:
                mine[at] = _receive(links[source], seconds)
    finally:
        close_all(links.values())
    moved = np.asarray(px.all_sum(mine, group=world))
    rates = [nbytes / took / 1e9 if took > 0 else 0.0 for nbytes, took in moved.tolist()]
    slowest = rates.index(min(rates))
    names = spec.rank_host_names()
    here, there = (names[rank] for rank in pairs[slowest])
    if rates[slowest] <= 0:
        return unknown_limit(here, there)
    among = f", the slowest of {len(pairs)} such ways around the hosts" if len(pairs) > 1 else ""
    return Limit(
        name="wire between hosts",
        transport="tcp",
        gbs=rates[slowest],
        nbytes=int(moved[slowest][0]),
        seconds=float(moved[slowest][1]),
        how=f"one plain tcp stream from {here} to {there}{among}; bytes count where they arrive",
    )


def _connect(
    world: px.Group, spec: WorldSpec, pairs: Sequence[tuple[int, int]]
) -> dict[int, socket.socket]:
    """Connect this rank with those that it is to stream to or from, as far as that can be done."""
    engine = world._engine
    if not isinstance(engine, _native.Group):
        return {}
    peers = {peer for pair in pairs if spec.rank in pair for peer in pair} - {spec.rank}
    try:
        links = connect_links(
            # Part of the proof: none of these sockets can become one of the group's own.
            Identity(f"{spec.workspace}, wire", spec.epoch, spec.rank, spec.key),
            {Lane.PAIR: tuple(sorted(peers))},
            spec.addresses,
            GroupRendezvous(engine),
            timeout=_PATIENCE_S,
            host_names=spec.rank_host_names(),
            check=abort_check(engine, spec),
            names=spec.members,
        )
    except (DistributedError, OSError):
        return {}  # the other end hears nothing of it, and the limit is not known
    found = {peer: socks[0] for peer, socks in links[Lane.PAIR].items()}
    for sock in found.values():
        sock.settimeout(_PATIENCE_S)
    return found


def _send(sock: socket.socket, seconds: float) -> None:
    """Send until the other end has had enough."""
    piece = bytes(_PIECE_NBYTES)
    end = time.perf_counter() + seconds * (1 + _WARM_UP) + _PATIENCE_S
    try:
        while time.perf_counter() < end:
            sock.sendall(piece)
    except OSError:
        return  # it has closed, or the path has broken, which it sees as well


def _receive(sock: socket.socket, seconds: float) -> tuple[int, float]:
    """Return the bytes that came, and in which time; (0, 0) where the stream broke."""
    buffer = memoryview(bytearray(_PIECE_NBYTES))
    clock = time.perf_counter
    n_timed, took = 0, 0.0
    try:
        if not sock.recv_into(buffer):
            return 0, 0.0
        warm = clock() + seconds * _WARM_UP  # what was on its way comes at once, the rest does not
        while (start := clock()) < warm:
            if not sock.recv_into(buffer):
                return 0, 0.0
        while took < seconds:
            n = sock.recv_into(buffer)
            if not n:
                return 0, 0.0
            n_timed += n
            took = clock() - start
    except OSError:
        return 0, 0.0
    finally:
        sock.close()  # with bytes unread: the sender hears of it at once
    return n_timed, took
