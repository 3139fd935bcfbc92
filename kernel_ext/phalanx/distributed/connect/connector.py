"""Connect ranks: make every link that a group needs.

The lower rank of a pair listens and the higher rank connects; each rank does both at once for all
peers. A link may consist of several connections over several addresses.

A plain selector in the calling thread, not asyncio: a cell already runs inside an event loop, and
Ctrl-C must end the wait at once. Each connection is a generator that yields the selector event
that it waits for.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from phalanx.errors import CollectiveTimeout, DistributedError

from ..control import Deadline
from .endpoints import (
    UNSTRIPED,
    Endpoint,
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
)
from .handshake import (
    Handshake,
    HandshakeRejected,
    Identity,
    LinkPart,
    LinkPurpose,
    accept,
    initiate,
)
from .rendezvous import Rendezvous, name_ranks

RETRY_DELAY_S = 0.02  # a loopback connection is refused in microseconds: do not spin
RETRY_DELAY_MAX_S = 1.0

# A cable that is pulled out causes no error, only silence. So the next route of a connection is
# tried when one has not answered for this long, and the first that connects is used (happy
# eyeballs; RFC 8305 recommends 250 ms). Each new group pays it once or twice for a dead path. An
# answer takes less than 1 ms in a machine room and 0.3 s around the world, also that of a busy
# peer, because its kernel answers.
STAGGER_S = 0.25

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
Links = dict[LinkPart, socket.socket]
Steps = Generator[int, None, LinkPart]


def converse(sock: socket.socket, handshake: Handshake) -> Steps:
    """Run a handshake on a non-blocking socket; yield events to await.

    Raises `OSError` or `HandshakeRejected` if the connection or the handshake fails.
    """
    try:
        outgoing, needs = next(handshake)
        while True:
            while outgoing:
                try:
                    outgoing = outgoing[sock.send(outgoing) :]
                except BlockingIOError:
                    yield selectors.EVENT_WRITE
            message = b""
            while len(message) < needs:
                try:
                    # Never read beyond the handshake: the following bytes are the engine's.
                    data = sock.recv(needs - len(message))
                except BlockingIOError:
                    yield selectors.EVENT_READ
                    continue
                if not data:
                    msg = "it closed the connection"
                    raise HandshakeRejected(msg)
                message += data
            outgoing, needs = handshake.send(message)
    except StopIteration as proven:
        part: LinkPart = proven.value
        return part


class _Target:
    """Connection to a lower rank, by one of several routes."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        self.attempts: list[_Attempt] = []
        self.next_try = Deadline(0)
        self.last_error = self.direct_error = ""
        self._n_tries = 0

    def next_route(self) -> Route:
        route = self.routes[self._n_tries % len(self.routes)]
        self._n_tries += 1
        self.next_try = Deadline(STAGGER_S if self._n_tries % len(self.routes) else None)
        return route

    def note(self, route: Route, why: str) -> None:
        self.last_error = f"{route}: {why}"
        if route == self.routes[0]:
            self.direct_error = self.last_error

    def retry(self) -> None:
        """Try the next route at once; pause after each round."""
        n_rounds, n_tried = divmod(self._n_tries, len(self.routes))
        if n_tried:
            self.next_try = Deadline(0)
        elif not self.attempts:
            pause_s = min(RETRY_DELAY_MAX_S, RETRY_DELAY_S * 2 ** min(n_rounds, 10))
            self.next_try = Deadline(pause_s)


@dataclass(eq=False)
class _Attempt:
    """Connection with an unfinished handshake; ``target`` is None if it was accepted."""

    sock: socket.socket
    deadline: Deadline
    target: _Target | None = None
    route: Route | None = None
    is_connecting: bool = False
    knows_key: bool = False
    steps: Steps = field(init=False)


