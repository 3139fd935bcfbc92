"""Measure limits of hosts and wires, and fit the cost model.

The limits are a copy in memory (plain numpy) and a tcp stream (plain sockets) over loopback or
between hosts. A connection between hosts is made and authenticated like those of a group.
"""

from __future__ import annotations

import itertools
import math
import mmap
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx import distributed as px
from phalanx.errors import DistributedError
from phalanx.protocol import Limit, Measurement

from ..connect.connector import connect_links
from ..connect.endpoints import close_all
from ..connect.handshake import Identity, LinkPurpose
from ..group.splits import GroupRendezvous
from ..world_spec import WorldSpec

# Larger than last-level caches (a copy within a cache is no limit of memory); a fraction of a second.
_COPY_NBYTES = 64 << 20

_SECONDS = 0.2
_PIECE_NBYTES = 1 << 20  # of the stream: a call costs about 1 % of the time to move a piece
# As long as on one machine; with many pairs of hosts all pairs share two seconds.
_WIRE_SECONDS = 2.0
_WARM_UP = 0.25  # part of that time that a stream may take to reach its speed before it is timed
_WIRE_PIECE_NBYTES = 256 << 10
_PATIENCE_S = 5.0  # judgement: the ranks are connected, so new links need a few round trips only


@dataclass(frozen=True)
class AlphaBeta:
    """Cost model ``seconds = alpha_s + nbytes * beta_s``.

    ``error`` is the root mean square of the relative errors.
    """

    alpha_s: float
    beta_s: float
    error: float
    n_points: int

    def seconds(self, nbytes: float) -> float:
        """Return the time that the model predicts for a size."""
        return self.alpha_s + nbytes * self.beta_s

    @property
    def rate_gbs(self) -> float:
        """Algorithm bandwidth for large messages in GB/s; infinite without a slope."""
        return 1e-9 / self.beta_s if self.beta_s > 0 else math.inf

    @property
    def half_nbytes(self) -> float:
        """Size in bytes with half that bandwidth: latency and transfer cost equal."""
        return self.alpha_s / self.beta_s if self.beta_s > 0 else math.inf

    @property
    def text(self) -> str:
        """The model in one line of text.

        Examples
        --------
        >>> AlphaBeta(3e-6, 1e-10, 0.07, 12).text
        '3 µs + bytes / 10 GB/s (off by 7 %)'
        """
        rate = f" + bytes / {self.rate_gbs:.3g} GB/s" if self.beta_s > 0 else ""
        return f"{self.alpha_s * 1e6:.3g} µs{rate} (off by {100 * self.error:.0f} %)"


def fit_alpha_beta(nbytes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta | None:
    """Fit the alpha-beta model: a non-negative latency and time per byte.

    Parameters
    ----------
    nbytes, seconds : sequences of float, of one length
        Sizes and times; times that are not positive and finite are ignored.

    Returns
    -------
    AlphaBeta or None
        None if fewer than two different sizes remain.

    Notes
    -----
    Weighted least squares with weight 1 / time, so that errors are relative: times span five
    decades, and without weights the largest size alone would decide the latency. If the
    unconstrained minimum has a negative part, one of the two is set to 0, whichever fits better.
    The model is Hockney's, Parallel Computing 20(3), 1994, doi:10.1016/S0167-8191(06)80021-9.

    Examples
    --------
    >>> found = fit_alpha_beta([0, 1e6, 2e6], [1e-5, 1.1e-4, 2.1e-4])
    >>> round(found.alpha_s, 9), round(found.rate_gbs, 6)
    (1e-05, 10.0)
    """
    n = np.asarray(nbytes, np.float64)
    t = np.asarray(seconds, np.float64)
    kept = np.isfinite(n) & (n >= 0) & np.isfinite(t) & (t > 0)
    n, t = n[kept], t[kept]
    if len(np.unique(n)) < 2:
        return None
    alpha, beta = 1 / t, n / t
    unit = float(beta.max())  # scale the columns (seconds^-1, bytes/s) to one magnitude
    scale = float(alpha.max())
    columns = np.stack([alpha / scale, beta / unit], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(t)), rcond=None)
    if a < 0 or b < 0:
        edges = [(_alone(columns[:, 0]), 0.0), (0.0, _alone(columns[:, 1]))]
        a, b = min(edges, key=lambda edge: _off(columns, edge))
    return AlphaBeta(float(a) / scale, float(b) / unit, _off(columns, (a, b)), len(t))


