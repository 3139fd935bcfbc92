"""Find the cables, networks and RDMA fabrics that connect hosts.

Pure functions of surveys. The same surveys give the same cable addresses, in MLX's order. Networks
are identified by their prefix, so no host is asked again.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from phalanx.errors import DistributedError
from phalanx.hosts import Host, Rdma, bare_name, is_address

from .surveys import Interface, Port, Survey

# Lower is preferred; a bridge mostly belongs to a container or virtual machine.
_PREFERENCE = {
    "infiniband": 0, "ethernet": 0, "thunderbolt": 1, "virtual": 2, "wifi": 3, "bridge": 4
}  # fmt: skip

_MOST_SHOWN = 24  # hosts per line


@dataclass(frozen=True)
class Network:
    """A network of hosts; that of a cable has two.

    ``members`` maps hosts to interface and address. ``speed_mbps`` is that of the slowest member,
    0 if one of the speeds is unknown. ``is_one_sided``: only one end of the cable sees the other.
    """

    prefix: str
    members: Mapping[int, tuple[str, str]]
    preference: int = 0
    speed_mbps: int = 0
    is_one_sided: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the key by which networks are sorted, best first."""
        return self.preference, -self.speed_mbps, ipaddress.ip_network(self.prefix).version

    def ends(self, names: Sequence[str]) -> str:
        """Name each host with its interface: a en2 - b en3."""
        return " - ".join(f"{names[i]} {interface}" for i, (interface, _) in self.members.items())


def find_cables(surveys: Sequence[Survey]) -> tuple[Network, ...]:
    """Find the Thunderbolt cables between the hosts, as networks of two.

    Raises
    ------
    ValueError
        There are more cables than addresses.

    Notes
    -----
    Each port reports its own domain and the domains that it sees: two ports that see each other
    have a cable. Ports of one domain (several sockets on Linux) are paired in the order of
    interface names. A network 192.168.X.0/24 that a host uses otherwise provides no addresses.
    """
    ends = [(i, port) for i, survey in enumerate(surveys) for port in survey.ports]
    at_domain: dict[str, list[tuple[int, Port]]] = defaultdict(list)
    for i, port in ends:
        at_domain[port.domain].append((i, port))
    used: set[tuple[int, str, str]] = set()  # host, interface, and the other end's domain
    addresses = _address_pairs(surveys)
    found = []
    for i, port in ends:
        for domain in port.peers:
            free = [
                (j, other)
                for j, other in at_domain.get(domain, ())
                if j != i and (j, other.interface, port.domain) not in used
            ]
            if not free or (i, port.interface, domain) in used:
                continue
            j, other = min(free, key=lambda end: port.domain not in end[1].peers)
            used |= {(i, port.interface, domain), (j, other.interface, port.domain)}
            prefix, mine, theirs = next(addresses)
            members = {i: (port.interface, mine), j: (other.interface, theirs)}
            is_one_sided = port.domain not in other.peers
            found.append(Network(prefix, members, is_one_sided=is_one_sided))
    return tuple(found)


def _address_pairs(surveys: Sequence[Survey]) -> Iterator[tuple[str, str, str]]:
    """Yield networks with their two addresses: 192.168.0.0/30 with 192.168.0.1 and .2, ..."""
    cabled = {(i, port.interface) for i, survey in enumerate(surveys) for port in survey.ports}
    taken = [
        network
        for i, survey in enumerate(surveys)
        for interface in survey.interfaces
        # The present address of a cable is from the last setup and may be assigned again.
        if (i, interface.name) not in cabled and interface.kind != "thunderbolt"
        for network in (ipaddress.ip_interface(text).network for text in interface.addresses)
        if isinstance(network, ipaddress.IPv4Network) and network.prefixlen > 8
    ]
    for block in ipaddress.IPv4Network("192.168.0.0/16").subnets(new_prefix=24):
        if not any(block.overlaps(other) for other in taken):
            for network in block.subnets(new_prefix=30):
                first, second = network.hosts()
                yield str(network), str(first), str(second)
    msg = "there are more cables than networks in 192.168.0.0/16"
    raise ValueError(msg)


