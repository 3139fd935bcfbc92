"""Which sockets of which hosts a cable joins, and the addresses its two ends get.

Pure: surveys in, cables out. The same surveys give the same addresses, in MLX's order.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ._survey import Port, Survey

__all__ = ["Cable", "count_cables", "find_cables"]

_End = tuple[int, int]  # a host, and the place of one of its ports


@dataclass(frozen=True)
class Cable:
    """One cable between host ``a`` and host ``b``, and what its ends are called there.

    The addresses are of a network of their own, with 30 bits. ``is_one_sided``: only one of the two
    hosts sees the other.
    """

    a: int
    a_interface: str
    a_address: str
    b: int
    b_interface: str
    b_address: str
    is_one_sided: bool = False

    def end(self, host: int) -> tuple[str, str]:
        """Return interface and address of its end at a host."""
        if host == self.a:
            return self.a_interface, self.a_address
        return self.b_interface, self.b_address


def find_cables(surveys: Sequence[Survey]) -> tuple[Cable, ...]:
    """Find the Thunderbolt cables between the hosts.

    Raises
    ------
    ValueError
        There are more than the addresses suffice for.

    Notes
    -----
    Each port tells its domain and those it sees: a cable is where two see each other. Ports of one
    domain (several sockets on Linux) are paired in the order of their interfaces' names. A network
    192.168.X.0/24 that a host uses otherwise gets none of the addresses.
    """
    at_domain: dict[str, list[_End]] = defaultdict(list)
    for i, survey in enumerate(surveys):
        for p, port in enumerate(survey.ports):
            at_domain[port.domain].append((i, p))
    used: set[tuple[_End, str]] = set()
    addresses = _Addresses(surveys)
    found = []
    for i, survey in enumerate(surveys):
        for p, port in enumerate(survey.ports):
            for domain in port.peers:
                if ((i, p), domain) in used:
                    continue
                other = _other_end(surveys, (i, p), at_domain.get(domain, ()), used)
                if other is None:
                    continue
                j, peer = other[0], surveys[other[0]].ports[other[1]]
                used |= {((i, p), domain), (other, port.domain)}
                mine, theirs = addresses.pair()
                one_sided = port.domain not in peer.peers
                found.append(Cable(i, port.interface, mine, j, peer.interface, theirs, one_sided))
    return tuple(found)


def _other_end(
    surveys: Sequence[Survey], end: _End, candidates: Sequence[_End], used: set[tuple[_End, str]]
) -> _End | None:
    own = _port(surveys, end).domain
    free = [other for other in candidates if other[0] != end[0] and (other, own) not in used]
    mutual = [other for other in free if own in _port(surveys, other).peers]
    return next(iter(mutual or free), None)


def _port(surveys: Sequence[Survey], end: _End) -> Port:
    return surveys[end[0]].ports[end[1]]


class _Addresses:
    """Hands out networks of two addresses: 192.168.0.1 and .2, then .5 and .6."""

    def __init__(self, surveys: Sequence[Survey]) -> None:
        cabled = {(i, port.interface) for i, survey in enumerate(surveys) for port in survey.ports}
        taken = [
            network
            for i, survey in enumerate(surveys)
            for interface in survey.interfaces
            # What a cable has now is from the last set-up, and may come again.
            if (i, interface.name) not in cabled and interface.kind != "thunderbolt"
            for network in (ipaddress.ip_interface(text).network for text in interface.addresses)
            if isinstance(network, ipaddress.IPv4Network) and network.prefixlen > 8
        ]
        blocks = ipaddress.IPv4Network("192.168.0.0/16").subnets(new_prefix=24)
        self._free = (
            network
            for block in blocks
            if not any(block.overlaps(other) for other in taken)
            for network in block.subnets(new_prefix=30)
        )

    def pair(self) -> tuple[str, str]:
        network = next(self._free, None)
        if network is None:
            msg = "there are more cables than networks in 192.168.0.0/16"
            raise ValueError(msg)
        first, second = network.hosts()
        return str(first), str(second)


def count_cables(n: int, cables: Sequence[Cable]) -> list[list[int]]:
    """Return how many cables there are between each two of ``n`` hosts."""
    counts = [[0] * n for _ in range(n)]
    for cable in cables:
        counts[cable.a][cable.b] += 1
        counts[cable.b][cable.a] += 1
    return counts
