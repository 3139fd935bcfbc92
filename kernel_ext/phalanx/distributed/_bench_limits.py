"""What this machine can do without us: a copy in its memory, a stream over its loopback.

Plain numpy and sockets, measured for a moment while nothing else of ours runs; it knows no group.
"""

from __future__ import annotations

import mmap
import socket
import threading
import time
from collections.abc import Collection
from contextlib import closing, suppress

import numpy as np
from numpy.typing import NDArray

from phalanx.protocol import Limit

__all__ = ["measure_limits", "unknown_limit"]

# Beyond what last-level caches hold (a copy in a cache is no limit of memory), half a breath long.
_COPY_NBYTES = 64 << 20
_SECONDS = 0.2
_PIECE_NBYTES = 1 << 20  # of the stream: a call costs a hundredth of what it moves
_PATIENCE_S = 5.0


def measure_limits(
    transports: Collection[str] = ("arena", "tcp"), *, seconds: float = _SECONDS
) -> tuple[Limit, ...]:
    """Measure what bounds the transports on this machine.

    Parameters
    ----------
    transports : collection of str
        ``"arena"``: a copy from memory to memory on one core; ``"tcp"``: one stream from thread to
        thread over 127.0.0.1. Others have no limit that is known here.
    seconds : float, optional
        How long each is measured.

    Returns
    -------
    tuple of Limit
        Bytes count once where they arrive. Small messages can be faster than the copy: caches hold
        them.

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
    """Return what is known of a wire over which no plain stream came: that it did not.

    Examples
    --------
    >>> unknown_limit("a", "b").name, unknown_limit("a", "b").gbs
    ('wire between hosts', 0.0)
    """
    how = f"no plain tcp stream came through from {source} to {target}; phalanx doctor looks why"
    return Limit("wire between hosts", "tcp", 0.0, 0, 0.0, how)


def _plain(nbytes: int) -> NDArray[np.uint8]:
    """Return memory of this process alone: numpy's is shared with other ranks where this is one."""
    room = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    huge_pages: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux's; as numpy's own
    if huge_pages is not None:
        with suppress(OSError):  # a kernel without them
            room.madvise(huge_pages)
    return np.frombuffer(room, np.uint8)


def _copy(seconds: float) -> Limit:
    source, target = _plain(_COPY_NBYTES), _plain(_COPY_NBYTES)
    source[:] = 1
    target[:] = source  # every page is there from now on
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
        n_received = receiver.recv_into(buffer)  # set-up is over when the first bytes are there
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
    """Two ends of a connection."""

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self.ends = sender, receiver

    def close(self) -> None:
        """Close both."""
        for end in self.ends:
            end.close()


def _accept() -> _Pair:
    """Connect to ourselves; whoever else comes to the port is sent away."""
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
        for _ in range(8):  # so much at least, however short the time
            sender.sendall(piece)
        while time.perf_counter() < end:
            sender.sendall(piece)
        sender.shutdown(socket.SHUT_WR)
    except OSError:
        sender.close()  # the receiver, whose failure it is, says so
