"""From measured times to a ring: which order, and for each neighbour which of its addresses.

Pure: discovery, plan and times in, a plan out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ._cables import Cable
from ._host import Host, Hostfile
from ._networks import Network
from ._order import order_ring
from ._planning import Discovery, Plan
from ._probes import PathTimes
from ._reach import DiscoveryError

__all__ = ["cable_networks", "measured_plan"]

# What is sent is divided evenly among a neighbour's addresses: a path that is slower than this
# share of the fastest holds it up more than it helps.
_ALIKE = 0.8


def cable_networks(cables: Sequence[Cable]) -> list[Network]:
    """Return the network that each cable is once its addresses are set."""
    return [
        Network(
            f"{c.a_address} - {c.b_address}",
            {c.a: (c.a_interface, c.a_address), c.b: (c.b_interface, c.b_address)},
        )
        for c in cables
    ]


def measured_plan(
    discovery: Discovery, plan: Plan, networks: Sequence[Network], times: Sequence[PathTimes]
) -> Plan:
    """Order the ring, and choose the addresses, by what was measured.

    Parameters
    ----------
    discovery : Discovery
        The hosts.
    plan : Plan
        What was planned without times.
    networks : sequence of Network
        Those that were measured.
    times : sequence of PathTimes
        What was measured on them.

    Raises
    ------
    DiscoveryError
        No ring has a path between all its neighbours; names those that have failed.
    """
    n = len(discovery.hosts)
    paths: dict[tuple[int, int], list[PathTimes]] = {}
    for path in times:
        if not path.failure:
            paths.setdefault((path.a, path.b), []).append(path)
    for found in paths.values():
        found.sort(key=lambda path: (-_rate(path), path.latency_us))
    rates = [[0.0] * n for _ in range(n)]
    latency = [[0.0] * n for _ in range(n)]
    for (a, b), found in paths.items():
        # Several equally fast paths are used together.
        rates[a][b] = rates[b][a] = sum(_rate(path) for path in _together(found, networks))
        latency[a][b] = latency[b][a] = found[0].latency_us
    order = order_ring(rates, latency)
    if not order:
        failed = [
            f"{discovery.names[path.a]} - {discovery.names[path.b]} ({path.failure})"
            for path in times
            if path.failure
        ]
        msg = f"no ring of paths that could be measured; failed: {'; '.join(failed) or 'none'}"
        raise DiscoveryError(msg)
    if n < 2:
        return plan
    known = {network.prefix: network for network in networks}
    hosts: list[Host] = []
    used: dict[str, Network] = {}
    for place, me in enumerate(order):
        before = order[place - 1]
        chosen = _together(paths[min(me, before), max(me, before)], networks)
        used |= {path.network: known[path.network] for path in chosen}
        ips = tuple(known[path.network].members[me][1] for path in chosen)
        host = discovery.hosts[me]
        hosts.append(Host(host.ssh, ips, (), host.slots, host.max_slots, host.port))
    slowest = min(rates[order[k - 1]][order[k]] for k in range(n))
    remark = f"measured: the slowest place of the ring has {slowest:.2f} GB/s"
    return replace(
        plan,
        hostfile=Hostfile(tuple(hosts), plan.hostfile.backend, plan.hostfile.envs),
        order=order,
        networks=tuple(used.values()) if plan.over == "ethernet" else plan.networks,
        remarks=(*plan.remarks, remark),
    )


def _rate(path: PathTimes) -> float:
    return min(path.there_gbs, path.back_gbs)


def _together(found: Sequence[PathTimes], networks: Sequence[Network]) -> list[PathTimes]:
    """Return the paths that are about as fast as the fastest, each on cards of its own.

    On the same cards the network that comes first is taken: which of two addresses of a card was
    faster today is chance, and neighbours should agree.
    """
    known = {network.prefix: network for network in networks}
    order = {prefix: place for place, prefix in enumerate(known)}
    alike = [path for path in found if _rate(path) >= _ALIKE * _rate(found[0])]
    first: dict[str, frozenset[tuple[int, str]]] = {}
    for path in sorted(alike, key=lambda path: order[path.network]):
        members = known[path.network].members
        own = frozenset((host, members[host][0]) for host in (path.a, path.b))
        if not any(own & taken for taken in first.values()):
            first[path.network] = own
    return [path for path in alike if path.network in first]
