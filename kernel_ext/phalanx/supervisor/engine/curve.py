"""Set up CURVE authentication and tcp ports for ranks of other hosts.

libzmq copies a socket's options into each endpoint when that endpoint is bound. A socket bound
first to a Unix socket stays unencrypted there, so ranks and clients of this host pay nothing for
encryption. Endpoints bound later are encrypted and require a key.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.auth.thread import ThreadAuthenticator

_DOMAIN = "phalanx"
# How long an unauthenticated connection may hold a descriptor and buffers (libzmq's default: 30 s).
_HANDSHAKE_MS = 5000

# Firewalls drop idle connections, the earliest known after 5 min. An idle rank would then miss the
# next cell. A lost connection is detected after 60 + 4 * 15 s.
_KEEPALIVE = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
}


class KnownKeys:
    """Accept a fixed set of client keys (a credentials provider of pyzmq)."""

    def __init__(self, keys: Collection[bytes]) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether the client with this (Z85) key may connect."""
        return any(hmac.compare_digest(known, key) for known in self._keys)


@contextmanager
def only_clients(
    context: zmq.asyncio.Context, keys: Collection[bytes], domain: str = "*"
) -> Iterator[None]:
    """Let only holders of ``keys``' secret halves connect to the context's sockets.

    ``keys`` (Z85) may change meanwhile. ``domain`` is the ZAP domain of the sockets, if they have
    one.
    """
    authenticator = AsyncioAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(domain=domain, credentials_provider=KnownKeys(keys))
    try:
        yield
    finally:
        authenticator.stop()


def tcp_interface(address: str) -> str:
    """Return zmq's form of an address, without a port."""
    return f"tcp://[{address}]" if ":" in address else f"tcp://{address}"


def keep_alive(sock: zmq.Socket[bytes], endpoint: str) -> None:
    """Set keepalive and IPv6 on a socket, before bind or connect."""
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(option, value)
    if "[" in endpoint:
        sock.setsockopt(zmq.IPV6, 1)


class HandshakeCounter:
    """Wait until a socket is connected to each of its endpoints.

    A zmq router drops a message to a peer that is not connected yet (ipyparallel's issue 476).
    """

    def __init__(self, sock: zmq.Socket[bytes]) -> None:
        self._sock = sock
        self._monitor = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._n_missing = 0

    def expect(self) -> None:
        self._n_missing += 1

    async def wait(self) -> None:
        poller = zmq.asyncio.Poller()
        poller.register(self._monitor, zmq.POLLIN)
        while self._n_missing:
            await poller.poll()
            self._monitor.recv_multipart()
            self._n_missing -= 1
        self._sock.disable_monitor()
        self._monitor.close()


def prepare_heartbeat(heart: Any) -> Any:
    """Return a subclass of ipyparallel's ``heart`` that also connects over IPv6."""

    class Heart(heart):  # type: ignore[misc]
        def __init__(self, ping: str, *args: Any, **named: Any) -> None:
            super().__init__(ping, *args, **named)
            if "[" in ping:
                self.device.setsockopt_in(zmq.IPV6, 1)
                self.device.setsockopt_out(zmq.IPV6, 1)

    return Heart


class CurveTcpEndpoints:
    """Bind sockets to free tcp ports of the same addresses, with CURVE.

    A client needs two keys: the server's public key, which only ranks get, and the secret half
    of the one allowed client key. `open` may be called from any thread.
    """

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self._server_public, self._server_secret = zmq.curve_keypair()
        self._client_public, self._client_secret = zmq.curve_keypair()
        self._lock = threading.Lock()
        self._gates: dict[zmq.Context[zmq.Socket[bytes]], ThreadAuthenticator] = {}
        self._ports: dict[int, dict[str, int]] = {}  # socket number -> address -> port
        pages, page_nbytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        self._message_max_nbytes = pages * page_nbytes

    @property
    def keys(self) -> dict[str, str]:
        """Return a client's keys, named as in ipyparallel's connection files."""
        return {
            "curve_serverkey": self._server_public.decode(),
            "curve_publickey": self._client_public.decode(),
            "curve_secretkey": self._client_secret.decode(),
        }

    def open(self, sock: zmq.Socket[bytes], number: int) -> int:
        """Bind ``sock`` to a port of each address; return the sockets opened.

        The return value is the number of sockets opened so far, this one included.
        """
        with self._lock:
            self._guard(sock.context)
        sock.setsockopt(zmq.CURVE_SERVER, 1)
        sock.setsockopt(zmq.CURVE_SECRETKEY, self._server_secret)
        # An enforced domain lets no client in while the authenticator does not answer.
        sock.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        sock.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        # Ranks send values of any size. A message larger than the machine's memory is refused.
        sock.setsockopt(zmq.MAXMSGSIZE, self._message_max_nbytes)
        if sock.type == zmq.ROUTER:
            # A rank that reconnects after a broken connection is not refused as a duplicate.
            sock.setsockopt(zmq.ROUTER_HANDOVER, 1)
        ports = {}
        for address in self.addresses:
            interface = tcp_interface(address)
            keep_alive(sock, interface)
            sock.bind(f"{interface}:*")
            endpoint = sock.getsockopt_string(zmq.LAST_ENDPOINT)
            ports[address] = int(endpoint.rpartition(":")[2].rstrip("\0"))
        with self._lock:
            self._ports[number] = ports
            return len(self._ports)

    def port(self, number: int, address: str) -> int:
        return self._ports[number][address]

    def _guard(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Require the client key on this context's sockets with a ZAP domain."""
        if context in self._gates:
            return
        gate = self._gates[context] = ThreadAuthenticator(context)
        gate.start()
        gate.configure_curve_callback(
            domain=_DOMAIN, credentials_provider=KnownKeys((self._client_public,))
        )
