"""Carry framed messages between a supervisor and its ranks or clients.

The connection is a stream socket. A frame is a 4-byte little-endian length and one MessagePack
record of a known type. Any other data ends the channel.
"""

from __future__ import annotations

import itertools
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec

from .os_text import encode_message
from .rank import RankAnswer, RankOrder, ToRank, ToSupervisor, Withdraw

MAX_FRAME = 64 << 20  # only stops corrupt lengths: a rendezvous share has some hundred bytes
WITHDRAW_S = 2.0  # a supervisor that is alive answers at once
_GONE = "the supervisor of this host is gone"
_LENGTH = struct.Struct("<I")


class ChannelClosed(ConnectionError):
    """Report that the other side has closed a rank's channel."""


def pack_frame(message: msgspec.Struct) -> bytes:
    body = encode_message(message)
    return _LENGTH.pack(len(body)) + body


def read_frame(sock: socket.socket) -> bytes:
    """Read one frame from a blocking socket, and no byte more.

    Raises
    ------
    ChannelClosed
        The other side is gone.
    TimeoutError
        As the socket's timeout says.
    """
    (length,) = _LENGTH.unpack(_read(sock, _LENGTH.size))
    return _read(sock, length)


def _read(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        piece = sock.recv(nbytes - len(data))
        if not piece:
            raise ChannelClosed(_GONE)
        data += piece
    return data


class FrameReader:
    """Cut received bytes into frames of at most ``most_nbytes``.

    Examples
    --------
    >>> from phalanx.protocol import Refused
    >>> reader = FrameReader()
    >>> frame = pack_frame(Refused(1, -1, "no"))
    >>> list(reader.feed(frame[:3])), len(list(reader.feed(frame[3:])))
    ([], 1)
    """

    def __init__(self, most_nbytes: int = MAX_FRAME) -> None:
        self._most_nbytes = most_nbytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes and return the bodies of complete frames.

        Raises
        ------
        ValueError
            A frame says it is longer than that.
        """
        self._buffer += data
        bodies = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._most_nbytes:
                msg = f"a frame of {length} bytes (at most {self._most_nbytes})"
                raise ValueError(msg)
            if len(self._buffer) < _LENGTH.size + length:
                break
            bodies.append(bytes(self._buffer[_LENGTH.size : _LENGTH.size + length]))
            del self._buffer[: _LENGTH.size + length]
        return bodies


class Channel:
    """Send requests and notices from a rank to its supervisor.

    Safe to use from any thread. A request has an answer; a notice has none. One lock orders the
    writes. Another lock lets only one request at a time wait for its answer. A notice therefore
    never waits behind a long rendezvous.

    A rank that takes orders calls `serve`. From then on one thread reads the socket (`read`) and
    hands the answers to the waiting request. A script takes no orders: the thread that waits reads.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(ToRank)
        self._ids = itertools.count(1)
        self._send_lock = threading.Lock()
        self._request_lock = threading.Lock()
        self._take: Callable[[RankOrder], None] | None = None
        self._early: list[RankOrder] = []  # that came before `serve`
        self._answers: queue.SimpleQueue[RankAnswer | None] = queue.SimpleQueue()

    def serve(self, take: Callable[[RankOrder], None]) -> int:
        """Give orders to ``take`` from now on; return the socket's descriptor.

        The caller calls `read` whenever the descriptor is readable. No request may wait now.
        """
        self._take = take
        for order in self._early:
            take(order)
        return self._sock.fileno()

    def read(self) -> bool:
        """Take what has come; return False at the end of the channel."""
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            data = b""
        for body in self._reader.feed(data):
            message: ToRank = self._decoder.decode(body)
            if isinstance(message, RankAnswer):
                self._answers.put(message)
            else:
                (self._take or self._early.append)(message)
        if not data:
            self._answers.put(None)
        return bool(data)

    def next_id(self) -> int:
        """Return the number of the next request."""
        return next(self._ids)

    def notify(self, message: ToSupervisor) -> None:
        """Send a notice.

        Raises
        ------
        ChannelClosed
            The supervisor is gone.
        """
        frame = pack_frame(message)
        try:
            with self._send_lock:
                self._sock.sendall(frame)
        except OSError as error:
            raise ChannelClosed(_GONE) from error

    def request(
        self, message: ToSupervisor, request_id: int, *, timeout: float | None
    ) -> RankAnswer:
        """Send a request and wait for its answer.

        Answers to requests that were given up are skipped.

        Raises
        ------
        TimeoutError
            No answer within ``timeout`` seconds.
        ChannelClosed
            The supervisor is gone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._request_lock:
            self.notify(message)
            return self._answer({request_id}, deadline)

    def withdraw(self, request_id: int) -> RankAnswer:
        """Withdraw a request that timed out or was interrupted.

        Returns the answer to the request if the supervisor had sent one already, else a `Refused`
        that names the missing ranks.

        Raises
        ------
        TimeoutError, ChannelClosed
            As `request`.
        """
        over = Withdraw(self.next_id(), request_id)
        with self._request_lock:
            self.notify(over)
            return self._answer({request_id, over.id}, time.monotonic() + WITHDRAW_S)

    def _answer(self, ids: set[int], deadline: float | None) -> RankAnswer:
        is_served = self._take is not None
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not is_served and self._answers.empty() and self._is_readable(left_s):
                self.read()
            try:
                answer = self._answers.get(timeout=left_s if is_served else 0.0)
            except queue.Empty:
                if left_s == 0.0:
                    msg = "the supervisor did not answer in time"
                    raise TimeoutError(msg) from None
                continue
            if answer is None:
                self._answers.put(None)  # for the next request
                raise ChannelClosed(_GONE)
            if answer.id in ids:
                return answer

    def _is_readable(self, timeout_s: float | None) -> bool:
        # poll, not settimeout: a timeout on the socket would also hold for a notice that another
        # thread sends meanwhile.
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._sock.close()
