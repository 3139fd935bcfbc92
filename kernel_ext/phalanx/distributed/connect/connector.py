"""Connect ranks: make every link that a group needs.

The lower rank of a pair listens and the higher rank connects; each rank does both at once for all
peers. A link may consist of several connections over several addresses.

A plain selector in the calling thread, not asyncio: a cell already runs inside an event loop, and
Ctrl-C must end the wait at once. Sockets are read only up to the last byte of the handshake,
because the engine reads what follows.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from phalanx.errors import CollectiveTimeout, DistributedError

from ..control import Deadline
from .endpoints import (
    UNSTRIPED,
    Endpoint,
    PathHealth,
    Route,
    Share,
    StripeOptions,
    bound_send_buffer,
    close_all,
    listen,
    machine,
    n_stripes,
    open_socket,
    read_shares,
    routes_of,
    where,
)
from .handshake import Acceptor, HandshakeRejected, Identity, Initiator, LinkPurpose, Stripe
from .rendezvous import Rendezvous, name_ranks

RETRY_DELAY_S = 0.02  # a loopback connection is refused in microseconds: do not spin
RETRY_DELAY_MAX_S = 1.0

# Chosen by judgement, not measured. A handshake takes two round trips, so 2 s suffice on any path.
# An unproven connection holds one descriptor for at most that long. At most 64 are open at a time,
# or two for each awaited link, because all peers may connect at once. If there are more, the ones
# that have not shown the key are dropped first, so a foreign process cannot displace a rank. The
# first few drops are logged, later ones only counted.
UNPROVEN_LIMIT_S = 2.0

ATTEMPT_LIMIT_S = 5.0
MAX_UNPROVEN = 64
ACCEPTS_AT_ONCE = 64  # then other sockets get their turn
DROPS_LOGGED = 8
CHECK_INTERVAL_S = 0.02  # a connecting rank learns of a death this fast
_log = logging.getLogger(__name__)
Links = dict[LinkPurpose, dict[int, tuple[socket.socket, ...]]]
_Key = tuple[LinkPurpose, int, int]  # the int at the end: number of the connection in the link


class Attempt:
    """Connection with an unfinished handshake.

    ``limit_s`` limits the handshake. With ``connect_s``, connecting has that limit of its own and
    the handshake's limit starts when the connection is established.
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
        """Do what is possible without waiting; True when both ends are proven.

        Raises
        ------
        OSError, HandshakeRejected
            The connection or the handshake failed.
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
                # Never read beyond the handshake: the following bytes are the engine's.
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
    def key(self) -> tuple[LinkPurpose, int, int]:
        """Return purpose, peer and number of the connection, as known so far."""
        return self.handshake.purpose, self.handshake.peer, self.handshake.stripe.number

    @property
    def knows_key(self) -> bool:
        """Whether the peer seems to have the key."""
        return isinstance(self.handshake, Initiator) or self.handshake.knows_key

    @property
    def events(self) -> int:
        """Return the selector events to wait for."""
        is_sending = self.is_connecting or self.unsent
        return selectors.EVENT_WRITE if is_sending else selectors.EVENT_READ


class LinkTarget:
    """Connection to a lower rank; its routes are tried in turn."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        self.tries = 0
        self.not_before = 0.0
        self.last_error = ""
        self.direct_error = ""  # why the direct route failed

    @property
    def route(self) -> Route:
        """Return the route that is being tried."""
        return self.routes[(self.tries - 1) % len(self.routes)]

    def next_route(self) -> Route:
        """Advance to the next route and return it."""
        self.tries += 1
        return self.route

    @property
    def has_another(self) -> bool:
        """Whether this round has an untried route."""
        return self.tries % len(self.routes) != 0

    def timed_out(self, path_health: PathHealth) -> None:
        """Record that the current route did not answer."""
        path_health.note(self.route.endpoint.host, self.route.source)

    def succeeded(self, path_health: PathHealth, me: int, peer: int) -> None:
        """Record that the current route connected; warn about a detour."""
        endpoint, source, is_detour = self.route
        path_health.forget(endpoint.host, source)
        if is_detour:
            direct = self.routes[0].endpoint.host
            path_health.warn(me, peer, direct, self.direct_error, endpoint.host)

    def fail(self, why: object) -> None:
        """Record an error; pause only after each round of all routes."""
        endpoint, source, is_detour = self.route
        self.last_error = f"{where(endpoint, source)}: {why}"
        if source or not (is_detour or self.direct_error):
            self.direct_error = self.last_error
        rounds = self.tries // len(self.routes)
        if self.tries % len(self.routes) == 0:
            self.not_before = time.monotonic() + min(RETRY_DELAY_MAX_S, RETRY_DELAY_S * 2**rounds)


