"""A place where ranks without a supervisor meet: rank 0 hosts, the others are its guests.

It knows sockets and whom to let in; what the ranks say there is not its business.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import selectors
import socket
import struct
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from phalanx.errors import DistributedError

from ._deadline import Deadline
from ._listen import close_all, open_socket
from ._rendezvous import name_ranks
from ._same_user import is_same_user

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Guest", "Host", "MeetingRendezvous"]

_HELLO = struct.Struct("<32sI")  # digest of the world, rank
_KEY_NBYTES = 32
_LENGTH = struct.Struct("<I")
_MAX_NBYTES = 1 << 20  # a share is some hundred bytes
_TELL_S = 0.1  # into a buffer that is empty
_KNOCK_S = 2.0  # as in _connect: what a stranger may cost
_log = logging.getLogger(__name__)


class Host:
    """Rank 0's side: takes in each other rank once, and nobody else."""

    def __init__(
        self, listener: socket.socket, hello: bytes, size: int, *, is_insecure: bool
    ) -> None:
        self._listener = listener
        self._hello = hello
        self._size = size
        self._is_insecure = is_insecure
        self._guests: dict[int, socket.socket] = {}
        self._knocks: dict[socket.socket, tuple[bytearray, Deadline]] = {}

    def wait(self, key: bytes, deadline: Deadline) -> dict[int, socket.socket]:
        """Wait until all are there and have the key; their sockets by rank.

        Raises
        ------
        TimeoutError
            Names the ranks that did not come.
        """
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                while missing := sorted(set(range(1, self._size)) - self._guests.keys()):
                    _check_time(missing, deadline)
                    self._step(selector, key, deadline)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                _tell_all(self._guests.values(), str(error))
            close_all(self._guests.values())
            raise
        finally:
            close_all(self._knocks)
        return self._guests

    def _step(self, selector: selectors.BaseSelector, key: bytes, deadline: Deadline) -> None:
        left = deadline.remaining()
        for event, _ in selector.select(0.1 if left is None else min(0.1, left)):
            sock = event.fileobj
            if sock is self._listener:
                with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                    knock, _address = self._listener.accept()
                    knock.setblocking(False)
                    self._knocks[knock] = bytearray(), Deadline(_KNOCK_S)
                    selector.register(knock, selectors.EVENT_READ)
            elif isinstance(sock, socket.socket):
                self._listen_to(sock, selector, key)
        for sock, (_, limit) in list(self._knocks.items()):
            if limit.is_over():
                self._drop(sock, selector, "it said nothing")

    def _listen_to(self, sock: socket.socket, selector: selectors.BaseSelector, key: bytes) -> None:
        said, _ = self._knocks[sock]
        try:
            data = sock.recv(_HELLO.size - len(said))
        except OSError as error:
            self._drop(sock, selector, str(error))
            return
        said += data
        if not data:
            self._drop(sock, selector, "it went away")
        elif len(said) == _HELLO.size:
            digest, rank = _HELLO.unpack(said)
            if not hmac.compare_digest(digest, self._hello):
                self._drop(sock, selector, "a rank of another world")
            elif not 0 < rank < self._size or rank in self._guests:
                self._drop(sock, selector, f"rank {rank}, which is not missing")
            elif not self._is_insecure and not is_same_user(sock):
                self._drop(sock, selector, "a process of another user")
            else:
                selector.unregister(sock)
                del self._knocks[sock]
                self._guests[rank] = sock
                sock.send(key)  # into an empty buffer

    def _drop(self, sock: socket.socket, selector: selectors.BaseSelector, why: str) -> None:
        _log.info("dropped a connection: %s", why)
        selector.unregister(sock)
        del self._knocks[sock]
        sock.close()


def _check_time(missing: list[int], deadline: Deadline) -> None:
    if deadline.is_over():
        msg = f"{name_ranks(missing)} did not come within {deadline}"
        raise TimeoutError(msg)


class Guest:
    """Another rank's side; `OSError` means that rank 0 is not there, or not yet."""

    def __init__(self, host: str, port: int, hello: bytes, rank: int, *, is_insecure: bool) -> None:
        self.sock, self._address = open_socket(host, port, passive=False)
        self._hello = _HELLO.pack(hello, rank)
        self._is_insecure = is_insecure

    def enter(self, deadline: Deadline) -> bytes:
        """Connect and return the key; closes the socket if that fails."""
        try:
            self.sock.settimeout(deadline.remaining())
            self.sock.connect(self._address)
            self.sock.sendall(self._hello)
            key = _receive(self.sock, _KEY_NBYTES)
            self._check_peer()
        except BaseException:
            self.sock.close()
            raise
        return key

    def _check_peer(self) -> None:
        """Only now: before its first word nobody may have accepted the connection."""
        if self.sock.getsockname() == self.sock.getpeername():
            msg = "nobody listens"  # tcp joins a socket with itself where ports are reused
            raise ConnectionRefusedError(msg)
        if not self._is_insecure and not is_same_user(self.sock):
            msg = "what listens there is another user's"
            raise ConnectionRefusedError(msg)


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
            return msgspec.msgpack.decode(_take(self._others[0], deadline), type=list[bytes] | str)
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
    sock.settimeout(_left(deadline))
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _take(sock: socket.socket, deadline: Deadline) -> bytes:
    sock.settimeout(_left(deadline))
    (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size))
    if length > _MAX_NBYTES:
        msg = f"a share of {length} bytes"
        raise ValueError(msg)
    return _receive(sock, length)


def _left(deadline: Deadline) -> float | None:
    left = deadline.remaining()
    return None if left is None else max(left, 0.001)  # 0 would mean: do not block


def _receive(sock: socket.socket, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        piece = sock.recv(nbytes - len(data))
        if not piece:
            msg = "the connection was closed"
            raise ConnectionError(msg)
        data += piece
    return bytes(data)
