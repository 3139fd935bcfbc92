"""Listening sockets on exactly the addresses a rank was given, and how to name them to peers.

It opens ports and says which; who may come in is decided in `_connect`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from phalanx.errors import DistributedError
from phalanx.protocol import MOST_CONNECTIONS

from ._handshake import Lane

__all__ = ["Endpoint", "Share", "close_all", "listen", "open_socket", "read_shares"]

_BACKLOG = 512  # connections the kernel holds while we are busy: ranks and some strangers
_log = logging.getLogger(__name__)


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place to connect to: a numeric IPv4 or IPv6 address and a port."""

    host: str
    port: Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)]


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank tells all others before links are made.

    ``peers`` are the ranks it wants a link with, by lane; all ranks check that both ends agree. A
    ``problem`` makes all of them fail at once instead of waiting for one that cannot come. It uses
    its first ``at_once`` addresses together, with ``per_address`` connections over each.
    ``machine`` is the kernel it runs under, see `_machine`.
    """

    peers: tuple[tuple[int, ...], ...]
    endpoints: tuple[Endpoint, ...]
    problem: str = ""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=MOST_CONNECTIONS)] = 1
    per_address: Annotated[int, msgspec.Meta(ge=1, le=MOST_CONNECTIONS)] = 1
    machine: str = ""


def open_socket(
    host: str, port: int, *, passive: bool, source: str = ""
) -> tuple[socket.socket, tuple[object, ...]]:
    """Make a non-blocking stream socket for a numeric address or a name, and its full address.

    It is bound to ``source``, a numeric address of this machine, if there is one.
    """
    flags = socket.AI_PASSIVE if passive else socket.AI_NUMERICHOST
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    family, kind, protocol, _name, address = found[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    if source:
        try:
            at = socket.getaddrinfo(source, 0, family, kind, flags=socket.AI_NUMERICHOST)
            sock.bind(at[0][4])
        except OSError:
            sock.close()
            raise
    return sock, address


def _listen_on(address: str) -> socket.socket:
    sock, full = open_socket(address, 0, passive=True)
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(full)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def listen(addresses: Sequence[str]) -> list[tuple[socket.socket, Endpoint]]:
    """Listen on an ephemeral port of each address; one that cannot be used is skipped and logged.

    Raises
    ------
    DistributedError
        None of the addresses can be used (names each with its cause).
    """
    listeners: list[tuple[socket.socket, Endpoint]] = []
    refused = []
    for address in addresses:
        try:
            sock = _listen_on(address)
        except OSError as error:
            refused.append(f"{address}: {error.strerror or error}")
            continue
        host, port = sock.getsockname()[:2]
        listeners.append((sock, Endpoint(host, port)))
    if not listeners:
        tried = "; ".join(refused) or "none was given"
        msg = f"this rank has no address to listen on ({tried})"
        raise DistributedError(msg)
    # Not before: where no descriptor is left, a rank's output cannot be sent either (10 s for a line).
    for text in refused:
        _log.warning("cannot listen on %s", text)
    return listeners


def read_shares(packed: Sequence[bytes], names: Sequence[int]) -> list[Share]:
    """Read what all ranks have said, by rank; ``names`` are what error texts call them.

    Raises
    ------
    DistributedError
        A rank has a problem, has said something else, or the ranks disagree on who needs a link.
    """
    shares = []
    for rank, part in enumerate(packed):
        try:
            share = msgspec.msgpack.decode(part, type=Share)
        except (ValueError, RecursionError):
            share = None
        if (
            share is None
            or len(share.peers) != len(Lane)
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
        for lane, peers in enumerate(share.peers):
            for peer in peers:
                if not 0 <= peer < len(shares) or rank not in shares[peer].peers[lane]:
                    other = names[peer] if 0 <= peer < len(names) else peer
                    msg = (
                        f"rank {names[rank]} wants a link with rank {other}, which wants none: "
                        "the ranks were told different worlds"
                    )
                    raise DistributedError(msg)
    return shares


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close sockets that nobody needs any more."""
    for sock in sockets:
        sock.close()
