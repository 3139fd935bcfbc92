"""A place where ranks without a supervisor meet: rank 0 hosts, the others are its guests.

It knows sockets and whom to let in; what the ranks say there is not its business. A guest shows
that it has the key of the world's file, or, where there is none, is a process of our user; then it
says who it is. Rank 0 says welcome, and when all are there gives each the key of this run. A
guest that cannot be let in is told why, as are all the others if that is the end of the world.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import selectors
import socket

from phalanx.errors import DistributedError

from ._attempt import Attempt, is_open
from ._deadline import Deadline
from ._guest import HELLO, KEY, LATE, LENGTH, MAGIC, REFUSED, WELCOME, World
from ._handshake import Acceptor, HandshakeRejected
from ._launched_by import Launcher, are_two_jobs
from ._listen import close_all
from ._rendezvous import name_ranks
from ._same_user import is_same_user

__all__ = ["Host"]

# As in _connect: what a stranger may cost, and how many at a time.
_KNOCK_S = 2.0
_MAX_KNOCKS = 64
_DROPS_TOLD = 8
_HEARD_S = 0.5  # a reason is on its way for microseconds, and read at once
_log = logging.getLogger(__name__)


class _Knock:
    """A connection on its way to be a guest."""

    def __init__(self, sock: socket.socket, world: World) -> None:
        self.sock = sock
        self.deadline = Deadline(_KNOCK_S)
        self._said = bytearray()
        self._proof: Attempt | None = None
        self._proven: int | None = None  # rank
        if world.key is not None:
            self._proof = Attempt(
                sock, Acceptor(world.identity(0), lambda rank, lane, stripe: True), _KNOCK_S
            )

    def hear(self) -> bytes | None:
        """Its hello, once it is whole; `OSError` or `HandshakeRejected` if nothing comes of it."""
        if self._proof is not None:
            if not self._proof.advance():
                return None
            self._proven, self._proof = self._proof.handshake.peer, None
        try:
            data = self.sock.recv(HELLO.size - len(self._said))
        except BlockingIOError:
            return None
        if not data:
            msg = "it went away"
            raise HandshakeRejected(msg)
        self._said += data
        if not MAGIC.startswith(self._said[: len(MAGIC)]):
            msg = "not a rank"
            raise HandshakeRejected(msg)
        if len(self._said) < HELLO.size:
            return None
        if self._proven not in {None, HELLO.unpack(self._said)[3]}:
            msg = f"rank {self._proven}, which says that it is another"
            raise HandshakeRejected(msg)
        return bytes(self._said)


class Host:
    """Rank 0's side: takes in each other rank once, and nobody else."""

    def __init__(self, listener: socket.socket, world: World) -> None:
        self._listener = listener
        self._world = world
        self._guests: dict[int, socket.socket] = {}
        self._knocks: dict[socket.socket, _Knock] = {}
        self._selector = selectors.DefaultSelector()
        self._n_dropped = 0
        self._hint = ""  # why the last rank that seemed to be one of ours was not let in

    def wait(self, key: bytes, deadline: Deadline) -> dict[int, socket.socket]:
        """Wait until all are there, and give them the key; their sockets by rank.

        Raises
        ------
        TimeoutError
            Names the ranks that did not come; those that did are told.
        DistributedError
            The ranks that came cannot be one world; they are told.
        """
        try:
            self._selector.register(self._listener, selectors.EVENT_READ)
            while missing := self._missing():
                if deadline.is_over():
                    hint = f" ({self._hint})" if self._hint else ""
                    msg = f"{name_ranks(missing)} did not come within {deadline}{hint}"
                    self._tell_all(LATE, msg)
                    raise TimeoutError(msg)  # noqa: TRY301 - closed below, as for any other end
                self._step(deadline)
            for guest in self._guests.values():
                with contextlib.suppress(OSError):  # it is gone, as the rendezvous will find
                    guest.send(KEY + key)  # into an empty buffer
        except BaseException:
            close_all(self._guests.values())
            raise
        finally:
            close_all(self._knocks)
            self._selector.close()
            if self._n_dropped > _DROPS_TOLD:
                _log.info("dropped %d connections", self._n_dropped)
        return self._guests

    def _missing(self) -> list[int]:
        """Who is not there; one that came and went away again is not."""
        if len(self._guests) == self._world.size - 1:  # else it has no hurry
            for rank in [rank for rank, sock in self._guests.items() if not is_open(sock)]:
                self._guests.pop(rank).close()
        return sorted(set(range(1, self._world.size)) - self._guests.keys())

    def _step(self, deadline: Deadline) -> None:
        left = deadline.remaining()
        for event, _ in self._selector.select(0.1 if left is None else min(0.1, left)):
            if event.fileobj is self._listener:
                self._accept()
            elif event.fileobj in self._knocks:  # else dropped since
                self._hear(self._knocks[event.fileobj])
        for knock in [knock for knock in self._knocks.values() if knock.deadline.is_over()]:
            self._drop(knock, "it did not say in time who it is")

    def _accept(self) -> None:
        for _ in range(_MAX_KNOCKS):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Out of descriptors: those of strangers are the ones to give back.
                if error.errno not in {errno.EMFILE, errno.ENFILE} or not self._knocks:
                    msg = f"rank 0 cannot take in the others: {error.strerror}"
                    self._tell_all(REFUSED, msg)
                    raise DistributedError(msg) from error
                self._drop(next(iter(self._knocks.values())), "no descriptor was left")
                continue
            if len(self._knocks) >= _MAX_KNOCKS:
                self._drop(next(iter(self._knocks.values())), "too many connections at once")
            sock.setblocking(False)
            self._knocks[sock] = knock = _Knock(sock, self._world)
            self._selector.register(sock, selectors.EVENT_READ)
            self._hear(knock)  # its words are there already, most often

    def _hear(self, knock: _Knock) -> None:
        try:
            hello = knock.hear()
            if hello is not None:
                self._judge(knock, hello)
        except OSError as error:
            self._drop(knock, error.strerror or str(error))
        except HandshakeRejected as error:
            self._drop(knock, str(error))

    def _judge(self, knock: _Knock, hello: bytes) -> None:
        world = self._world
        _magic, version, digest, rank, *launcher = HELLO.unpack(hello)
        theirs, ours = version.rstrip(b"\0").decode(errors="replace"), world.version
        if world.key is None and not world.is_insecure and not is_same_user(knock.sock):
            self._drop(knock, "a process of another user")
        elif digest != world.digest:
            self._refuse(knock, "rank 0 has read another MLX_HOSTFILE: another job is there")
        elif (
            _is_near(knock.sock)
            and not world.is_insecure
            and (are_two_jobs(world.launcher, Launcher(*launcher)))
        ):
            self._refuse(
                knock,
                (
                    f"rank {rank} was started by process {launcher[0]}, rank 0 by process "
                    f"{world.launcher.pid}: two jobs with the same ports? Give each its own; or, for "
                    "ranks that you start one by one, set PHALANX_INSECURE=1"
                ),
            )
        elif theirs != ours:
            self._fail(
                knock,
                (f"rank {rank} has phalanx {theirs}, rank 0 has {ours}: all need the same version"),
            )
        elif (
            rank >= world.size
            or rank == 0
            or (rank in self._guests and is_open(self._guests[rank]))
        ):
            self._fail(
                knock,
                (
                    f"two processes say that they are rank {rank} of {world.size}: "
                    "two jobs with the same ports?"
                ),
            )
        else:
            knock.sock.send(WELCOME)
            self._forget(knock)
            if rank in self._guests:
                self._guests[rank].close()
            self._guests[rank] = knock.sock

    def _refuse(self, knock: _Knock, why: str) -> None:
        """Send one away that is honest, and does not belong here."""
        _tell_last(knock.sock, why)
        self._hint = why
        self._drop(knock, why)

    def _fail(self, knock: _Knock, why: str) -> None:
        """Give up: whose arrays would be summed nobody knows."""
        _tell_last(knock.sock, why)
        self._tell_all(REFUSED, why)
        raise DistributedError(why)

    def _tell_all(self, kind: bytes, why: str) -> None:
        for guest in self._guests.values():
            _tell(guest, kind, why)

    def _drop(self, knock: _Knock, why: str) -> None:
        self._n_dropped += 1
        if self._n_dropped <= _DROPS_TOLD:
            _log.info("dropped a connection: %s", why)
        if "another key" in why:
            self._hint = f"{why} was dropped; is PHALANX_KEY_FILE the same for all ranks?"
        self._forget(knock)
        knock.sock.close()

    def _forget(self, knock: _Knock) -> None:
        self._selector.unregister(knock.sock)
        del self._knocks[knock.sock]


def _is_near(sock: socket.socket) -> bool:
    return ipaddress.ip_address(sock.getpeername()[0].partition("%")[0]).is_loopback


def _tell(sock: socket.socket, kind: bytes, why: str) -> None:
    text = why.encode()[:4096]
    with contextlib.suppress(OSError):  # it is gone: it needs no reason
        sock.send(kind + LENGTH.pack(len(text)) + text)


def _tell_last(sock: socket.socket, why: str) -> None:
    """Tell, and wait until it has been heard: whose a closed socket was nobody could see."""
    _tell(sock, REFUSED, why)
    with contextlib.suppress(OSError):
        sock.settimeout(_HEARD_S)
        sock.recv(1)
