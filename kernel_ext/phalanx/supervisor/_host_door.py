"""The root's door for the supervisors of other hosts: each comes in by the key it was given.

It knows the socket and keys, and has a host whose connection has broken come in again, with nothing
lost; what hosts say is theirs who expect them. Opened when there is a host to expect: a world of
one host never listens beyond this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from phalanx.errors import DistributedError
from phalanx.protocol import MAX_FRAME
from phalanx.protocol.host_letters import FromHostLetter
from phalanx.protocol.hosts import Disowned, FromHost, HostUp, Rejoin, Rejoined, ToHost

from ._curve import only_clients
from ._letters import Letters

__all__ = ["HostDoor"]

log = logging.getLogger(__name__)

DOMAIN = "phalanx"  # of zmq's authentication
HANDSHAKE_MS = 5000  # what a stranger may hold a descriptor for
MESSAGE_MAX_NBYTES = MAX_FRAME + (1 << 20)  # what a rank may say, and what its host adds
# What is kept for one host. One of ours says with each beat what it has heard; what is said to it
# meanwhile is commands, and input by the window.
KEPT_MAX_NBYTES = 64 << 20


class _Visitor:
    """One host that may come: whom to hand what it says, and how to reach it once it has come.

    ``identity`` is that of its newest connection, empty while it has none; ``address`` is where
    that comes from.
    """

    def __init__(self, take: Callable[[FromHost], None], fail: Callable[[str], None]) -> None:
        self.take = take
        self.fail = fail
        self.letters = Letters()
        self.identity = b""
        self.address = ""
        self.turn = 0
        self.is_given_up = False


class HostDoor:
    """The socket on which hosts' supervisors speak with the root."""

    def __init__(self) -> None:
        self._visitors: dict[bytes, _Visitor] = {}  # by public key
        self._undo = contextlib.ExitStack()
        self._socket: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._decoder = msgspec.msgpack.Decoder(FromHostLetter)
        self.public_key = b""
        self.endpoints: tuple[str, ...] = ()

    def open(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Listen on these addresses; returns those of them that can be had. Once only.

        Raises
        ------
        DistributedError
            None of them can be listened on.
        """
        self.public_key, secret_key = zmq.curve_keypair()
        context = self._undo.enter_context(zmq.asyncio.Context())
        self._undo.enter_context(only_clients(context, self._visitors.keys(), DOMAIN))
        sock = self._undo.enter_context(context.socket(zmq.ROUTER))
        sock.linger = 500  # ms: the last word still goes out
        sock.sndhwm = sock.rcvhwm = 0  # a full ROUTER drops; a host that takes nothing is lost soon
        sock.router_mandatory = True  # says so of a host that has gone
        sock.handshake_ivl, sock.maxmsgsize = HANDSHAKE_MS, MESSAGE_MAX_NBYTES
        sock.ipv6 = True
        sock.curve_server = True
        # With a domain that is enforced nobody gets in when keys cannot be asked about.
        sock.zap_domain = DOMAIN.encode()
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        sock.curve_publickey, sock.curve_secretkey = self.public_key, secret_key
        bound = _bind_all(sock, addresses)
        self.endpoints = tuple(bound.values())
        self._socket = sock
        self._task = asyncio.get_running_loop().create_task(self._serve(sock))
        self._task.add_done_callback(self._on_served)
        return tuple(bound)

    def expect(
        self, key: bytes, take: Callable[[FromHost], None], fail: Callable[[str], None]
    ) -> None:
        """Let in whoever has this (Z85) key.

        ``take`` gets what it says; ``fail`` is told when it says what it may not, or, with no words
        for it, when its connection has broken: it may come in again, which is a `Rejoin`.
        """
        self._visitors[key] = _Visitor(take, fail)

    async def _serve(self, sock: zmq.asyncio.Socket) -> None:
        while True:
            frames = await sock.recv_multipart(copy=False)
            key = str(frames[-1].get("User-Id")).encode()
            # One of IPv4 is told in the form of IPv6, which this socket speaks too.
            address = str(frames[-1].get("Peer-Address")).removeprefix("::ffff:")
            self._hear(key, frames[0].bytes, address, [frame.bytes for frame in frames[1:]])

    def _on_served(self, task: asyncio.Task[None]) -> None:
        """After a mistake of ours: nobody is heard any more, which must not look like silence."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("hosts cannot be heard any more", exc_info=task.exception())
            for visitor in self._visitors.values():
                visitor.fail("its root cannot hear it any more")

    def _hear(self, key: bytes, identity: bytes, address: str, bodies: Sequence[bytes]) -> None:
        """Take one message of whoever has this key; what it is, is checked here."""
        visitor = self._visitors.get(key)
        if visitor is None:
            return
        if visitor.is_given_up:
            self._send(visitor, identity, visitor.letters.note(Disowned()))
            return
        try:
            (body,) = bodies
            letter = self._decoder.decode(body)
            is_new = visitor.letters.read(letter)
        except (ValueError, RecursionError) as error:  # also a text that is no UTF-8
            log.warning("a host said what cannot be understood: %s", error)
            visitor.fail("it has said what its root cannot understand")
            return
        if isinstance(letter.message, Rejoin):
            is_new = self._rejoin(visitor, identity, letter.message.turn)
        elif isinstance(letter.message, HostUp) and not visitor.turn:
            visitor.identity = identity
        if not is_new:
            return
        if identity == visitor.identity:
            visitor.address = address
        try:
            visitor.take(letter.message)
        except Exception:  # a mistake of ours must not cost the other hosts
            log.exception("what a host said could not be taken")
            visitor.fail("its root could not take what it said")

    def _rejoin(self, visitor: _Visitor, identity: bytes, turn: int) -> bool:
        """Go on with a host on its new connection; False if there is a newer one."""
        if turn <= visitor.turn:
            return False
        visitor.turn, visitor.identity = turn, identity
        for body in (visitor.letters.note(Rejoined()), *visitor.letters.unheard):
            self._send(visitor, identity, body)
        return True

    def address_of(self, key: bytes) -> str:
        """Return where the host that has this key comes from; "" before it has come."""
        return self._visitors[key].address

    def say(self, key: bytes, message: ToHost) -> None:
        """Say something to the host that has this key; it hears it when it has a connection."""
        visitor = self._visitors[key]
        if visitor.is_given_up:
            return
        self._send(visitor, visitor.identity, visitor.letters.write(message))
        if visitor.letters.kept_nbytes > KEPT_MAX_NBYTES:
            # Later: who says something does not expect to lose the host by that.
            why = "it does not tell what it has heard of its root"
            asyncio.get_running_loop().call_soon(visitor.fail, why)

    def note(self, key: bytes, message: ToHost) -> None:
        """Say something that is of no use later: it may be lost."""
        visitor = self._visitors[key]
        self._send(visitor, visitor.identity, visitor.letters.note(message))

    def give_up(self, key: bytes) -> None:
        """Take what a host says no more: it is told so now, and whenever it says something."""
        visitor = self._visitors[key]
        visitor.is_given_up = True
        visitor.letters = Letters()  # what it has not heard it need not hear
        self.note(key, Disowned())

    def _send(self, visitor: _Visitor, identity: bytes, body: bytes) -> None:
        if self._socket is None or not identity:
            return
        sent = asyncio.ensure_future(self._socket.send_multipart([identity, body]))
        sent.add_done_callback(lambda done: _check(done, visitor, identity))

    def close(self) -> None:
        """Close the socket; idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._socket = None
        self._undo.close()


def _check(sent: asyncio.Task[Any], visitor: _Visitor, identity: bytes) -> None:
    has_failed = not sent.cancelled() and isinstance(sent.exception(), zmq.ZMQError)
    if has_failed and identity == visitor.identity:
        visitor.identity = b""
        visitor.fail("")


def _bind_all(sock: zmq.asyncio.Socket, addresses: Sequence[str]) -> dict[str, str]:
    """Listen; the endpoint at each address that can be had."""
    endpoints = {}
    refused = []
    for address in addresses:
        host = f"[{address}]" if ":" in address else address
        try:
            endpoints[address] = f"tcp://{host}:{sock.bind_to_random_port(f'tcp://{host}')}"
        except zmq.ZMQError as error:
            refused.append(f"{address}: {error}")
    if not endpoints:
        msg = f"other hosts cannot be listened for ({'; '.join(refused)})"
        raise DistributedError(msg)
    for text in refused:
        log.warning("cannot listen for hosts on %s", text)
    return endpoints
