"""Send reliable, ordered messages between supervisors across reconnections.

`ReliableSession` numbers messages and keeps each until it is acknowledged; an end that misses some asks
for them. `HostServer` is the root's socket for all hosts, with one `HostSession` for each.
`RootConnection` is a host's end. ZeroMQ sees that a connection is broken and makes a new one.
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
from phalanx.protocol.host import Envelope, FromHost, HostBoot, Resend, StopHost, ToHost
from phalanx.protocol.os_text import encode_message

from ..engine.curve import only_clients
from .addresses import reach

log = logging.getLogger(__name__)
DOMAIN = "phalanx"  # domain of zmq's authentication (ZAP)
# How long a connection without a valid key may occupy a descriptor, and how long a root that is busy or
# stopped for a while may take to accept one.
HANDSHAKE_MS = 5000
MESSAGE_MAX_NBYTES = MAX_FRAME + (1 << 20)  # largest message of a rank, and the host's envelope

# A running root always listens, so a refusal that lasts this long is final. One refusal is not
# enough: a router or firewall that restarts may refuse connections for a short time.
REFUSED_S = 0.5

AGAIN_S = 0.1  # between attempts to reach the root
REACH_S = 1.5  # for a tcp handshake and one retransmission


class ProtocolError(ValueError):
    """Protocol error: the peer acknowledged a message that was not sent."""


class ReliableSession:
    """One end of a stream of messages that survives broken connections.

    ``transmit`` sends bytes, which may be lost, but come in order. Every message has the number of
    the last one that must not be lost. So the next message, at the latest the next heartbeat, shows
    that one is missing. The answer is a `Resend`, which has the other end send all again that is
    not acknowledged.

    Examples
    --------
    >>> from phalanx.protocol.host import HostPing, HostPong
    >>> sent: list[bytes] = []
    >>> root, host = ReliableSession(sent.append), ReliableSession(sent.append)
    >>> root.send(HostPing(1))
    >>> kept = msgspec.msgpack.decode(sent[0], type=Envelope[ToHost])
    >>> host.receive(kept), host.receive(kept)
    (True, False)
    """

    def __init__(self, transmit: Callable[[bytes], Any]) -> None:
        self._transmit = transmit
        self._n_sent = 0
        self._n_received = 0
        self._n_asked = 0  # the first number that was missing when the other end was asked last
        self._kept: deque[tuple[int, bytes]] = deque()

    def send(self, message: FromHost | ToHost) -> None:
        """Send a message, and keep it until it is acknowledged."""
        self._n_sent += 1
        self._kept.append((self._n_sent, self._encode(message, is_kept=True)))
        self._transmit(self._kept[-1][1])

    def send_unreliable(self, message: FromHost | ToHost) -> None:
        """Send a message that may be lost: it is useless later."""
        self._transmit(self._encode(message, is_kept=False))

    def _encode(self, message: FromHost | ToHost, *, is_kept: bool) -> bytes:
        return encode_message((self._n_sent, self._n_received, is_kept, message))

    def receive(self, envelope: Envelope[Any]) -> bool:
        """Process an envelope; return whether its message is the next one.

        Raises
        ------
        ProtocolError
            The envelope is impossible.
        """
        if envelope.ack > self._n_sent:
            msg = f"message {envelope.ack} was not sent and cannot be acknowledged"
            raise ProtocolError(msg)
        while self._kept and self._kept[0][0] <= envelope.ack:
            self._kept.popleft()
        is_next = envelope.is_kept and envelope.number == self._n_received + 1
        self._n_received += is_next
        if isinstance(envelope.message, Resend):
            for _, body in tuple(self._kept):
                self._transmit(body)
        missing = self._n_received + 1
        # A heartbeat asks again: what was sent again may be lost as well.
        if envelope.number >= missing and not (envelope.is_kept and self._n_asked == missing):
            self._n_asked = missing
            self.send_unreliable(Resend())
        return is_next or not envelope.is_kept

    def forget(self) -> None:
        """Drop the messages that are not acknowledged."""
        self._n_sent = 0
        self._kept.clear()


class HostSession(ReliableSession):
    """The root's end of the messages with one supervisor of another host.

    ``keys`` (public, secret) are made for that supervisor; the public one is its zmq identity.
    ``address`` is the peer address of its newest connection, empty before the first.
    """

    def __init__(
        self,
        server: HostServer,
        take: Callable[[FromHost], None],
        fail: Callable[[str], None],
    ) -> None:
        super().__init__(lambda body: server.transmit(self, body))
        self.take = take
        self.fail = fail
        self.keys: tuple[bytes, bytes] = zmq.curve_keypair()
        self.address = ""
        self.is_given_up = False

    def send(self, message: FromHost | ToHost) -> None:
        """Send a message, now or after the next reconnection."""
        if not self.is_given_up:
            super().send(message)

    def give_up(self) -> None:
        """Ignore the host from now on.

        The host gets `StopHost` now, and as the answer to each later message.
        """
        self.is_given_up = True
        self.forget()
        self.send_unreliable(StopHost())


class HostServer:
    """Server socket of the root, to which the hosts' supervisors connect."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, HostSession] = {}  # by public key
        self._undo = contextlib.ExitStack()
        self._socket: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._decoder = msgspec.msgpack.Decoder(Envelope[FromHost])
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
        sock.router_handover = True  # a host's new connection takes the place of the old one
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
        its connection is broken now.
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
            self._hear(key, address, [frame.bytes for frame in frames[1:]])

    def _on_served(self, task: asyncio.Task[None]) -> None:
        """Report a failure of the reading task to all hosts' callbacks.

        Otherwise this bug would look like silence of the hosts.
        """
        if not task.cancelled() and task.exception() is not None:
            log.critical("messages of hosts cannot be read any more", exc_info=task.exception())
            for session in self._sessions.values():
                session.fail("its root cannot read its messages any more")

    def _hear(self, key: bytes, address: str, bodies: Sequence[bytes]) -> None:
        """Check and handle one message from the owner of ``key``."""
        session = self._sessions.get(key)
        if session is None:
            return
        if session.is_given_up:
            session.send_unreliable(StopHost())
            return
        try:
            (body,) = bodies
            envelope = self._decoder.decode(body)
            is_next = session.receive(envelope)
        except (ValueError, RecursionError) as error:  # invalid UTF-8 is a ValueError too
            log.warning("a host said what cannot be understood: %s", error)
            session.fail("it has said what its root cannot understand")
            return
        session.address = address
        if not is_next:
            return
        try:
            session.take(envelope.message)
        except Exception:  # a bug of ours must not affect other hosts
            log.exception("what a host said could not be taken")
            session.fail("its root could not take what it said")

    def transmit(self, session: HostSession, body: bytes) -> None:
        """Send a session's bytes over its newest connection."""
        if self._socket is None:
            return
        sent = asyncio.ensure_future(self._socket.send_multipart([session.keys[0], body]))
        sent.add_done_callback(lambda done: _check(done, session))

    def close(self) -> None:
        """Close the socket; idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._socket = None
        self._undo.close()


def _check(sent: asyncio.Task[Any], session: HostSession) -> None:
    if not sent.cancelled() and isinstance(sent.exception(), zmq.ZMQError):
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


class RootConnection(ReliableSession):
    """A host's end of the messages with its root.

    ``endpoint`` is the root's endpoint, and ``own`` the local address of the connection.
    """

    def __init__(
        self, context: zmq.asyncio.Context, boot: HostBoot, endpoint: str, own: str = ""
    ) -> None:
        self._endpoints = boot.endpoints
        self._endpoint = endpoint
        self.own = own
        self._decoder = msgspec.msgpack.Decoder(Envelope[ToHost])
        self.has_received = False  # whether the root has said anything
        self._socket = root = context.socket(zmq.DEALER)
        super().__init__(lambda body: root.send_multipart([body]))
        root.linger = 500  # ms: send the last message
        root.sndhwm = root.rcvhwm = 0
        root.maxmsgsize = MESSAGE_MAX_NBYTES
        root.ipv6 = True
        root.routing_id = boot.public_key
        root.curve_serverkey = boot.root_key
        root.curve_publickey, root.curve_secretkey = boot.public_key, boot.secret_key
        # A connection may break without an error. Another one is made after half of the heartbeat
        # timeout.
        quarter_ms = round(boot.world.heartbeat_timeout_s * 250)
        root.heartbeat_ivl = root.heartbeat_timeout = quarter_ms
        root.handshake_ivl = HANDSHAKE_MS
        root.connect_timeout = round(REACH_S * 1000)
        root.reconnect_ivl = round(AGAIN_S * 1000)
        news = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = root.get_monitor_socket(news)
        root.connect(endpoint)

    @property
    def address(self) -> str:
        return self._endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self._endpoint.rpartition(":")[2])

    async def run(self, take: Callable[[ToHost], None]) -> bool:
        """Pass messages on until the root is gone; whether it spoke."""
        tasks = [asyncio.ensure_future(work) for work in (self._read(take), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raise a bug of ours
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return self.has_received

    async def _read(self, take: Callable[[ToHost], None]) -> None:
        while True:
            (body,) = await self._socket.recv_multipart()
            envelope = self._decoder.decode(body)
            self.has_received = True
            if self.receive(envelope):
                take(envelope.message)

    async def _watch(self) -> None:
        """Watch the connection, until the root is known to be gone.

        While there is none, look at which of its endpoints the root can be reached.
        """
        loop, is_connected = asyncio.get_running_loop(), False
        refused_since_s: float | None = None
        while True:
            if await self._monitor.poll(None if is_connected else AGAIN_S * 1000):
                event = (await recv_monitor_message(self._monitor))["event"]
                is_connected = event != zmq.EVENT_DISCONNECTED
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    refused_since_s = None
                    self.send_unreliable(Resend())
                # Read what came before the end: reading `EVENTS` wakes the socket's readers as well.
                while not is_connected and int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                    await asyncio.sleep(0)
                if not is_connected and not self.has_received:
                    return
                continue
            others = [other for other in self._endpoints if other != self._endpoint]
            found = await reach((self._endpoint, *others), REACH_S, is_refusal_final=True)
            if found.endpoint:
                self._move(found.endpoint, found.own)
            if not found.is_refused:
                refused_since_s = None
            elif refused_since_s is None:
                refused_since_s = loop.time()
            elif loop.time() - refused_since_s >= REFUSED_S:
                return

    def _move(self, endpoint: str, own: str) -> None:
        """Connect to the root at ``endpoint`` from now on."""
        self.own = own
        if endpoint != self._endpoint:
            self._socket.disconnect(self._endpoint)
            self._endpoint = endpoint
            self._socket.connect(endpoint)

    def close(self) -> None:
        """Close the connection; the last messages are still sent."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)  # `disable_monitor` does not close the monitor's socket
        self._socket.close()
