"""Send reliable, ordered messages between supervisors across reconnections.

`ReliableSession` numbers messages and keeps each until it is acknowledged. `HostServer` is the
root's socket for all hosts. `RootConnection` is a host's connection to the root: if it breaks, the
host reconnects and both ends resend unacknowledged messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from phalanx.errors import DistributedError
from phalanx.protocol import MAX_FRAME
from phalanx.protocol.host import (
    FromHost,
    FromHostEnvelope,
    HostBoot,
    HostUp,
    Reconnect,
    ReconnectAck,
    StopHost,
    ToHost,
    ToHostEnvelope,
)
from phalanx.protocol.os_text import encode_message

from ..engine.curve import only_clients
from .addresses import reach

log = logging.getLogger(__name__)
DOMAIN = "phalanx"  # domain of zmq's authentication (ZAP)
HANDSHAKE_MS = 5000  # how long a connection without a valid key may occupy a descriptor
MESSAGE_MAX_NBYTES = MAX_FRAME + (1 << 20)  # largest message of a rank, and the host's envelope

# A running root always listens, so a refusal that lasts this long is final. One refusal is not
# enough: a router or firewall that restarts may refuse connections for a short time.
REFUSED_S = 0.5

AGAIN_S = 0.1  # between attempts to reach the root
REACH_S = 1.5  # for a tcp handshake and one retransmission
JOIN_S = 5.0  # for the root's ack on a new connection: it may be busy or stopped for a while


class ProtocolError(ValueError):
    """Protocol error: the peer skipped a number or acknowledged an unsent one."""


class ReliableSession:
    """Sequence numbers, acknowledgements and unacknowledged messages of one end.

    Examples
    --------
    >>> from phalanx.protocol.host import HostPing
    >>> root, host = ReliableSession(), ReliableSession()
    >>> lost = root.encode(HostPing(1))
    >>> [host.receive(msgspec.msgpack.decode(kept, type=ToHostEnvelope)) for kept in root.unacknowledged * 2]
    [True, False]
    """

    def __init__(self) -> None:
        self._n_sent = 0
        self._n_received = 0
        self._kept: deque[tuple[int, bytes]] = deque()

    def encode(self, message: FromHost | ToHost) -> bytes:
        """Number a message, and keep it until it is acknowledged."""
        self._n_sent += 1
        body = encode_message((self._n_sent, self._n_received, message))
        self._kept.append((self._n_sent, body))
        return body

    def encode_unreliable(self, message: FromHost | ToHost) -> bytes:
        """Encode a message without a number: it is not kept or resent."""
        return encode_message((0, self._n_received, message))

    def receive(self, envelope: FromHostEnvelope | ToHostEnvelope) -> bool:
        """Process an envelope; False: a duplicate. `ProtocolError`: it is impossible."""
        if envelope.ack > self._n_sent or envelope.number > self._n_received + 1:
            msg = f"a message with the number {envelope.number} cannot come now"
            raise ProtocolError(msg)
        while self._kept and self._kept[0][0] <= envelope.ack:
            self._kept.popleft()
        if not envelope.number:
            return True
        is_new = envelope.number == self._n_received + 1
        self._n_received = max(self._n_received, envelope.number)
        return is_new

    @property
    def unacknowledged(self) -> tuple[bytes, ...]:
        """Return the unacknowledged messages in order, to be resent."""
        return tuple(body for _, body in self._kept)


class HostSession:
    """The root's end of the messages with one supervisor of another host.

    ``keys`` (public, secret) are made for that supervisor. ``identity`` is the zmq identity of its
    newest connection, empty without a connection. ``address`` is the peer address of that
    connection, empty before the first.
    """

    def __init__(
        self,
        server: HostServer,
        take: Callable[[FromHost], None],
        fail: Callable[[str], None],
    ) -> None:
        self._server = server
        self.take = take
        self.fail = fail
        self.keys: tuple[bytes, bytes] = zmq.curve_keypair()
        self.reliable = ReliableSession()
        self.identity = b""
        self.address = ""
        self.turn = 0
        self.is_given_up = False

    def send(self, message: ToHost) -> None:
        """Send a message, now or after the next reconnection."""
        if not self.is_given_up:
            self._server.transmit(self, self.identity, self.reliable.encode(message))

    def send_unreliable(self, message: ToHost) -> None:
        """Send a message that may be lost: it is useless later."""
        self.reply(self.identity, message)

    def reply(self, identity: bytes, message: ToHost) -> None:
        """Send a message that may be lost over one connection."""
        self._server.transmit(self, identity, self.reliable.encode_unreliable(message))

    def give_up(self) -> None:
        """Ignore the host from now on.

        The host gets `StopHost` now, and as the answer to each later message.
        """
        self.is_given_up = True
        self.reliable = ReliableSession()  # drop the unacknowledged messages
        self.send_unreliable(StopHost())

    def reconnect(self, identity: bytes, turn: int) -> bool:
        """Continue on a new connection; False if there is a newer one."""
        if turn <= self.turn:
            return False
        self.turn, self.identity = turn, identity
        self.send_unreliable(ReconnectAck())
        for body in self.reliable.unacknowledged:
            self._server.transmit(self, identity, body)
        return True


class HostServer:
    """Server socket of the root, to which the hosts' supervisors connect."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, HostSession] = {}  # by public key
        self._undo = contextlib.ExitStack()
        self._socket: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._decoder = msgspec.msgpack.Decoder(FromHostEnvelope)
        self.public_key = b""
        self.endpoints: tuple[str, ...] = ()

    def open(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Listen, once only; return the addresses that could be bound."""
        self.public_key, secret_key = zmq.curve_keypair()
        context = self._undo.enter_context(zmq.asyncio.Context())
        self._undo.enter_context(only_clients(context, self._sessions.keys(), DOMAIN))
        sock = self._undo.enter_context(context.socket(zmq.ROUTER))
        sock.linger = 500  # ms: send the last message
        # No limit: a full ROUTER drops messages. A host that reads nothing is soon lost by timeout.
        sock.sndhwm = sock.rcvhwm = 0
        sock.router_mandatory = True  # report a send to a host that has gone
        sock.handshake_ivl, sock.maxmsgsize = HANDSHAKE_MS, MESSAGE_MAX_NBYTES
        sock.ipv6 = True
        sock.curve_server = True
        # With an enforced domain nobody is let in if the key check does not run.
        sock.zap_domain = DOMAIN.encode()
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        sock.curve_publickey, sock.curve_secretkey = self.public_key, secret_key
        bound = _bind_all(sock, addresses)
        self.endpoints = tuple(bound.values())
        self._socket = sock
        self._task = asyncio.get_running_loop().create_task(self._serve(sock))
        self._task.add_done_callback(self._on_served)
        return tuple(bound)

    def expect(self, take: Callable[[FromHost], None], fail: Callable[[str], None]) -> HostSession:
        """Accept connections with the keys of the session that is returned.

        ``take`` gets each message. ``fail`` gets a text if the host breaks the protocol, and "" if
        its connection broke; the host may reconnect with a `Reconnect`.
        """
        session = HostSession(self, take, fail)
        self._sessions[session.keys[0]] = session
        return session

    async def _serve(self, sock: zmq.asyncio.Socket) -> None:
        while True:
            frames = await sock.recv_multipart(copy=False)
            key = str(frames[-1].get("User-Id")).encode()
            # zmq reports an IPv4 address in IPv6 form on this socket.
            address = str(frames[-1].get("Peer-Address")).removeprefix("::ffff:")
            self._hear(key, frames[0].bytes, address, [frame.bytes for frame in frames[1:]])

    def _on_served(self, task: asyncio.Task[None]) -> None:
        """Report a failure of the reading task to all hosts' callbacks.

        Otherwise this bug would look like silence of the hosts.
        """
        if not task.cancelled() and task.exception() is not None:
            log.critical("messages of hosts cannot be read any more", exc_info=task.exception())
            for session in self._sessions.values():
                session.fail("its root cannot read its messages any more")

    def _hear(self, key: bytes, identity: bytes, address: str, bodies: Sequence[bytes]) -> None:
        """Check and handle one message from the owner of ``key``."""
        session = self._sessions.get(key)
        if session is None:
            return
        if session.is_given_up:
            session.reply(identity, StopHost())
            return
        try:
            (body,) = bodies
            envelope = self._decoder.decode(body)
            is_new = session.reliable.receive(envelope)
        except (ValueError, RecursionError) as error:  # invalid UTF-8 is a ValueError too
            log.warning("a host said what cannot be understood: %s", error)
            session.fail("it has said what its root cannot understand")
            return
        if isinstance(envelope.message, Reconnect):
            is_new = session.reconnect(identity, envelope.message.turn)
        elif isinstance(envelope.message, HostUp) and not session.turn:
            session.identity = identity
        if not is_new:
            return
        if identity == session.identity:
            session.address = address
        try:
            session.take(envelope.message)
        except Exception:  # a bug of ours must not affect other hosts
            log.exception("what a host said could not be taken")
            session.fail("its root could not take what it said")

    def transmit(self, session: HostSession, identity: bytes, body: bytes) -> None:
        """Send a session's bytes over one of its connections."""
        if self._socket is None or not identity:
            return
        sent = asyncio.ensure_future(self._socket.send_multipart([identity, body]))
        sent.add_done_callback(lambda done: _check(done, session, identity))

    def close(self) -> None:
        """Close the socket; idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._socket = None
        self._undo.close()


def _check(sent: asyncio.Task[Any], session: HostSession, identity: bytes) -> None:
    has_failed = not sent.cancelled() and isinstance(sent.exception(), zmq.ZMQError)
    if has_failed and identity == session.identity:
        session.identity = b""
        session.fail("")


def _bind_all(sock: zmq.asyncio.Socket, addresses: Sequence[str]) -> dict[str, str]:
    """Bind ``sock`` to each address; return the endpoints by address."""
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


class RootConnection:
    """Connection of a host to its root, with reconnection.

    ``endpoint`` is the root's endpoint, and ``own`` the local address of the connection.
    """

    def __init__(
        self, context: zmq.asyncio.Context, boot: HostBoot, endpoint: str, own: str = ""
    ) -> None:
        self._context = context
        self._boot = boot
        self._endpoint = endpoint
        self.own = own
        self._reliable = ReliableSession()
        self._decoder = msgspec.msgpack.Decoder(ToHostEnvelope)
        self._turn = 0
        self.has_received = False  # whether the root has said anything
        # Whether it can be used: the first connection needs no `Reconnect`.
        self._joined = asyncio.Event()
        self._joined.set()
        self._stale = asyncio.Event()
        self._socket = self._connect(endpoint)

    @property
    def is_joined(self) -> bool:
        """Whether messages reach the root now."""
        return self._joined.is_set()

    @property
    def address(self) -> str:
        return self._endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self._endpoint.rpartition(":")[2])

    def _connect(self, endpoint: str) -> zmq.asyncio.Socket:
        root = self._context.socket(zmq.DEALER)
        root.linger = 500  # ms: send the last message
        root.sndhwm = root.rcvhwm = 0
        root.maxmsgsize = MESSAGE_MAX_NBYTES
        root.ipv6 = True
        # Disable zmq's own reconnection: a new connection must begin with `Reconnect` and the
        # unacknowledged messages.
        root.reconnect_ivl = -1
        root.curve_serverkey = self._boot.root_key
        root.curve_publickey, root.curve_secretkey = self._boot.public_key, self._boot.secret_key
        # Monitor before connecting, to see an immediate refusal too. A root that ends closes its
        # connections first, and can still be reached until it closes its listening socket.
        self._monitor = root.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        root.connect(endpoint)
        return root

    def send(self, message: FromHost) -> None:
        """Send a message; keep it until the root acknowledges it."""
        self._send(self._reliable.encode(message))

    def send_unreliable(self, message: FromHost) -> None:
        """Send a message that is useless later: it may be lost."""
        if self.is_joined:
            self._send(self._reliable.encode_unreliable(message))

    def _send(self, body: bytes) -> None:
        if self.is_joined:
            self._socket.send_multipart([body])

    def doubt(self) -> None:
        """Try a new connection, after a silence on this one."""
        self._stale.set()

    async def run(self, take: Callable[[ToHost], None]) -> bool:
        """Pass messages on until the root is gone; whether it spoke."""
        while True:
            await self._serve(take)
            if not self.has_received:
                return False
            if not self.is_joined:  # the connection was accepted, but the root did not answer
                await asyncio.sleep(AGAIN_S)
            self._joined.clear()
            self._socket.close(linger=0)
            endpoint = await self._find()
            if not endpoint:
                return True
            self._endpoint = endpoint
            self._turn += 1
            self._socket = self._connect(endpoint)
            self._socket.send_multipart([self._reliable.encode_unreliable(Reconnect(self._turn))])

    async def _serve(self, take: Callable[[ToHost], None]) -> None:
        """Read one connection until it breaks, or is silent for too long."""
        root, monitor = self._socket, self._monitor
        self._stale.clear()
        reading = asyncio.ensure_future(self._read(root, take))
        broken = asyncio.ensure_future(recv_monitor_message(monitor))
        silent = asyncio.ensure_future(self._wait_silent())
        every: set[asyncio.Future[Any]] = {reading, broken, silent}
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
            # Also read what came before the end: it may be the root's last message. Reading
            # `EVENTS` wakes the socket's readers as well; a poll would take the signal from them.
            while not reading.done() and int(root.get(zmq.EVENTS)) & zmq.POLLIN:
                await asyncio.sleep(0)
            if reading.done():
                reading.result()  # raise a bug of ours
        finally:
            for task in every:
                task.cancel()
            await asyncio.wait(every)
            self._unwatch()

    async def _wait_silent(self) -> None:
        """Wait until this connection has been silent for too long.

        A new connection has `JOIN_S` for its ack. Then `doubt` ends the wait.
        """
        if not self.is_joined:
            try:
                await asyncio.wait_for(self._joined.wait(), JOIN_S)
            except asyncio.TimeoutError:
                return
            self._stale.clear()
        await self._stale.wait()

    async def _read(self, root: zmq.asyncio.Socket, take: Callable[[ToHost], None]) -> None:
        while True:
            (body,) = await root.recv_multipart()
            envelope = self._decoder.decode(body)
            is_new = self._reliable.receive(envelope)
            self.has_received = True
            if isinstance(envelope.message, ReconnectAck):
                self._joined.set()
                for kept in self._reliable.unacknowledged:
                    self._send(kept)
            if is_new:
                take(envelope.message)

    async def _find(self) -> str:
        """Wait until the root can be reached; return its endpoint.

        Returns "" if the root no longer listens.
        """
        loop = asyncio.get_running_loop()
        others = [other for other in self._boot.endpoints if other != self._endpoint]
        refused_since_s: float | None = None
        while True:
            found = await reach((self._endpoint, *others), REACH_S, is_refusal_final=True)
            if found.endpoint:
                self.own = found.own
                return found.endpoint
            now_s = loop.time()
            if not found.is_refused:
                refused_since_s = None
            elif refused_since_s is None:
                refused_since_s = now_s
            elif now_s - refused_since_s >= REFUSED_S:
                return ""
            await asyncio.sleep(AGAIN_S)

    def _unwatch(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)  # `disable_monitor` does not close the monitor's socket

    def close(self) -> None:
        """Close the connection; the last messages are still sent."""
        self._unwatch()  # if `run` was not called
        self._socket.close()
