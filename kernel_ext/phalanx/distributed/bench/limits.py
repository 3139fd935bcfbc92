"""Measure the limits of hosts and of the wires between them.

The limits are a copy in memory (plain numpy) and a tcp stream (plain sockets) over loopback or
between hosts. A connection between hosts is made and authenticated like those of a group.
"""

from __future__ import annotations

import mmap
import socket
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

import phalanx as px
from phalanx import _native
from phalanx.errors import DistributedError
from phalanx.protocol import Limit

from ..connect.connector import connect_links
from ..connect.endpoints import close_all
from ..connect.handshake import Identity, LinkPurpose
from ..connect.rendezvous import GroupRendezvous
from ..world_spec import WorldSpec

# Larger than last-level caches (a copy within a cache is no limit of memory); a fraction of a second.
_COPY_NBYTES = 64 << 20

_SECONDS = 0.2
# Pieces of a stream. On loopback a call costs about 1 % of the time to move 1 MiB.
_LOOPBACK_PIECE_NBYTES, _WIRE_PIECE_NBYTES = 1 << 20, 256 << 10
# As long as on one machine; with many pairs of hosts all pairs share two seconds.
_WIRE_SECONDS = 2.0
_WARM_UP = 0.25  # part of that time that a stream may take to reach its speed before it is timed
_PATIENCE_S = 5.0  # judgement: the ranks are connected, so new links need a few round trips only


def measure_limits(
    transports: Collection[str] = ("arena", "tcp"), *, seconds: float = _SECONDS
) -> tuple[Limit, ...]:
    """Measure the limits of the transports on this machine.

    The limit of ``"arena"`` is a copy in memory on one core, that of ``"tcp"`` one stream from
    thread to thread over 127.0.0.1. Each measurement takes ``seconds``. Each byte counts once, where
    it arrives. Small messages can be faster than the copy, because they fit in caches.

    Examples
    --------
    >>> [limit.name for limit in measure_limits(["tcp"], seconds=0.01)]
    ['tcp loopback']
    """
    limits = []
    if "arena" in transports:
        limits.append(_copy(seconds))
    if "tcp" in transports:
        limits.append(_loopback(seconds))
    return tuple(limits)


def unknown_limit(source: str, target: str) -> Limit:
    """Return a limit of 0 for a wire with a failed stream.

    Examples
    --------
    >>> unknown_limit("a", "b").name, unknown_limit("a", "b").gbs
    ('wire between hosts', 0.0)
    """
    how = f"no plain tcp stream came through from {source} to {target}; phalanx doctor looks why"
    return Limit("wire between hosts", "tcp", 0.0, 0, 0.0, how)


def _plain(nbytes: int) -> NDArray[np.uint8]:
    """Allocate private memory; numpy's allocator may return memory shared between ranks."""
    room = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    huge_pages: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only; as numpy does
    if huge_pages is not None:
        with suppress(OSError):  # a kernel without them
            room.madvise(huge_pages)
    return np.frombuffer(room, np.uint8)


def _copy(seconds: float) -> Limit:
    source, target = _plain(_COPY_NBYTES), _plain(_COPY_NBYTES)
    source[:] = 1
    target[:] = source  # touch every page before the timing
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return Limit(
        name="memory copy",
        transport="arena",
        gbs=_COPY_NBYTES / float(np.median(times)) / 1e9,
        nbytes=_COPY_NBYTES * len(times),
        seconds=sum(times),
        how=f"one core copies {_COPY_NBYTES >> 20} MiB, median of {len(times)}; bytes count once",
    )


def _loopback(seconds: float) -> Limit:
    sender, receiver = _connect_to_self()
    with sender, receiver:
        thread = threading.Thread(
            target=_send_stream, args=(sender, seconds, _LOOPBACK_PIECE_NBYTES)
        )
        thread.start()
        nbytes, took = _receive_stream(receiver, seconds, _LOOPBACK_PIECE_NBYTES)
        thread.join()
    return Limit(
        name="tcp loopback",
        transport="tcp",
        gbs=nbytes / took / 1e9 if took else 0.0,
        nbytes=nbytes,
        seconds=took,
        how="one stream over 127.0.0.1, thread to thread; bytes count once, where they arrive",
    )