def count_shared(n: int, networks: Sequence[Network]) -> list[list[int]]:
    """Count the networks that each two of ``n`` hosts share."""
    counts = [[0] * n for _ in range(n)]
    for network in networks:
        for i, j in permutations(network.members, 2):
            counts[i][j] += 1
    return counts


def usable(survey: Survey) -> list[tuple[Interface, str]]:
    """Return each usable address of a host with its interface."""
    return [
        (interface, text)
        for interface in survey.interfaces
        if interface.is_up and interface.kind != "loopback"
        for text in interface.addresses
        if not _is_useless(text)
    ]


def _is_useless(text: str) -> bool:
    address = ipaddress.ip_interface(text).ip
    return address.is_loopback or address.is_link_local or address.is_unspecified


def shared_networks(surveys: Sequence[Survey]) -> list[Network]:
    """Return the networks that at least two hosts share, best first.

    If two hosts have the same address (a container bridge on each), the prefix stands for several
    separate networks and is left out.
    """
    found: dict[str, dict[int, tuple[Interface, str]]] = {}
    alike = set()
    for i, survey in enumerate(surveys):
        for interface, text in usable(survey):
            parsed = ipaddress.ip_interface(text)
            members = found.setdefault(str(parsed.network), {})
            if any(address == str(parsed.ip) for j, (_, address) in members.items() if j != i):
                alike.add(str(parsed.network))
            members.setdefault(i, (interface, str(parsed.ip)))
    networks = [
        Network(
            prefix,
            {i: (interface.name, address) for i, (interface, address) in members.items()},
            max(_PREFERENCE[interface.kind] for interface, _ in members.values()),
            min(interface.speed_mbps for interface, _ in members.values()),
        )
        for prefix, members in found.items()
        if len(members) > 1 and prefix not in alike
    ]
    return sorted(networks, key=lambda network: network.order)


def best_networks(networks: Sequence[Network], n: int, wanted: Sequence[str] = ()) -> list[Network]:
    """Return the networks that all ``n`` hosts should use; may be empty.

    A network with one of the addresses ``wanted`` is used alone. Several networks are used only if
    they are known to be equally fast and use different cards: data is divided evenly, so the
    slowest network would delay the others.
    """
    common = [network for network in networks if len(network.members) == n]
    named = [
        network
        for network in common
        if any(address in wanted for _, address in network.members.values())
    ]
    if named:
        return named[:1]
    best = common[:1]
    for network in common[1:]:
        is_alike = network.order == best[0].order and network.speed_mbps > 0
        cards = {(i, name) for other in best for i, (name, _) in other.members.items()}
        if is_alike and not any((i, name) in cards for i, (name, _) in network.members.items()):
            best.append(network)
    return best


def addresses_on(survey: Survey) -> list[str]:
    """Return a host's addresses, the preferred one first."""
    ranked = sorted(
        usable(survey),
        key=lambda item: (
            _PREFERENCE[item[0].kind],
            -item[0].speed_mbps,
            ipaddress.ip_interface(item[1]).version,
        ),
    )
    return [str(ipaddress.ip_interface(text).ip) for _, text in ranked]


class DiscoveryError(DistributedError):
    """Error for hosts that cannot be connected; lists what is missing."""


def reach(
    hosts: Sequence[Host], surveys: Sequence[Survey], networks: Sequence[Network]
) -> tuple[dict[int, tuple[str, ...]], tuple[str, ...]]:
    """Choose addresses at which all hosts reach each other; return remarks, too.

    Raises
    ------
    DiscoveryError
        Some hosts have no address; the text names them.
    """
    n, names = len(hosts), [host.ssh for host in hosts]
    wanted = [ip for host in hosts for ip in host.ips]
    wanted += [name for name in map(bare_name, names) if is_address(name)]
    best = best_networks(networks, n, wanted)
    if best:
        ips = {i: tuple(network.members[i][1] for network in best) for i in range(n)}
        return ips, ()
    own = {i: tuple(addresses_on(survey)[:1]) for i, survey in enumerate(surveys)}
    if n == 1 and not own[0]:
        own[0] = ("127.0.0.1",)
    lost = [names[i] for i in range(n) if not own[i]]
    if lost:
        msg = f"{', '.join(lost)}: no address that others could reach"
        raise DiscoveryError(msg)
    said = ", ".join(f"{names[i]} {own[i][0]}" for i in range(min(n, _MOST_SHOWN)))
    remark = f"no network has all hosts on it; each is to be reached at its own address: {said}"
    return own, (remark,) if n > 1 else ()


