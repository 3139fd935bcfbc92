"""Doors for other hosts: tcp ports with CURVE on sockets that this host reaches otherwise.

It knows zmq's sockets and keys; whose sockets they are, and what is said, is its user's. A libzmq
socket copies its options into each endpoint when that is bound. So a socket that is bound to a
Unix socket keeps that as it is (this host's ranks and client pay for no encryption), and what is
bound after that is encrypted and asks for a key.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from ._curve import KnownKeys

__all__ = ["Doors", "keep_alive", "prepare_heart", "tcp_interface"]

_DOMAIN = "phalanx"
# How long a stranger may hold a descriptor, and what it sends meanwhile (libzmq: 30 s).
_HANDSHAKE_MS = 5000
# A firewall forgets a connection on which nothing is said, the earliest known after 5 min: an idle
# rank's would be gone when the next cell comes. Lost ones are known after 60 + 4 * 15 s.
_KEEPALIVE = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
}


def tcp_interface(address: str) -> str:
    """Write an address as zmq does, without a port."""
    return f"tcp://[{address}]" if ":" in address else f"tcp://{address}"


def keep_alive(sock: zmq.Socket[bytes], endpoint: str) -> None:
    """Set what a connection to or from another host needs, before it is bound or connected."""
    for option, value in _KEEPALIVE.items():
        sock.setsockopt(option, value)
    if "[" in endpoint:
        sock.setsockopt(zmq.IPV6, 1)


def prepare_heart(heart: Any) -> Any:
    """Return ipyparallel's ``heart`` as one that finds addresses of IPv6, too."""

    class Heart(heart):  # type: ignore[misc]
        def __init__(self, ping: str, *args: Any, **named: Any) -> None:
            super().__init__(ping, *args, **named)
            if "[" in ping:
                self.device.setsockopt_in(zmq.IPV6, 1)
                self.device.setsockopt_out(zmq.IPV6, 1)

    return Heart


class Doors:
    """Opens every socket it is given on the same addresses, at ports of the system's choice.

    Only who holds both keys gets in: the server's public one, which nobody is told but ranks, and
    the secret half of the one client key that is allowed. `open` is called by any thread.
    """

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self._server_public, self._server_secret = zmq.curve_keypair()
        self._client_public, self._client_secret = zmq.curve_keypair()
        self._lock = threading.Lock()
        self._gates: list[ThreadAuthenticator] = []
        self._guarded: set[zmq.Context[zmq.Socket[bytes]]] = set()
        self._ports: dict[int, dict[str, int]] = {}  # socket's number -> address -> port
        pages, page_nbytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        self._message_max_nbytes = pages * page_nbytes

    @property
    def keys(self) -> dict[str, str]:
        """What a client needs, in the words of ipyparallel's connection files."""
        return {
            "curve_serverkey": self._server_public.decode(),
            "curve_publickey": self._client_public.decode(),
            "curve_secretkey": self._client_secret.decode(),
        }

    def open(self, sock: zmq.Socket[bytes], number: int) -> int:
        """Bind ``sock`` to a port of each address; return how many sockets have been opened."""
        with self._lock:
            self._guard(sock.context)
        sock.setsockopt(zmq.CURVE_SERVER, 1)
        sock.setsockopt(zmq.CURVE_SECRETKEY, self._server_secret)
        # With a domain that is enforced nobody gets in when the gate keeper does not answer.
        sock.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        sock.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        # Values of any size come from ranks; what can be no value is not even begun.
        sock.setsockopt(zmq.MAXMSGSIZE, self._message_max_nbytes)
        if sock.type == zmq.ROUTER:
            # A rank that comes back after its connection was lost is not refused as a second one.
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
        """Return where the socket of this number is open at this address."""
        return self._ports[number][address]

    def _guard(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Ask for the client's key at all sockets of this context that have a ZAP domain."""
        if context in self._guarded:
            return
        gate = ThreadAuthenticator(context)
        gate.start()
        gate.configure_curve_callback(
            domain=_DOMAIN, credentials_provider=KnownKeys((self._client_public,))
        )
        self._guarded.add(context)
        self._gates.append(gate)