def _alone(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the least-squares factor that scales one column to ones."""
    return float(column.sum() / (column * column).sum())


def _off(columns: np.ndarray[tuple[int, int], np.dtype[np.float64]], ab: Sequence[float]) -> float:
    return float(np.sqrt(np.mean((columns @ np.asarray(ab) - 1) ** 2)))


def fit_measurements(points: Iterable[Measurement]) -> AlphaBeta | None:
    """Fit the median times of a sweep, without points with errors."""
    good = [m for m in points if m.nbytes > 0 and not m.n_wrong]
    return fit_alpha_beta([m.nbytes for m in good], [m.time_us * 1e-6 for m in good])


@dataclass(frozen=True)
class AlgorithmChange:
    """A change of algorithm between two neighbouring sizes."""

    below: int
    above: int
    before: str
    after: str

    @property
    def nbytes(self) -> float:
        """Position of the change on a logarithmic axis: the geometric mean."""
        return math.sqrt(self.below * self.above)


def algorithm_changes(points: Iterable[Measurement]) -> list[AlgorithmChange]:
    """Return the changes of algorithm, by size; unnamed algorithms are skipped."""
    named = sorted((m for m in points if m.nbytes > 0 and m.algorithm), key=lambda m: m.nbytes)
    return [
        AlgorithmChange(low.nbytes, high.nbytes, low.algorithm, high.algorithm)
        for low, high in itertools.pairwise(named)
        if low.algorithm != high.algorithm and low.nbytes < high.nbytes
    ]


def time_left(
    took: Sequence[tuple[int, float]], sizes: Sequence[int], most_s: float = math.inf
) -> float | None:
    """Estimate the remaining time of a sweep.

    Parameters
    ----------
    took : sequence of (int, float)
        Sizes that were measured, and the total seconds of each.
    sizes : sequence of int
        Sizes that remain.
    most_s : float, optional
        Limit of the time of one size: a sweep makes fewer calls when calls are slow. Without this
        limit, points of equal time would give an unreliable slope, and sizes grow fast.

    Returns
    -------
    float or None
        Seconds; None before the first size. After one size, all sizes are assumed to take as long.

    Examples
    --------
    >>> time_left([(8, 0.5)], [32, 128])
    1.0
    """
    if not took:
        return None
    fit = fit_alpha_beta([nbytes for nbytes, _ in took], [seconds for _, seconds in took])
    if fit is None:
        return len(sizes) * sum(seconds for _, seconds in took) / len(took)
    bound = max(most_s, *(seconds for _, seconds in took))
    return sum(min(bound, fit.seconds(nbytes)) for nbytes in sizes)


def measure_limits(
    transports: Collection[str] = ("arena", "tcp"), *, seconds: float = _SECONDS
) -> tuple[Limit, ...]:
    """Measure the limits of the transports on this machine.

    Parameters
    ----------
    transports : collection of str
        ``"arena"``: a copy in memory on one core; ``"tcp"``: one stream from thread to thread over
        127.0.0.1. Other transports have no known limit.
    seconds : float, optional
        Duration of each measurement.

    Returns
    -------
    tuple of Limit
        Each byte counts once, where it arrives. Small messages can be faster than the copy, because
        they fit in caches.

    Examples
    --------
    >>> [limit.name for limit in measure_limits(["tcp"], seconds=0.01)]
    ['tcp loopback']
    """
    limits = []
    if "arena" in transports:
        limits.append(_copy(seconds))
    if "tcp" in transports:
        limits.append(_stream(seconds))
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


def _stream(seconds: float) -> Limit:
    with closing(_accept()) as pair:
        sender, receiver = pair.ends
        thread = threading.Thread(target=_send, args=(sender, seconds), daemon=True)
        buffer = memoryview(bytearray(_PIECE_NBYTES))
        thread.start()
        n_received = receiver.recv_into(buffer)  # the timing starts after the first bytes
        start = time.perf_counter()
        n_timed = 0
        while n := receiver.recv_into(buffer):
            n_timed += n
        took = time.perf_counter() - start
        thread.join()
    return Limit(
        name="tcp loopback",
        transport="tcp",
        gbs=n_timed / took / 1e9,
        nbytes=n_received + n_timed,
        seconds=took,
        how="one stream over 127.0.0.1, thread to thread; bytes count once, where they arrive",
    )


class _Pair:
    """Both ends of a connection."""

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self.ends = sender, receiver

    def close(self) -> None:
        """Close both ends."""
        for end in self.ends:
            end.close()


def _accept() -> _Pair:
    """Connect to ourselves; connections from other processes are closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_PATIENCE_S)
        sender = socket.create_connection(listening.getsockname(), timeout=_PATIENCE_S)
        while True:
            receiver, address = listening.accept()
            if address == sender.getsockname():
                receiver.settimeout(_PATIENCE_S)
                return _Pair(sender, receiver)
            receiver.close()


def _send(sender: socket.socket, seconds: float) -> None:
    piece = bytes(_PIECE_NBYTES)
    end = time.perf_counter() + seconds
    try:
        for _ in range(8):  # a minimum, however short the time
            sender.sendall(piece)
        while time.perf_counter() < end:
            sender.sendall(piece)
        sender.shutdown(socket.SHUT_WR)
    except OSError:
        sender.close()  # the receiver caused the error and raises its own


def limits_of_ranks(
    group: px.Group | None = None, *, seconds: float = _SECONDS
) -> tuple[Limit, ...]:
    """Measure the hardware limits of the ranks; every rank calls it.

    Parameters
    ----------
    group : Group, optional
        ``None``: the group made by `init`.
    seconds : float, optional
        Duration of each measurement.

    Returns
    -------
    tuple of Limit
        On rank 0; empty on the others. On one host: the limits of `measure_limits`. On several
        hosts: the slowest plain stream between hosts that are neighbours in rank order. A stream
        that failed has the limit 0, and its text says so. Empty for the mpi backend.

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
    engine, registry = world._engine, world._registry
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
    found = {peer: socks[0] for peer, socks in links[LinkPurpose.PAIR].items()}
    for sock in found.values():
        sock.settimeout(_PATIENCE_S)
    return found


def _send_stream(sock: socket.socket, seconds: float) -> None:
    """Send until the receiver closes the connection."""
    piece = bytes(_WIRE_PIECE_NBYTES)
    end = time.perf_counter() + seconds * (1 + _WARM_UP) + _PATIENCE_S
    try:
        while time.perf_counter() < end:
            sock.sendall(piece)
    except OSError:
        return  # the receiver has closed, or the path broke, which the receiver sees as well


def _receive_stream(sock: socket.socket, seconds: float) -> tuple[int, float]:
    """Return received bytes and seconds; (0, 0) if the stream broke."""
    buffer = memoryview(bytearray(_WIRE_PIECE_NBYTES))
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