def why_late(
    missing: Mapping[int, LinkTarget | None], names: Sequence[int], host_names: Sequence[str]
) -> str:
    """Format the hosts and last errors of missing ranks, in parentheses.

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
    """Return whether the peer still holds the connection; read nothing."""
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _nothing() -> None:
    """Check nothing: no abort is possible."""


def connect_links(
    me: Identity,
    peers: Mapping[LinkPurpose, Collection[int]],
    addresses: Sequence[str],
    rendezvous: Rendezvous,
    *,
    timeout: float | None,
    host_names: Sequence[str] = (),
    check: Callable[[], None] = _nothing,
    names: Sequence[int] = (),
    striping: StripeOptions = UNSTRIPED,
    path_health: PathHealth | None = None,
) -> Links:
    """Connect to every peer and return the sockets by purpose and rank.

    Both ends of each connection prove their identity. All ranks must call this, even those without
    peers, because all ranks take part in the rendezvous.

    Parameters
    ----------
    me : Identity
        This rank, its epoch and the workspace's key.
    peers : mapping of LinkPurpose to collection of int
        Ranks that need a link to this one, for each purpose.
    addresses : sequence of str
        Addresses to listen on; the system picks the ports.
    rendezvous : Rendezvous
        The rendezvous at which all ranks exchange their ports.
    timeout : float, optional
        Seconds for the whole call; ``None``: no limit.
    host_names : sequence of str, by rank, optional
        Names of the ranks' hosts, for error texts.
    check : callable, optional
        Called about every 20 ms; an exception ends the call (e.g. a rank died meanwhile).
    names : sequence of int, by rank, optional
        Numbers of the ranks in error texts; by default the rank itself.
    striping : StripeOptions, optional
        How many addresses are used together, and how many connections use each address.
    path_health : PathHealth, optional
        Paths of this process that did not answer lately.

    Returns
    -------
    dict of LinkPurpose to dict of int to tuple of socket
        The sockets for every purpose in ``peers``. A link's connections have the same order at both
        ends. Sockets are connected and not inheritable, and only the handshake has used them.

    Raises
    ------
    CollectiveTimeout
        Some ranks did not connect in time (named in the text).
    DistributedError
        There is no address to listen on, or the ranks disagree on which links are needed.
    """
    deadline = Deadline(timeout)
    listeners: list[tuple[socket.socket, Endpoint]] = []
    problem = ""
    try:
        wanted = [(purpose, peer) for purpose in peers for peer in peers[purpose]]
        if any(peer > me.rank for _, peer in wanted):
            try:
                listeners = listen(addresses)
            except DistributedError as error:
                problem = str(error)  # sent to all ranks, so that none waits for this one
        endpoints = tuple(endpoint for _, endpoint in listeners)
        ranks = tuple(tuple(sorted(peers.get(purpose, ()))) for purpose in LinkPurpose)
        at_once = max(1, min(striping.at_once, len(endpoints or addresses)))
        mine = Share(ranks, endpoints, problem, at_once, striping.per_address, machine())
        packed = rendezvous.all_gather(msgspec.msgpack.encode(mine), timeout=deadline.remaining())
        names = names or range(len(packed))
        shares = read_shares(packed, names)
        counts = {
            (purpose, peer): n_stripes(purpose, mine, shares[peer]) for purpose, peer in wanted
        }
        every = [(*link, number) for link, count in counts.items() for number in range(count)]
        theirs = {key: shares[key[1]] for key in every if key[1] < me.rank}
        targets = {k: routes_of(k[0], k[2], mine, s, addresses) for k, s in theirs.items()}
        awaited = {key for key in every if key[1] > me.rank}
        path_health = path_health or PathHealth()
        meeting = _Meeting(
            me, [sock for sock, _ in listeners], awaited, targets, names, path_health
        )
        made = meeting.run(deadline, check, host_names)
        for (purpose, peer, _), sock in made.items():
            bound_send_buffer(sock, purpose, shares[peer].machine)
        return {
            purpose: {
                peer: tuple(made[purpose, peer, number] for number in range(counts[purpose, peer]))
                for peer in peers[purpose]
            }
            for purpose in peers
        }
    finally:
        close_all(sock for sock, _ in listeners)


class _Meeting:
    """Connections of one rank while its group forms; used by one thread."""

    def __init__(
        self,
        me: Identity,
        listeners: Sequence[socket.socket],
        awaited: Collection[_Key],
        targets: Mapping[_Key, Sequence[Route]],
        names: Sequence[int],
        path_health: PathHealth,
    ) -> None:
        self._me = me
        self._names = names
        self._path_health = path_health
        self._listeners = listeners
        self._awaited = frozenset(awaited)
        self._targets = {key: LinkTarget(routes) for key, routes in targets.items()}
        self._counts = Counter(key[:2] for key in (*awaited, *targets))
        self._max_unproven = max(MAX_UNPROVEN, 2 * len(self._awaited))
        self._links: dict[_Key, socket.socket] = {}
        self._attempts: list[Attempt] = []
        self._connecting: set[_Key] = set()
        self._selector = selectors.DefaultSelector()
        self._n_dropped = 0

    def run(
        self, deadline: Deadline, check: Callable[[], None], host_names: Sequence[str]
    ) -> dict[_Key, socket.socket]:
        """Wait until every link is connected; close all sockets on failure."""
        try:
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ)
            while missing := self._missing():
                check()
                self._check_time(missing, deadline, host_names)
                self._connect_due()
                self._wait(deadline)
                self._drop_late()
        except BaseException:
            close_all(self._links.values())
            raise
        finally:
            close_all(attempt.sock for attempt in self._attempts)
            self._selector.close()
            if self._n_dropped > DROPS_LOGGED:
                _log.info("rank %d: dropped %d connections", self._me.rank, self._n_dropped)
        return self._links

    def _missing(self) -> list[_Key]:
        return sorted((self._awaited | self._targets.keys()) - self._links.keys())

    def _check_time(
        self, missing: Sequence[_Key], deadline: Deadline, host_names: Sequence[str]
    ) -> None:
        if not deadline.is_over():
            return
        by_rank = {key[1]: self._targets.get(key) for key in missing}
        who = name_ranks([self._names[peer] for peer in sorted(by_rank)])
        text = f"rank {self._names[self._me.rank]}: {who} did not connect within {deadline}"
        raise CollectiveTimeout(text + why_late(by_rank, self._names, host_names))

    def _wait(self, deadline: Deadline) -> None:
        now = time.monotonic()
        waits = [CHECK_INTERVAL_S, deadline.remaining()]
        waits += [attempt.deadline.remaining() for attempt in self._attempts]
        waits += [
            max(0.0, target.not_before - now)
            for key, target in self._targets.items()
            if key not in self._links and key not in self._connecting
        ]
        for ready, _events in self._selector.select(min(w for w in waits if w is not None)):
            if isinstance(ready.data, Attempt):
                if ready.data in self._attempts:  # else dropped meanwhile
                    self._advance(ready.data)
            else:
                self._accept(ready.fileobj)  # type: ignore[arg-type]  # registered above

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Out of descriptors: drop an unproven connection to free one.
                if error.errno not in {errno.EMFILE, errno.ENFILE} or not self._drop_an_attempt():
                    raise
                continue
            accepted = sum(isinstance(a.handshake, Acceptor) for a in self._attempts)
            if accepted >= self._max_unproven:
                self._drop_an_attempt()
            sock.setblocking(False)
            attempt = Attempt(sock, Acceptor(self._me, self._is_wanted), UNPROVEN_LIMIT_S)
            if self._start(attempt):
                self._advance(attempt)  # the hello has usually arrived already

    def _is_wanted(self, rank: int, purpose: LinkPurpose, stripe: Stripe) -> bool:
        key = (purpose, rank, stripe.number)
        if key not in self._awaited or stripe.of != self._counts[purpose, rank]:
            return False
        return key not in self._links or not is_open(self._links[key])

    def _drop_an_attempt(self) -> bool:
        """Drop the oldest accepted connection, first one without the key."""
        accepted = [a for a in self._attempts if isinstance(a.handshake, Acceptor)]
        unproven = [a for a in accepted if not a.knows_key]
        for attempt in (unproven or accepted)[:1]:
            self._drop(attempt, "too many connections at once")
        return bool(accepted)

    def _connect_due(self) -> None:
        now = time.monotonic()
        for key, target in self._targets.items():
            if key in self._links or key in self._connecting or now < target.not_before:
                continue
            purpose, peer, number = key
            endpoint, source, _ = target.next_route()
            try:
                sock, address = open_socket(
                    endpoint.host, endpoint.port, passive=False, source=source
                )
            except OSError as error:
                self._note(target, error)
                continue
            self._connecting.add(key)
            stripe = Stripe(number, self._counts[purpose, peer])
            initiator = Initiator(self._me, peer=peer, purpose=purpose, stripe=stripe)
            patience_s = self._path_health.patience_s(endpoint.host, source)
            connect_s = patience_s if target.has_another else None
            attempt = Attempt(sock, initiator, ATTEMPT_LIMIT_S, connect_s)
            code = sock.connect_ex(address)
            if code not in {0, errno.EINPROGRESS}:
                self._attempts.append(attempt)
                self._drop(attempt, os.strerror(code))
                continue
            self._start(attempt)

    def _start(self, attempt: Attempt) -> bool:
        self._attempts.append(attempt)
        try:
            # Links carry small headers that must not wait for an ack (Nagle's algorithm).
            attempt.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # on some systems: reset meanwhile
            self._drop(attempt, error.strerror or str(error))
            return False
        self._selector.register(attempt.sock, attempt.events, attempt)
        return True

    def _advance(self, attempt: Attempt) -> None:
        try:
            is_proven = attempt.advance()
        except OSError as error:
            self._drop(attempt, error.strerror or str(error))
            return
        except HandshakeRejected as error:
            self._drop(attempt, str(error))
            return
        if not is_proven:
            self._selector.modify(attempt.sock, attempt.events, attempt)
            return
        self._forget(attempt)
        key = attempt.key
        if key in self._links:  # only a closed one is replaced, see _is_wanted
            self._links[key].close()
        self._links[key] = attempt.sock
        target = self._targets.get(key)
        if target is not None:
            target.succeeded(self._path_health, self._names[self._me.rank], self._names[key[1]])

    def _drop_late(self) -> None:
        for attempt in [a for a in self._attempts if a.deadline.is_over()]:
            why = "it did not finish the handshake in time"
            if attempt.is_connecting:
                why = f"no answer within {attempt.deadline}"
                self._targets[attempt.key].timed_out(self._path_health)
            self._drop(attempt, why)

    def _drop(self, attempt: Attempt, why: str) -> None:
        self._forget(attempt)
        attempt.sock.close()
        handshake = attempt.handshake
        if isinstance(handshake, Initiator):
            self._note(self._targets[attempt.key], why)
            return
        self._n_dropped += 1
        if self._n_dropped <= DROPS_LOGGED:
            _log.info("rank %d: dropped a connection: %s", self._me.rank, why)

    def _forget(self, attempt: Attempt) -> None:
        self._attempts.remove(attempt)
        self._connecting.discard(attempt.key)
        if attempt.sock in self._selector.get_map():
            self._selector.unregister(attempt.sock)

    def _note(self, target: LinkTarget, why: object) -> None:
        target.fail(why)
        _log.debug("rank %d: %s", self._me.rank, target.last_error)
