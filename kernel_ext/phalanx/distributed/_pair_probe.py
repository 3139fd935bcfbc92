"""Times the path between two ranks on chosen addresses: a world of two, made and closed for it.

Who the two are and how they meet is the caller's business; the bytes go as those of any group do.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from ._group import Group
from ._pairs import recv, send
from ._rendezvous import Rendezvous
from ._world import HostMemory, WorldSpec, form_group

__all__ = ["PairTimes", "time_pair"]

# Enough for a steady median, and over in about half a second even at 1 Gbit/s (64 MiB: 0.54 s).
_PINGS, _WARM_UP = 200, 20
_PINGS_S = 0.25
_PIECE_NBYTES = 4 << 20
_STREAM_S = 0.2
_MOST_PIECES = 64


@dataclass(frozen=True)
class PairTimes:
    """Half a round trip of 8 bytes, and bytes per second each way, seen from rank 0."""

    latency_us: float
    there_gbs: float
    back_gbs: float


def time_pair(
    rendezvous: Rendezvous, address: str, key: bytes, names: tuple[str, str], timeout: float
) -> PairTimes | None:
    """Time the path to the other rank; both call it.

    Parameters
    ----------
    rendezvous : Rendezvous
        Where the two meet: rank 0 and rank 1.
    address : str
        Where this one listens.
    key : bytes
        The secret that both prove to have.
    names : tuple of str
        What the two hosts are called.
    timeout : float
        Seconds until they must be connected, and that each exchange may take.

    Returns
    -------
    PairTimes or None
        The times on rank 0, nothing on rank 1.

    Raises
    ------
    DistributedError
        They cannot be connected, or the path broke.
    """
    spec = WorldSpec(
        rank=rendezvous.rank, size=2, epoch=1, workspace="config", key=key, hosts=(0, 1),
        slots=(0, 0), host_names=names, addresses=(address,), transport="tcp",
    )  # fmt: skip
    memory = HostMemory(spec)
    try:
        with Group(form_group(spec, rendezvous, memory, timeout=timeout), spec) as group:
            latency_us = _latency(group, timeout)
            there = _stream(group, 0, timeout)
            back = _stream(group, 1, timeout)
            group.barrier(timeout)
    finally:
        memory.close()
    return PairTimes(latency_us, there, back) if spec.rank == 0 else None


def _latency(group: Group, timeout: float) -> float:
    """Return half a round trip in microseconds, on rank 0."""
    token = np.zeros(1, dtype=np.int64)
    times = []
    end_s = time.perf_counter() + _PINGS_S
    for turn in range(_WARM_UP + _PINGS):
        start_s = time.perf_counter()
        if group.rank() == 0:
            # 1: the last one, as the time is over.
            token[0] = start_s > end_s and turn > _WARM_UP
            send(token, 1, group=group, timeout=timeout)
            recv((1,), np.int64, 1, group=group, timeout=timeout)
            times.append(time.perf_counter() - start_s)
        else:
            token = recv((1,), np.int64, 0, group=group, timeout=timeout)
            send(token, 0, group=group, timeout=timeout)
        if token[0]:
            break
    return statistics.median(times[_WARM_UP:]) * 1e6 / 2 if times else 0.0


def _stream(group: Group, source: int, timeout: float) -> float:
    """Return the GB/s of one direction, on rank 0.

    The first piece warms up and tells how many are worth while; a word goes back at the end, as
    what is sent may still be on its way.
    """
    other, is_source = 1 - source, group.rank() == source
    piece = np.zeros(_PIECE_NBYTES, dtype=np.uint8)
    engine = group._engine  # receives into the same piece: fresh memory would be timed as well
    word = np.zeros(1, dtype=np.int64)

    def go(pieces: int) -> float:
        start_s = time.perf_counter()
        for _ in range(pieces):
            if is_source:
                engine.send(piece, other, timeout)
            else:
                engine.recv(piece, source, timeout)
        if is_source:
            recv((1,), np.int64, other, group=group, timeout=timeout)
        else:
            send(word, source, group=group, timeout=timeout)
        return time.perf_counter() - start_s

    go(1)
    once_s = go(1)
    # The source decides, and tells: the two have not measured the same.
    if is_source:
        word[0] = min(_MOST_PIECES, max(2, int(_STREAM_S / max(once_s, 1e-6))))
        send(word, other, group=group, timeout=timeout)
    else:
        word = recv((1,), np.int64, source, group=group, timeout=timeout)
    pieces = int(word[0])
    return pieces * _PIECE_NBYTES / max(go(pieces), 1e-9) / 1e9