def fabric_rows(
    names: Sequence[str], surveys: Sequence[Survey], networks: Sequence[Network], backend: str
) -> list[tuple[Rdma, ...]]:
    """Return each host's row of RDMA devices on a common fabric.

    Raises
    ------
    DiscoveryError
        There is no common fabric; the text names the hosts without an active device.
    """
    n = len(surveys)
    devices = [_by_fabric(i, survey, networks) for i, survey in enumerate(surveys)]
    common = [fabric for fabric in devices[0] if all(fabric in other for other in devices)]
    if not common:
        bare = [names[i] for i in range(n) if not devices[i]]
        why = (
            f"{', '.join(bare)}: no active RDMA device"
            if bare
            else "no network of RDMA devices has all hosts on it"
        )
        msg = f"{why}; say --backend ring"
        raise DiscoveryError(msg)
    own = [found[common[0]] for found in devices]
    return [
        tuple(own[i] if is_peer(i, j, n, backend) else None for j in range(n)) for i in range(n)
    ]


def is_peer(i: int, j: int, n: int, backend: str) -> bool:
    """Whether two places in the order of ``n`` hosts exchange data.

    In a mesh (jaccl) all do, in a ring neighbours.
    """
    return i != j and (backend == "jaccl" or (i - j) % n in {1, n - 1})


def _by_fabric(host: int, survey: Survey, networks: Sequence[Network]) -> dict[str, str]:
    """Return a host's active devices by InfiniBand subnet or RoCE network."""
    found: dict[str, str] = {}
    for device in sorted(survey.rdma, key=lambda device: -device.speed_mbps):
        if not device.is_active:
            continue
        if device.fabric:
            found.setdefault(device.fabric, device.name)
            continue
        for network in networks:
            if host in network.members and network.members[host][0] == device.interface:
                found.setdefault(network.prefix, device.name)
    return found


def cables_to_dot(names: Sequence[str], cables: Sequence[Network]) -> str:
    """Draw each cable as an edge with its two interfaces.

    Examples
    --------
    >>> print(cables_to_dot(["h0", "h1"], [Network("", {0: ("en2", ""), 1: ("en3", "")})]))
    graph G {
      node [shape=rectangle];
      a [label="h0"];
      b [label="h1"];
      a -- b [label="en2/en3"]
    }
    """
    lines = _head(names)
    for cable in cables:
        label = _quoted("/".join(interface for interface, _ in cable.members.values()))
        lines.append(f"  {' -- '.join(map(_id, cable.members))} [label={label}]")
    return "\n".join([*lines, "}"])


def networks_to_dot(names: Sequence[str], networks: Sequence[Network]) -> str:
    """Draw each network as a node with edges to its hosts."""
    lines = _head(names)
    for number, network in enumerate(networks):
        lines.append(f"  net{number} [shape=ellipse label={_quoted(network.prefix)}];")
        for host, (interface, address) in sorted(network.members.items()):
            label = _quoted(f"{interface} {address}")
            lines.append(f"  {_id(host)} -- net{number} [label={label}]")
    return "\n".join([*lines, "}"])


def _head(names: Sequence[str]) -> list[str]:
    hosts = (f"  {_id(place)} [label={_quoted(name)}];" for place, name in enumerate(names))
    return ["graph G {", "  node [shape=rectangle];", *hosts]


def _id(place: int) -> str:
    """Convert an index to an alphabetic id: a, ..., z, aa, ab."""
    name = ""
    while place >= 0:
        name = chr(97 + place % 26) + name
        place = place // 26 - 1
    # Graphviz keywords (node, edge, graph, ...) have 4 characters or more: quote those ids.
    return name if len(name) < 4 else f'"{name}"'


def _quoted(text: str) -> str:
    plain = " ".join(text.replace("\\", "\\\\").replace('"', '\\"').split())
    return f'"{plain}"'