def is_open(sock: socket.socket) -> bool:
    """Return whether the peer still holds the connection; read nothing."""
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def connect_links(
    me: Identity,
    peers: Mapping[LinkPurpose, Collection[int]],
    addresses: Sequence[str],
    rendezvous: Rendezvous,
    *,
    timeout: float | None,
    host_names: Sequence[str] = (),
    check: Callable[[], None] = lambda: None,
    names: Sequence[int] = (),
    striping: StripeOptions = UNSTRIPED,
) -> Links:
    """Connect to every peer; return the sockets in the order of stripes.

    Both ends of each connection prove their identity. All ranks must call this, even those without
    peers, because all exchange their ports at the rendezvous. ``peers`` are the ranks that need a
    link to this one, by purpose. ``host_names`` and ``names`` (the ranks' numbers) are for error
    texts, by rank. ``check`` is called about every 20 ms; an exception ends the call (e.g. a rank
    died meanwhile). The sockets are not inheritable, and only the handshake has used them.

    Raises `CollectiveTimeout`, which names the ranks that did not connect in time, or
    `DistributedError` if there is no address to listen on or the ranks disagree on which links are
    needed.
    """
    deadline = Deadline(timeout)
    listeners: list[tuple[socket.socket, Endpoint]] = []
    problem = ""
    try:
        wanted = [(peer, purpose) for purpose in peers for peer in peers[purpose]]
        if any(peer > me.rank for peer, _ in wanted):
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
        parts = [
            LinkPart(peer, purpose, stripe, n)
            for peer, purpose in wanted
            for n in (n_stripes(purpose, mine, shares[peer]),)
            for stripe in range(n)
        ]
        meeting = _Meeting(
            me,
            [sock for sock, _ in listeners],
            {part for part in parts if part.peer > me.rank},
            {
                part: routes_of(part, mine, shares[part.peer], addresses)
                for part in parts
                if part.peer < me.rank
            },
            names,
        )
        made = meeting.run(deadline, check, host_names)
        for part in parts:
            bound_send_buffer(made[part], part.purpose, shares[part.peer].machine)
        return {part: made[part] for part in parts}
    finally:
        close_all(sock for sock, _ in listeners)


