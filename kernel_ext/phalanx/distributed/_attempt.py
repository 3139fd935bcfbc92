"""One connection on its way to a proven link, and one peer on its way to a connection.

They do what can be done without waiting; `_connect` waits for all of them at once.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Mapping, Sequence

from ._deadline import Deadline
from ._handshake import Acceptor, HandshakeRejected, Initiator, Lane
from ._outages import Outages, where
from ._stripes import Route

__all__ = ["Attempt", "Target", "is_open", "why_late"]

RETRY_DELAY_S = 0.02  # a refused loopback connection answers in microseconds: do not spin on it
RETRY_DELAY_MAX_S = 1.0


class Attempt:
    """One connection that has not proved itself yet.

    It has ``limit_s`` for all of it; one that has to be let in first has ``connect_s`` for that, if
    given, and the rest only then.
    """

    def __init__(
        self,
        sock: socket.socket,
        handshake: Acceptor | Initiator,
        limit_s: float,
        connect_s: float | None = None,
    ) -> None:
        self.sock = sock
        self.handshake = handshake
        self._limit_s = limit_s
        self.deadline = Deadline(limit_s if connect_s is None else connect_s)
        self.unsent = b""
        self.received = bytearray()
        self.is_connecting = isinstance(handshake, Initiator)

    def advance(self) -> bool:
        """Do what can be done now; True once both ends are proven.

        Raises
        ------
        OSError, HandshakeRejected
            It came to nothing.
        """
        if self.is_connecting:
            error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            self.is_connecting = False
            self.deadline = Deadline(self._limit_s)
        while True:
            self.unsent += self.handshake.take()
            try:
                if self.unsent:
                    self.unsent = self.unsent[self.sock.send(self.unsent) :]
                    continue
                if not self.handshake.needs:
                    return True
                # Never a byte more than the handshake's: the rest is the engine's.
                data = self.sock.recv(self.handshake.needs - len(self.received))
            except BlockingIOError:
                return False
            if not data:
                msg = "it closed the connection"
                raise HandshakeRejected(msg)
            self.received += data
            if len(self.received) == self.handshake.needs:
                message = bytes(self.received)
                self.received.clear()
                self.handshake.receive(message)

    @property
    def key(self) -> tuple[Lane, int, int]:
        """Which connection of which link this is to become, as far as the handshake knows."""
        return self.handshake.lane, self.handshake.peer, self.handshake.stripe.number

    @property
    def knows_key(self) -> bool:
        """Whether the other end is no mere stranger."""
        return isinstance(self.handshake, Initiator) or self.handshake.knows_key

    @property
    def events(self) -> int:
        """What to wait for."""
        is_sending = self.is_connecting or self.unsent
        return selectors.EVENT_WRITE if is_sending else selectors.EVENT_READ


class Target:
    """A connection to a lower rank: its routes are tried in turn until the deadline."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        self.tries = 0
        self.not_before = 0.0
        self.last_error = ""
        self.direct_error = ""  # why it needs a detour

    @property
    def route(self) -> Route:
        """What is being tried."""
        return self.routes[(self.tries - 1) % len(self.routes)]

    def next_route(self) -> Route:
        """Take the route to try now."""
        self.tries += 1
        return self.route

    @property
    def has_another(self) -> bool:
        """Whether a way is left in this round after the one that is being tried."""
        return self.tries % len(self.routes) != 0

    def was_silent(self, outages: Outages) -> None:
        """Learn that what is being tried gets no answer at all."""
        outages.note(self.route.endpoint.host, self.route.source)

    def came(self, outages: Outages, me: int, peer: int) -> None:
        """Learn that what is being tried is the connection now; what is not as it should be is told."""
        endpoint, source, is_detour = self.route
        outages.forget(endpoint.host, source)
        if is_detour:
            direct = self.routes[0].endpoint.host
            outages.warn(me, peer, direct, self.direct_error, endpoint.host)

    def fail(self, why: object) -> None:
        """Try the next route at once, but rest after each round of all of them."""
        endpoint, source, is_detour = self.route
        self.last_error = f"{where(endpoint, source)}: {why}"
        if source or not (is_detour or self.direct_error):
            self.direct_error = self.last_error
        rounds = self.tries // len(self.routes)
        if self.tries % len(self.routes) == 0:
            self.not_before = time.monotonic() + min(RETRY_DELAY_MAX_S, RETRY_DELAY_S * 2**rounds)


def why_late(
    missing: Mapping[int, Target | None], names: Sequence[int], host_names: Sequence[str]
) -> str:
    """Say in brackets where the ranks run that did not come, and what is known of why not.

    Examples
    --------
    >>> why_late({1: None}, range(2), ["a", "b"]), why_late({1: None}, range(2), [])
    (' (rank 1 runs on b)', '')
    """
    details = []
    for peer in sorted(missing):
        runs = f"rank {names[peer]} runs on {host_names[peer]}" if peer < len(host_names) else ""
        target = missing[peer]
        why = "" if target is None else target.last_error
        details.append(": ".join(part for part in (runs, why) if part))
    said = "; ".join(detail for detail in details if detail)
    return f" ({said})" if said else ""


def is_open(sock: socket.socket) -> bool:
    """Whether the peer still holds its end; reads nothing."""
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
