"""From addresses to proven sockets: a link to every peer that needs one, for each lane.

It knows sockets, the handshake and the rendezvous; what the links carry is the engine's.
The lower rank of a pair listens, the higher one connects; both at once, for all peers. A link may
be made of several connections, over several addresses.

A plain selector in the calling thread, not asyncio: a cell already runs inside a loop, and here
Ctrl-C ends the wait at once. Sockets are read only up to the last byte of the handshake.
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

from ._attempt import Attempt, Target, is_open, why_late
from ._deadline import Deadline
from ._handshake import Acceptor, HandshakeRejected, Identity, Initiator, Lane, Stripe
from ._listen import Endpoint, Share, close_all, listen, open_socket, read_shares
from ._machine import bound_send_buffer, machine
from ._outages import Outages
from ._rendezvous import Rendezvous, name_ranks
from ._stripes import ONE_WAY, Route, Ways, n_stripes, routes_of

__all__ = ["Links", "connect_links"]

# Judgement, not measurement: a handshake takes two round trips, so 2 s is patient on any path;
# a knock costs at most one descriptor for that long, and at most 64 of them at a time, or two for
# each link that is awaited: all peers may knock at once, and nobody is sent away for a stranger,
# as those who have not shown the key go first. What is dropped is told a few times, then counted.
STRANGER_LIMIT_S = 2.0
ATTEMPT_LIMIT_S = 5.0
MAX_UNPROVEN = 64
ACCEPTS_AT_ONCE = 64  # then the others have their turn
DROPS_TOLD = 8
CHECK_INTERVAL_S = 0.02  # a rank that waits to connect learns as soon of a death as one that is in

_log = logging.getLogger(__name__)

Links = dict[Lane, dict[int, tuple[socket.socket, ...]]]
_Key = tuple[Lane, int, int]  # the last: which connection of the link


def _nothing() -> None:
    """Nobody can give the epoch up."""


def connect_links(
    me: Identity,
    peers: Mapping[Lane, Collection[int]],
    addresses: Sequence[str],
    rendezvous: Rendezvous,
    *,
    timeout: float | None,
    host_names: Sequence[str] = (),
    check: Callable[[], None] = _nothing,
    names: Sequence[int] = (),
    ways: Ways = ONE_WAY,
    outages: Outages | None = None,
) -> Links:
    """Connect to every peer, prove both ends, and return the sockets by lane and rank.

    All ranks call it, also those without peers: they take part in the rendezvous.

    Parameters
    ----------
    me : Identity
        This rank, its epoch and the workspace's key.
    peers : mapping of Lane to collection of int
        Ranks that need a link to this one, for each lane.
    addresses : sequence of str
        To listen on, on ports that the system picks.
    rendezvous : Rendezvous
        Where all ranks tell each other their ports.
    timeout : float, optional
        Seconds for all of it.
    host_names : sequence of str, by rank, optional
        For error texts.
    check : callable, optional
        Called about every 20 ms; what it raises ends the attempt (a rank died meanwhile).
    names : sequence of int, by rank, optional
        What error texts call a rank; its own number if left out.
    ways : Ways, optional
        How many of the addresses are used together, and with how many connections each.
    outages : Outages, optional
        What this process knows of paths that are out.

    Returns
    -------
    dict of Lane to dict of int to tuple of socket
        Of every lane that was asked for; a link's connections in the same order at both ends.
        Connected, not inheritable, nothing read or written beyond the handshake.

    Raises
    ------
    CollectiveTimeout
        Names the ranks that did not come.
    DistributedError
        No address to listen on, or the ranks disagree on who needs a link.
    """
    deadline = Deadline(timeout)
    listeners: list[tuple[socket.socket, Endpoint]] = []
    problem = ""
    try:
        wanted = [(lane, peer) for lane in peers for peer in peers[lane]]
        if any(peer > me.rank for _, peer in wanted):
            try:
                listeners = listen(addresses)
            except DistributedError as error:
                problem = str(error)  # told to all, so that nobody waits for this rank
        endpoints = tuple(endpoint for _, endpoint in listeners)
        ranks = tuple(tuple(sorted(peers.get(lane, ()))) for lane in Lane)
        at_once = max(1, min(ways.at_once, len(endpoints or addresses)))
        mine = Share(ranks, endpoints, problem, at_once, ways.per_address, machine())
        packed = rendezvous.all_gather(msgspec.msgpack.encode(mine), timeout=deadline.remaining())
        names = names or range(len(packed))
        shares = read_shares(packed, names)
        counts = {(lane, peer): n_stripes(lane, mine, shares[peer]) for lane, peer in wanted}
        every = [(*link, number) for link, count in counts.items() for number in range(count)]
        theirs = {key: shares[key[1]] for key in every if key[1] < me.rank}
        targets = {k: routes_of(k[0], k[2], mine, s, addresses) for k, s in theirs.items()}
        awaited = {key for key in every if key[1] > me.rank}
        outages = outages or Outages()
        meeting = _Meeting(me, [sock for sock, _ in listeners], awaited, targets, names, outages)
        made = meeting.run(deadline, check, host_names)
        for (lane, peer, _), sock in made.items():
            bound_send_buffer(sock, lane, shares[peer].machine)
        return {
            lane: {
                peer: tuple(made[lane, peer, number] for number in range(counts[lane, peer]))
                for peer in peers[lane]
            }
            for lane in peers
        }
    finally:
        close_all(sock for sock, _ in listeners)


class _Meeting:
    """All connections of one rank while its group forms; owned by one thread."""

    def __init__(
        self,
        me: Identity,
        listeners: Sequence[socket.socket],
        awaited: Collection[_Key],
        targets: Mapping[_Key, Sequence[Route]],
        names: Sequence[int],
        outages: Outages,
    ) -> None:
        self._me = me
        self._names = names
        self._outages = outages
        self._listeners = listeners
        self._awaited = frozenset(awaited)
        self._targets = {key: Target(routes) for key, routes in targets.items()}
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
        """Wait until every link stands; closes everything if that fails."""
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
            if self._n_dropped > DROPS_TOLD:
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
                if ready.data in self._attempts:  # else dropped since, for one that just came
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
                # Out of descriptors: those of strangers are the ones to give back.
                if error.errno not in {errno.EMFILE, errno.ENFILE} or not self._drop_a_knock():
                    raise
                continue
            knocks = sum(isinstance(a.handshake, Acceptor) for a in self._attempts)
            if knocks >= self._max_unproven:
                self._drop_a_knock()
            sock.setblocking(False)
            attempt = Attempt(sock, Acceptor(self._me, self._is_wanted), STRANGER_LIMIT_S)
            if self._start(attempt):
                self._advance(attempt)  # its hello is there already, most often

    def _is_wanted(self, rank: int, lane: Lane, stripe: Stripe) -> bool:
        key = (lane, rank, stripe.number)
        if key not in self._awaited or stripe.of != self._counts[lane, rank]:
            return False
        return key not in self._links or not is_open(self._links[key])

    def _drop_a_knock(self) -> bool:
        """Make room: of those who have not shown the key, else of all, the oldest goes."""
        knocks = [a for a in self._attempts if isinstance(a.handshake, Acceptor)]
        strangers = [a for a in knocks if not a.knows_key]
        for attempt in (strangers or knocks)[:1]:
            self._drop(attempt, "too many connections at once")
        return bool(knocks)

    def _connect_due(self) -> None:
        now = time.monotonic()
        for key, target in self._targets.items():
            if key in self._links or key in self._connecting or now < target.not_before:
                continue
            lane, peer, number = key
            endpoint, source, _ = target.next_route()
            try:
                sock, address = open_socket(
                    endpoint.host, endpoint.port, passive=False, source=source
                )
            except OSError as error:
                self._note(target, error)
                continue
            self._connecting.add(key)
            stripe = Stripe(number, self._counts[lane, peer])
            initiator = Initiator(self._me, peer=peer, lane=lane, stripe=stripe)
            patience_s = self._outages.patience_s(endpoint.host, source)
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
            # Links carry small headers that must not wait for an acknowledgement.
            attempt.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # some systems: it was reset meanwhile
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
            target.came(self._outages, self._names[self._me.rank], self._names[key[1]])

    def _drop_late(self) -> None:
        for attempt in [a for a in self._attempts if a.deadline.is_over()]:
            why = "it did not finish the handshake in time"
            if attempt.is_connecting:
                why = f"no answer within {attempt.deadline}"
                self._targets[attempt.key].was_silent(self._outages)
            self._drop(attempt, why)

    def _drop(self, attempt: Attempt, why: str) -> None:
        self._forget(attempt)
        attempt.sock.close()
        handshake = attempt.handshake
        if isinstance(handshake, Initiator):
            self._note(self._targets[attempt.key], why)
            return
        self._n_dropped += 1
        if self._n_dropped <= DROPS_TOLD:
            _log.info("rank %d: dropped a connection: %s", self._me.rank, why)

    def _forget(self, attempt: Attempt) -> None:
        self._attempts.remove(attempt)
        self._connecting.discard(attempt.key)
        if attempt.sock in self._selector.get_map():
            self._selector.unregister(attempt.sock)

    def _note(self, target: Target, why: object) -> None:
        target.fail(why)
        _log.debug("rank %d: %s", self._me.rank, target.last_error)
