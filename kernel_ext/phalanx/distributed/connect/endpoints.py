"""Open listening sockets, and choose the stripes and routes of a link.

A stripe is one of the connections of a link. Both ends of a link compute the same number of stripes
from the addresses and counts in their shares.

The kernel copies data between two processes of one machine inside memory, so copies limit the speed
of such a link. Copies are twice as fast while the data in flight fits a core's cache. By default
the kernel queues up to `tcp_wmem` (4 MiB). Measured: four ranks on two cores took 8.7 ms for an
`all_sum` of 4 MiB, and take 4.4 ms with a bounded send buffer; two network namespaces took 820 us
for 1 MiB, and take 315 us.

Links to other machines keep the kernel's buffer size: a path with high latency needs a large
buffer.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import MOST_CONNECTIONS

from .handshake import LinkPart, LinkPurpose

_BACKLOG = 512  # connections that wait to be accepted: ranks and some foreign processes
_log = logging.getLogger(__name__)

# The kernel doubles this value; net.core.wmem_max (usually 208 KiB) limits it. Measured with 96 to
# 208 KiB: 192 is the best or second best at each size. With 32 KiB a segment of 64 KiB stalls.
_SEND_BUFFER_NBYTES = 192 << 10


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numeric IPv4 or IPv6 address and port to connect to."""

    host: str
    port: Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)]


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts that a rank sends to all others before links are made.

    ``peers`` are the ranks that this rank needs a link with, by purpose; all ranks check that both
    ends agree. A ``problem`` makes all ranks fail at once, instead of waiting for one that cannot
    connect. The rank uses its first ``at_once`` addresses together, with ``per_address``
    connections over each. ``machine`` identifies the rank's running kernel, see `machine`.
    """

    peers: tuple[tuple[int, ...], ...]
    endpoints: tuple[Endpoint, ...]
    problem: str = ""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=MOST_CONNECTIONS)] = 1
    per_address: Annotated[int, msgspec.Meta(ge=1, le=MOST_CONNECTIONS)] = 1
    machine: str = ""


def open_socket(route: Route) -> tuple[socket.socket, tuple[object, ...]]:
    """Make a non-blocking socket for a route; return it with the address."""
    host, port = route.endpoint.host, route.endpoint.port
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _name, address = found[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    if route.source:
        try:
            sock.bind((route.source, 0))
        except OSError:
            sock.close()
            raise
    return sock, address


def listen(addresses: Sequence[str]) -> list[tuple[socket.socket, Endpoint]]:
    """Listen on an ephemeral port of each usable address.

    An address that cannot be used is skipped and logged. Raises `DistributedError`, with each
    cause, if none can be used.
    """
    listeners: list[tuple[socket.socket, Endpoint]] = []
    refused = []
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        except OSError as error:
            refused.append(f"{address}: {error.strerror or error}")
            continue
        sock.setblocking(False)
        host, port = sock.getsockname()[:2]
        listeners.append((sock, Endpoint(host, port)))
    if not listeners:
        tried = "; ".join(refused) or "none was given"
        msg = f"this rank has no address to listen on ({tried})"
        raise DistributedError(msg)
    # Log only now: without a free descriptor a rank's output cannot be sent (10 s for a line).
    for text in refused:
        _log.warning("cannot listen on %s", text)
    return listeners


def read_shares(packed: Sequence[bytes], names: Sequence[int]) -> list[Share]:
    """Decode and check the shares of all ranks, by rank.

    ``names`` are the numbers of the ranks in error texts. Raises `DistributedError` if a rank has a
    problem, or if the ranks disagree on which links are needed.
    """
    shares = []
    for rank, part in enumerate(packed):
        try:
            share = msgspec.msgpack.decode(part, type=Share)
        except (ValueError, RecursionError):
            share = None
        if (
            share is None
            or len(share.peers) != len(LinkPurpose)
            or 0 < len(share.endpoints) < share.at_once
        ):
            msg = f"rank {names[rank]} said where it listens in a form that this phalanx does not read"
            raise DistributedError(msg)
        shares.append(share)
    for rank, share in enumerate(shares):
        if share.problem:
            msg = f"rank {names[rank]}: {share.problem}"
            raise DistributedError(msg)
    for rank, share in enumerate(shares):
        for purpose, peers in enumerate(share.peers):
            for peer in peers:
                if not 0 <= peer < len(shares) or rank not in shares[peer].peers[purpose]:
                    other = names[peer] if 0 <= peer < len(names) else peer
                    msg = (
                        f"rank {names[rank]} wants a link with rank {other}, which wants none: "
                        "the ranks have descriptions of different worlds"
                    )
                    raise DistributedError(msg)
    return shares


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close sockets that are not needed any more."""
    for sock in sockets:
        sock.close()