class _Meeting:
    """Connections of one rank while its group forms; used by one thread."""

    def __init__(
        self,
        me: Identity,
        listeners: Sequence[socket.socket],
        awaited: Collection[LinkPart],
        targets: Mapping[LinkPart, Sequence[Route]],
        names: Sequence[int],
    ) -> None:
        self._me = me
        self._names = names
        self._listeners = listeners
        self._awaited = awaited
        self._targets = {part: _Target(routes) for part, routes in targets.items()}
        self._max_unproven = max(MAX_UNPROVEN, 2 * len(awaited))
        self._links: dict[LinkPart, socket.socket] = {}
        self._attempts: list[_Attempt] = []
        self._selector = selectors.DefaultSelector()
        self._detours: set[tuple[int, Endpoint]] = set()
        self._n_dropped = 0

    def run(
        self, deadline: Deadline, check: Callable[[], None], host_names: Sequence[str]
    ) -> dict[LinkPart, socket.socket]:
        """Wait until every link is connected; close all sockets on failure."""
        try:
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ)
            while missing := {*self._awaited, *self._targets} - self._links.keys():
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

    def _check_time(
        self, missing: Collection[LinkPart], deadline: Deadline, host_names: Sequence[str]
    ) -> None:
        """Raise if it is over; name missing ranks, hosts and last errors."""
        if not deadline.is_over():
            return
        targets = {part.peer: self._targets.get(part) for part in sorted(missing)}
        details = []
        for peer, target in targets.items():
            runs = f"rank {self._names[peer]} runs on {host_names[peer]}" if host_names else ""
            why = "" if target is None else target.last_error
            details.append(": ".join(filter(None, (runs, why))))
        said = "; ".join(filter(None, details))
        who = name_ranks([self._names[peer] for peer in targets])
        me = self._names[self._me.rank]
        text = f"rank {me}: {who} did not connect within {deadline}"
        raise CollectiveTimeout(f"{text} ({said})" if said else text)

    def _wait(self, deadline: Deadline) -> None:
        deadlines = [deadline, *(attempt.deadline for attempt in self._attempts)]
        deadlines += [t.next_try for part, t in self._targets.items() if part not in self._links]
        waits = [CHECK_INTERVAL_S, *(deadline.remaining() for deadline in deadlines)]
        for ready, _events in self._selector.select(min(w for w in waits if w is not None)):
            if not isinstance(ready.data, _Attempt):
                self._accept(ready.fileobj)  # type: ignore[arg-type]  # registered above
            elif ready.data in self._attempts:  # else dropped meanwhile
                self._advance(ready.data)

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
            if sum(attempt.target is None for attempt in self._attempts) >= self._max_unproven:
                self._drop_an_attempt()
            sock.setblocking(False)
            attempt = _Attempt(sock, Deadline(UNPROVEN_LIMIT_S))
            attempt.steps = converse(sock, accept(self._me, partial(self._is_wanted, attempt)))
            self._start(attempt)  # the hello has usually arrived already

    def _is_wanted(self, attempt: _Attempt, part: LinkPart) -> bool:
        attempt.knows_key = True
        if part not in self._awaited:
            return False
        return part not in self._links or not is_open(self._links[part])

    def _drop_an_attempt(self) -> bool:
        """Drop the oldest accepted connection, first one without the key."""
        accepted = [attempt for attempt in self._attempts if attempt.target is None]
        unproven = [attempt for attempt in accepted if not attempt.knows_key]
        for attempt in (unproven or accepted)[:1]:
            self._drop(attempt, "too many connections at once")
        return bool(accepted)

    def _connect_due(self) -> None:
        for part, target in self._targets.items():
            if part in self._links or not target.next_try.is_over():
                continue
            if target.attempts and target.attempts[-1].route is not None:
                self._note(target, target.attempts[-1].route, f"no answer within {STAGGER_S:g} s")
            route = target.next_route()
            try:
                sock, address = open_socket(route)
            except OSError as error:
                self._note(target, route, error.strerror or str(error))
                target.retry()
                continue
            attempt = _Attempt(sock, Deadline(ATTEMPT_LIMIT_S), target, route, is_connecting=True)
            attempt.steps = self._connect(attempt, target, part, address)
            target.attempts.append(attempt)
            self._start(attempt)

    def _connect(
        self, attempt: _Attempt, target: _Target, part: LinkPart, address: tuple[object, ...]
    ) -> Steps:
        code = attempt.sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            yield selectors.EVENT_WRITE
            code = attempt.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        # The first that connects is used: a peer may be late, its kernel answers.
        for slower in [other for other in target.attempts if other is not attempt]:
            self._forget(slower)
            slower.sock.close()
        target.next_try = Deadline(None)
        attempt.is_connecting = False
        attempt.deadline = Deadline(ATTEMPT_LIMIT_S)
        return (yield from converse(attempt.sock, initiate(self._me, part)))

    def _start(self, attempt: _Attempt) -> None:
        self._attempts.append(attempt)
        self._advance(attempt)

    def _advance(self, attempt: _Attempt) -> None:
        try:
            events = next(attempt.steps)
            if attempt.sock in self._selector.get_map():
                self._selector.modify(attempt.sock, events, attempt)
            else:
                self._selector.register(attempt.sock, events, attempt)
        except StopIteration as proven:
            self._finish(attempt, proven.value)
        except OSError as error:
            self._drop(attempt, error.strerror or str(error))
        except HandshakeRejected as error:
            self._drop(attempt, str(error))

    def _finish(self, attempt: _Attempt, part: LinkPart) -> None:
        self._forget(attempt)
        if part in self._links:  # only a closed one is replaced, see _is_wanted
            self._links[part].close()
        self._links[part] = attempt.sock
        target, route = attempt.target, attempt.route
        if target is None or route is None or not route.is_detour:
            return
        detour = (part.peer, target.routes[0].endpoint)
        if detour not in self._detours:
            self._detours.add(detour)
            _log.warning(
                "rank %d: a path to rank %d cannot be used (%s): what should go there goes over %s "
                "as well, and is slower",
                self._names[self._me.rank],
                self._names[part.peer],
                target.direct_error,
                route.endpoint.host,
            )

    def _drop_late(self) -> None:
        for attempt in [a for a in self._attempts if a.deadline.is_over()]:
            silent = f"no answer within {attempt.deadline}"
            late = "it did not finish the handshake in time"
            self._drop(attempt, silent if attempt.is_connecting else late)

    def _drop(self, attempt: _Attempt, why: str) -> None:
        self._forget(attempt)
        attempt.sock.close()
        if attempt.target is not None and attempt.route is not None:
            self._note(attempt.target, attempt.route, why)
            attempt.target.retry()
            return
        self._n_dropped += 1
        if self._n_dropped <= DROPS_LOGGED:
            _log.info("rank %d: dropped a connection: %s", self._me.rank, why)

    def _forget(self, attempt: _Attempt) -> None:
        self._attempts.remove(attempt)
        if attempt.target is not None:
            attempt.target.attempts.remove(attempt)
        if attempt.sock in self._selector.get_map():
            self._selector.unregister(attempt.sock)

    def _note(self, target: _Target, route: Route, why: str) -> None:
        target.note(route, why)
        _log.debug("rank %d: %s", self._me.rank, target.last_error)
