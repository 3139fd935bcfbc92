"""Which addresses hosts reach each other by on the networks they are on already.

Pure: surveys in, addresses out. Networks are told by their prefix, so no host is asked again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ._survey import Interface, Survey

__all__ = ["Network", "addresses_on", "best_networks", "shared_networks"]

# What ranks rather use; a bridge is a container's or a virtual machine's more often than not.
_PREFERENCE = {
    "infiniband": 0, "ethernet": 0, "thunderbolt": 1, "virtual": 2, "wifi": 3, "bridge": 4
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """One network and who is on it: by host the interface and the address.

    ``speed_mbps`` is that of its slowest member, 0 where one of them is not known.
    """

    prefix: str
    members: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    preference: int = 0
    speed_mbps: int = 0

    @property
    def version(self) -> int:
        """Return 4 or 6."""
        return ipaddress.ip_network(self.prefix).version


def usable(survey: Survey) -> list[tuple[Interface, str]]:
    """Return a host's interfaces that are up, each with each of its addresses."""
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
    """Return the networks that two hosts or more are on, the best first.

    Where two hosts have one and the same address (a container bridge on each of them), it is not
    one network but several that are called alike.
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
    return sorted(networks, key=_key)


def _key(network: Network) -> tuple[int, int, int]:
    return network.preference, -network.speed_mbps, network.version


def best_networks(networks: Sequence[Network], n: int, wanted: Sequence[str] = ()) -> list[Network]:
    """Return the networks that all ``n`` hosts should use together; none where none has all.

    Parameters
    ----------
    networks : sequence of Network
        As `shared_networks` sorts them.
    n : int
        How many hosts there are.
    wanted : sequence of str
        Addresses that the user has named: a network with one of them comes first, and alone.

    Notes
    -----
    Several are used at once only if they are known to be equally fast, and on cards of their own:
    what is sent is divided evenly, so the slowest would hold the others up.
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
        is_alike = _key(network) == _key(best[0]) and network.speed_mbps > 0
        cards = {(i, name) for other in best for i, (name, _) in other.members.items()}
        if is_alike and not any((i, name) in cards for i, (name, _) in network.members.items()):
            best.append(network)
    return best


def addresses_on(survey: Survey) -> list[str]:
    """Return a host's addresses, the one it is best reached by first."""
    ranked = sorted(
        usable(survey),
        key=lambda item: (
            _PREFERENCE[item[0].kind],
            -item[0].speed_mbps,
            ipaddress.ip_interface(item[1]).version,
        ),
    )
    return [str(ipaddress.ip_interface(text).ip) for _, text in ranked]
