"""The rendezvous of ranks that have met: rank 0 collects what they say and hands it out.

It knows connected sockets; who is at the other end was settled in `_meeting_point`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import DistributedError

from ._deadline import Deadline
from ._listen import close_all
from ._rendezvous import name_ranks

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MeetingRendezvous", "receive", "time_left"]

_LENGTH = struct.Struct("<I")
_MAX_NBYTES = 1 << 20  # a share is some hundred bytes
_TELL_S = 0.1  # into a buffer that is empty


class MeetingRendezvous:
    """A `Rendezvous` over the sockets of a meeting; a context manager that closes them."""

    def __init__(
        self, rank: int, size: int, others: Mapping[int, socket.socket], key: bytes
    ) -> None:
        self.key = key
        self._rank = rank
        self._size = size
        self._others = others

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks meet."""
        return self._size

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        """As `Rendezvous.all_gather`: rank 0 collects and hands out."""
        deadline = Deadline(timeout)
        try:
            came = self._swap(data, deadline)
        except TimeoutError as error:
            msg = f"not every rank came to the rendezvous within {deadline}"
            raise TimeoutError(msg) from error
        except (OSError, ValueError) as error:
            msg = f"rank {self._rank}: a rank left the rendezvous ({error})"
            raise DistributedError(msg) from error
        if isinstance(came, str):
            raise TimeoutError(came)
        return came

    def _swap(self, data: bytes, deadline: Deadline) -> list[bytes] | str:
        """Return the shares of all, or why there are none."""
        if self._rank:
            _send(self._others[0], data, deadline)
            came = msgspec.msgpack.decode(_take(self._others[0], deadline), type=list[bytes] | str)
            if not isinstance(came, str) and len(came) != self._size:
                msg = f"{len(came)} shares of {self._size}"
                raise ValueError(msg)
            return came
        parts = [data]
        for rank in range(1, self._size):
            try:
                parts.append(_take(self._others[rank], deadline))
            except TimeoutError:
                why = f"{name_ranks([rank])} did not come within {deadline}"
                _tell_all(self._others.values(), why)
                return why
        packed = msgspec.msgpack.encode(parts)
        for sock in self._others.values():
            _send(sock, packed, deadline)
        return parts

    def __enter__(self) -> Self:
        """Meet; the end of the block closes the sockets."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the sockets."""
        close_all(self._others.values())


def _tell_all(socks: Iterable[socket.socket], why: str) -> None:
    """Tell the guests why there will be no shares; who does not listen learns nothing."""
    for sock in socks:
        with contextlib.suppress(OSError):
            _send(sock, msgspec.msgpack.encode(why), Deadline(_TELL_S))


def _send(sock: socket.socket, data: bytes, deadline: Deadline) -> None:
    sock.settimeout(time_left(deadline))
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _take(sock: socket.socket, deadline: Deadline) -> bytes:
    (length,) = _LENGTH.unpack(receive(sock, _LENGTH.size, deadline))
    if length > _MAX_NBYTES:
        msg = f"a share of {length} bytes"
        raise ValueError(msg)
    return receive(sock, length, deadline)


def time_left(deadline: Deadline) -> float | None:
    """What a socket's timeout is to be."""
    left = deadline.remaining()
    return None if left is None else max(left, 0.001)  # 0 would mean: do not block


def receive(sock: socket.socket, nbytes: int, deadline: Deadline) -> bytes:
    """Read exactly so many bytes."""
    data = bytearray()
    while len(data) < nbytes:
        sock.settimeout(time_left(deadline))  # anew: whoever sends a byte a second gets no more
        piece = sock.recv(nbytes - len(data))
        if not piece:
            msg = "the connection was closed"
            raise ConnectionError(msg)
        data += piece
    return bytes(data)