def _connect_to_self() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection; connections from other processes are closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_PATIENCE_S)
        sender = socket.create_connection(listening.getsockname(), timeout=_PATIENCE_S)
        while True:
            receiver, address = listening.accept()
            receiver.settimeout(_PATIENCE_S)
            if address == sender.getsockname():
                return sender, receiver
            receiver.close()


def limits_of_ranks(*, seconds: float = _SECONDS) -> tuple[Limit, ...]:
    """Measure the hardware limits of the ranks; every rank calls it.

    The result is on rank 0; the others return (), as all ranks of MPI do. On one host these are the
    limits of `measure_limits`, on several the slowest plain stream between hosts that are
    neighbours in rank order. A stream that failed has the limit 0, and its text says so.

    Examples
    --------
    >>> [limit.transport for limit in limits_of_ranks(seconds=0.01)]
    ['arena']
    """
    world = px.init()
    spec = world._current.spec
    if spec.transport == "mpi":
        return ()
    leaders = sorted({spec.hosts.index(host) for host in spec.hosts})
    if len(leaders) > 1:
        found = _wire(world, spec, leaders, seconds)
        return (found,) if world.rank() == 0 else ()
    transports = {"tcp"} if spec.transport == "tcp" else {"arena"}
    limits = measure_limits(transports, seconds=seconds) if world.rank() == 0 else ()
    world.barrier()  # the other ranks wait here, so that they do not disturb the measurement
    return limits


def _wire(world: px.Group, spec: WorldSpec, leaders: Sequence[int], seconds: float) -> Limit:
    """Time the streams around the hosts; all ranks return the same result."""
    n = len(leaders)
    pairs = [(leaders[i], leaders[(i + 1) % n]) for i in range(n if n > 2 else 1)]
    seconds = min(seconds, _WIRE_SECONDS / len(pairs))
    mine = np.zeros((len(pairs), 2))
    # All ranks are here now: a rank that waited too long for a connection would end the epoch.
    world.barrier()
    links = _connect(world, spec, pairs)
    try:
        for at, (source, target) in enumerate(pairs):
            world.barrier()  # the stream before has ended, so no other data moves
            if spec.rank == source and target in links:
                _send_stream(links[target], seconds)
            elif spec.rank == target and source in links:
                mine[at] = _receive_stream(links[source], seconds)
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
    """Connect this rank to its stream peers; return {} if that fails."""
    engine, registry = world._current.engine, world._current.registry
    if registry is None or not isinstance(engine, _native.Group):
        return {}
    peers = {peer for pair in pairs if spec.rank in pair for peer in pair} - {spec.rank}
    try:
        links = connect_links(
            # The name is part of the handshake: none of these sockets can join the group itself.
            Identity(f"{spec.workspace}, wire", spec.epoch, spec.rank, spec.key),
            {LinkPurpose.PAIR: tuple(sorted(peers))},
            spec.addresses,
            GroupRendezvous(engine),
            timeout=_PATIENCE_S,
            host_names=spec.rank_host_names(),
            check=partial(registry.check, engine),
            names=spec.members,
        )
    except (DistributedError, OSError):
        return {}  # the peer receives no stream, so the limit stays unknown
    found = {part.peer: sock for part, sock in links.items()}
    for sock in found.values():
        sock.settimeout(_PATIENCE_S)
    return found


def _send_stream(
    sock: socket.socket, seconds: float, piece_nbytes: int = _WIRE_PIECE_NBYTES
) -> None:
    """Send until the receiver closes the connection."""
    piece = bytes(piece_nbytes)
    end = time.perf_counter() + seconds * (1 + _WARM_UP) + _PATIENCE_S
    try:
        while time.perf_counter() < end:
            sock.sendall(piece)
    except OSError:
        return  # the receiver has closed, or the path broke, which the receiver sees as well


def _receive_stream(
    sock: socket.socket, seconds: float, piece_nbytes: int = _WIRE_PIECE_NBYTES
) -> tuple[int, float]:
    """Return received bytes and seconds; (0, 0) if the stream broke."""
    buffer = memoryview(bytearray(piece_nbytes))
    clock = time.perf_counter
    n_timed, took = 0, 0.0
    try:
        if not sock.recv_into(buffer):
            return 0, 0.0
        warm = clock() + seconds * _WARM_UP  # bytes already buffered arrive faster than the rest
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
        sock.close()  # with bytes unread, so that the sender gets an error at once
    return n_timed, took
