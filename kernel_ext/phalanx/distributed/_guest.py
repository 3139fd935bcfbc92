"""What ranks without a supervisor say when they meet, and the side of those that are not rank 0.

It knows one connection; whom to let in is decided by rank 0, in `_meeting_point`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import phalanx

from ._deadline import Deadline
from ._handshake import Identity, Initiator
from ._launched_by import Launcher
from ._listen import open_socket
from ._meeting import receive, time_left
from ._same_user import is_same_user

__all__ = [
    "HELLO",
    "KEY",
    "LATE",
    "LENGTH",
    "MAGIC",
    "REFUSED",
    "WELCOME",
    "Guest",
    "MeetingRefused",
    "World",
]

MAGIC = b"phalanxM"
HELLO = struct.Struct("<8s32s32sIQQ")  # magic, version, digest of the world, rank, its launcher
LENGTH = struct.Struct("<H")  # of a reason
WELCOME, KEY, REFUSED, LATE = b"W", b"K", b"R", b"T"
_KEY_NBYTES = 32
_ATTEMPT_S = 5.0  # until rank 0 says welcome; from then on it is known to be there


class MeetingRefused(Exception):
    """This world cannot be, most often in rank 0's words; ``is_late``: somebody did not come."""

    def __init__(self, message: str, *, is_late: bool) -> None:
        super().__init__(message)
        self.is_late = is_late


@dataclass(frozen=True)
class World:
    """What all ranks of a bare environment know of it, and who started this one."""

    digest: bytes
    size: int
    launcher: Launcher
    is_insecure: bool = False
    key: bytes | None = field(default=None, repr=False)
    version: str = phalanx.__version__

    def identity(self, rank: int) -> Identity:
        """Who a rank is while it proves that it has the key; there must be one.

        Of a workspace and an epoch that no group has: no proof fits both.
        """
        assert self.key is not None
        return Identity(f"meeting {self.digest.hex()}", 0, rank, self.key)

    def hello(self, rank: int) -> bytes:
        """What a rank says of itself."""
        return HELLO.pack(MAGIC, self.version.encode(), self.digest, rank, *self.launcher)


class Guest:
    """Another rank's side; `OSError` means that rank 0 is not there, or not yet."""

    def __init__(self, host: str, port: int, world: World, rank: int) -> None:
        self.sock, self._address = open_socket(host, port, passive=False)
        self._world = world
        self._rank = rank

    def enter(self, deadline: Deadline) -> bytes:
        """Connect and return the key; closes the socket if that fails.

        Raises
        ------
        OSError, HandshakeRejected
            Nobody is there, or somebody else.
        MeetingRefused
            Rank 0 is, and says why this cannot be; or has not said anything in time.
        """
        left = deadline.remaining()
        soon = Deadline(_ATTEMPT_S if left is None else min(_ATTEMPT_S, left))
        try:
            self.sock.settimeout(time_left(soon))
            self.sock.connect(self._address)
            if self._world.key is not None:
                self._prove(soon)
            self.sock.sendall(self._world.hello(self._rank))
            kind = receive(self.sock, 1, soon)
            self._check_peer(kind)
            if kind == WELCOME:
                kind = self._wait(deadline)
            return self._answer(kind, deadline)
        except BaseException:
            self.sock.close()
            raise

    def _wait(self, deadline: Deadline) -> bytes:
        """Wait for the others, as rank 0 does."""
        try:
            return receive(self.sock, 1, deadline)
        except TimeoutError:
            msg = f"not every rank came within {deadline}; rank 0 did"
            raise MeetingRefused(msg, is_late=True) from None

    def _prove(self, deadline: Deadline) -> None:
        one = Initiator(self._world.identity(self._rank), peer=0)
        while one.needs:
            self.sock.sendall(one.take())
            one.receive(receive(self.sock, one.needs, deadline))

    def _check_peer(self, kind: bytes) -> None:
        """Only now: before its first word nobody may have accepted the connection."""
        if self.sock.getsockname() == self.sock.getpeername():
            msg = "nobody listens"  # tcp joins a socket with itself where ports are reused
            raise ConnectionRefusedError(msg)
        world = self._world
        if kind not in {WELCOME, REFUSED, LATE}:
            msg = "what listens there is no rank"
            raise ConnectionRefusedError(msg)
        if world.key is None and not world.is_insecure and not is_same_user(self.sock):
            msg = "what listens there is another user's"
            raise ConnectionRefusedError(msg)

    def _answer(self, kind: bytes, deadline: Deadline) -> bytes:
        if kind == KEY:
            return receive(self.sock, _KEY_NBYTES, deadline)
        if kind not in {REFUSED, LATE}:
            msg = "what listens there is no rank"
            raise ConnectionRefusedError(msg)
        (length,) = LENGTH.unpack(receive(self.sock, LENGTH.size, deadline))
        text = receive(self.sock, length, deadline).decode(errors="replace")
        raise MeetingRefused(text, is_late=kind == LATE)