@dataclass(frozen=True, slots=True)
class StripeOptions:
    """Options of a rank for using several addresses.

    The rank uses its first ``at_once`` addresses together, with ``per_address`` connections over
    each. The other addresses replace an address that cannot be reached. A link uses the smaller
    value of both ends for each option.
    """

    at_once: int = 1
    per_address: int = 1


UNSTRIPED = StripeOptions()


class Route(NamedTuple):
    """Endpoint to connect to and source address; "": the system's choice.

    A detour shares the path of another connection, so the link is slower than it should be.

    Examples
    --------
    >>> str(Route(Endpoint("10.0.1.1", 4711), "10.0.1.2"))
    '10.0.1.1 port 4711 from 10.0.1.2'
    """

    endpoint: Endpoint
    source: str = ""
    is_detour: bool = False

    def __str__(self) -> str:
        host, port = self.endpoint.host, self.endpoint.port
        return f"{host} port {port}{f' from {self.source}' if self.source else ''}"


def n_stripes(purpose: LinkPurpose, mine: Share, theirs: Share) -> int:
    """Return the number of connections of a link between two ranks.

    A link for messages has one connection. Ranks that send several messages at a time use several
    pairs of ranks, and each further connection costs a socket for every two ranks.

    Examples
    --------
    >>> two, three = Share(((), ()), (), at_once=2), Share(((), ()), (), at_once=3, per_address=2)
    >>> [n_stripes(LinkPurpose.COLLECTIVE, *both) for both in ((two, two), (two, three), (three, three))]
    [2, 2, 6]
    >>> n_stripes(LinkPurpose.PAIR, three, three)
    1
    """
    if purpose is LinkPurpose.PAIR:
        return 1
    return _at_once(mine, theirs) * min(mine.per_address, theirs.per_address)


def routes_of(
    part: LinkPart, mine: Share, theirs: Share, sources: Sequence[str]
) -> tuple[Route, ...]:
    """Return the routes to try for one connection, the best first.

    If several addresses are used at once, connection i goes from this rank's address i to the
    peer's address i. The second route leaves the source address to the system, because a card may
    be in another network than its address suggests. The last routes go to the peer's other
    addresses, so that a world with a broken second cable is slow but works.

    Examples
    --------
    >>> a, b = Endpoint("10.0.0.2", 1), Endpoint("10.0.1.2", 2)
    >>> two = Share(((), ()), (a, b), at_once=2)
    >>> [tuple(r)[1:] for r in routes_of(LinkPart(0, stripe=1), two, two, ["10.0.0.1", "10.0.1.1"])]
    [('10.0.1.1', False), ('', False), ('', True)]
    >>> routes_of(LinkPart(0, LinkPurpose.PAIR), two, two, ["10.0.0.1", "10.0.1.1"])[0].source
    ''
    """
    at_once = 1 if part.purpose is LinkPurpose.PAIR else _at_once(mine, theirs)
    endpoints = theirs.endpoints
    if at_once == 1:
        return tuple(map(Route, endpoints))
    place = part.stripe % at_once
    own = endpoints[place]
    others = (*endpoints[:place], *endpoints[place + 1 :])
    return (
        Route(own, sources[place]),
        Route(own),
        *(Route(endpoint, is_detour=True) for endpoint in others),
    )


def _at_once(mine: Share, theirs: Share) -> int:
    return min(mine.at_once, theirs.at_once)


@cache
def machine() -> str:
    """Identify the running kernel by a hash; "" if unknown.

    Ranks in different containers compare this to find that they share a kernel. The boot id is
    hashed, because ranks send it to each other and need only compare it.
    """
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return hashlib.sha256(b"phalanx machine " + boot.strip()).hexdigest()[:32]
    return ""


def bound_send_buffer(sock: socket.socket, purpose: LinkPurpose, there: str) -> None:
    """Limit a link's send buffer if both ends run on this machine.

    A buffer that fits a core's cache is faster, see the module. Links for messages have a size of
    their own (`point_to_point.cpp`). If the limit cannot be set, the link is only slower.
    """
    if purpose is LinkPurpose.COLLECTIVE and there and there == machine():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_NBYTES)
