"""Make a hostfile from surveys of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from typing import Literal

import msgspec

from phalanx.hosts import Host, Hostfile, Rdma

from .networks import (
    DiscoveryError,
    Network,
    best_networks,
    cables_to_dot,
    count_shared,
    fabric_rows,
    find_cables,
    is_peer,
    networks_to_dot,
    reach,
    shared_networks,
)
from .ring_search import RingSearch, find_ring, missing_in_ring
from .surveys import Survey

Over = Literal["thunderbolt", "ethernet", "any"]
_MOST_SHOWN = 24  # pairs of hosts per line


@dataclass(frozen=True)
class Plan:
    """A hostfile, and the cables or networks that it uses.

    ``cables`` are the cables that need addresses (none if existing networks are used). ``remarks``
    are for the user.
    """

    hostfile: Hostfile
    over: Literal["thunderbolt", "ethernet"]
    cables: tuple[Network, ...] = ()
    remarks: tuple[str, ...] = ()


class Discovery:
    """Survey results of hosts, and the plans made from them."""

    def __init__(self, hosts: Sequence[Host], surveys: Sequence[Survey]) -> None:
        self.hosts, self.surveys = tuple(hosts), tuple(surveys)
        self.names = [host.ssh for host in hosts]
        self.cables = find_cables(surveys)
        self.networks = tuple(shared_networks(surveys))
        self.counts = count_shared(len(hosts), self.cables)

    @cached_property
    def ring(self) -> RingSearch:
        """Ring over the cables."""
        return find_ring(self.counts, self.names)

    def dot(self, over: Over) -> str:
        """Return the cables or networks as Graphviz text."""
        if over == "ethernet" or (over == "any" and not self.cables):
            return networks_to_dot(self.names, self.networks)
        return cables_to_dot(self.names, self.cables)

    def plan(self, over: Over, backend: str | None = None, envs: Sequence[str] = ()) -> Plan:
        """Make the hostfile.

        Parameters
        ----------
        over : {'thunderbolt', 'ethernet', 'any'}
            ``any``: cables if they connect all hosts, else the existing networks.
        backend : {'ring', 'jaccl', 'jaccl-ring'}, optional
            By default chosen from the cables and devices by MLX's rules.
        envs : sequence of str
            Stored in the hostfile.

        Raises
        ------
        DiscoveryError
            No plan is possible; the text names everything that is missing.
        """
        plan = self._plan(over, backend)
        hostfile = msgspec.structs.replace(plan.hostfile, envs=tuple(envs))
        return replace(plan, hostfile=hostfile)

    def _plan(self, over: Over, backend: str | None) -> Plan:
        if over == "ethernet" or len(self.hosts) == 1:
            return self._over_networks(backend or ("" if over == "ethernet" else "ring"))
        if over == "thunderbolt":
            return self._over_cables(backend)
        if not self.cables:
            return self._over_networks(backend or "ring")
        try:
            return self._over_cables(backend)
        except DiscoveryError as error:
            plan = self._over_networks(backend or "ring")
            remark = f"Thunderbolt cannot be used: {error}; the hosts' other networks are"
            return replace(plan, remarks=(remark, *plan.remarks))

    # -- over cables --------------------------------------------------------------------------

    def _over_cables(self, backend: str | None) -> Plan:
        pairs = combinations(range(len(self.hosts)), 2)
        lacking = [(i, j) for i, j in pairs if not self.counts[i][j]]
        bare = [self.names[i] for i in range(len(self.hosts)) if not self.surveys[i].rdma]
        if backend is None:
            backend = self._decide(lacking, bare)
        if backend == "jaccl" and lacking:
            said = self._pairs(lacking)
            msg = f"no full mesh: {len(lacking)} of its cables are missing: {said}"
            raise DiscoveryError(msg)
        if backend in {"ring", "jaccl-ring"} and not self.ring.ring:
            raise DiscoveryError(self._no_ring())
        if backend != "ring" and bare:
            msg = (
                f"{', '.join(bare)}: no RDMA device; it is switched on in macOS recovery "
                "(rdma_ctl enable), or say --backend ring"
            )
            raise DiscoveryError(msg)
        remarks = [
            f"the cable {cable.ends(self.names)} is seen from one side only"
            for cable in self.cables
            if cable.is_one_sided
        ]
        if backend == "ring":
            hosts = self._in_ring(self.ring, self.cables)
        else:
            hosts, more = self._with_devices(backend)
            remarks += more
        return Plan(Hostfile(hosts, backend), "thunderbolt", self.cables, tuple(remarks))

    def _decide(self, lacking: Sequence[tuple[int, int]], bare: Sequence[str]) -> str:
        if not bare and not lacking:
            return "jaccl"
        if self.ring.ring:
            return "ring" if bare else "jaccl-ring"
        msg = f"neither a mesh nor a ring: {self._no_ring()}"
        raise DiscoveryError(msg)

    def _no_ring(self) -> str:
        wanted = missing_in_ring(self.counts)
        said = f"no full ring: {self.ring.reason}"
        return f"{said}; one would be there with cables {self._pairs(wanted)}" if wanted else said

    def _pairs(self, pairs: Sequence[tuple[int, int]]) -> str:
        shown = ", ".join(f"{self.names[a]} - {self.names[b]}" for a, b in pairs[:_MOST_SHOWN])
        left = len(pairs) - _MOST_SHOWN
        return f"{shown} and {left} more" if left > 0 else shown

    def _in_ring(self, search: RingSearch, networks: Sequence[Network]) -> tuple[Host, ...]:
        """Return the hosts in the order of a ring.

        A host has its addresses on the networks by which its predecessor connects.
        """
        befores = (search.ring[-1], *search.ring[:-1])
        return tuple(
            self._host(me, [its[1] for its in _ends(networks, me, before)[: search.cables]])
            for me, before in zip(search.ring, befores, strict=True)
        )

    def _with_devices(self, backend: str) -> tuple[tuple[Host, ...], tuple[str, ...]]:
        """Return the hosts with the devices of their cables, and remarks."""
        order, width = self.ring.ring, self.ring.cables
        if backend == "jaccl":
            order = tuple(range(len(self.hosts)))
            width = min(self.counts[i][j] for i, j in permutations(order, 2))
        ips, remarks = self._reach()
        rows = [
            tuple(
                self._devices(me, other, width) if is_peer(i, j, len(order), backend) else None
                for j, other in enumerate(order)
            )
            for i, me in enumerate(order)
        ]
        hosts = (self._host(me, ips[me][:1], row) for me, row in zip(order, rows, strict=True))
        return tuple(hosts), remarks

    def _devices(self, host: int, other: int, width: int) -> str | tuple[str, ...]:
        by_interface = {device.interface: device.name for device in self.surveys[host].rdma}
        names = []
        for interface, _ in _ends(self.cables, host, other)[:width]:
            if interface not in by_interface:
                msg = f"{self.names[host]}: {interface} has no RDMA device; say --backend ring"
                raise DiscoveryError(msg)
            names.append(by_interface[interface])
        return names[0] if width == 1 else tuple(names)

    def _host(self, place: int, ips: Sequence[str], rdma: tuple[Rdma, ...] = ()) -> Host:
        return msgspec.structs.replace(self.hosts[place], ips=tuple(ips), rdma=rdma)

    # -- over networks that are there ---------------------------------------------------------

    def _reach(self) -> tuple[dict[int, tuple[str, ...]], tuple[str, ...]]:
        return reach(self.hosts, self.surveys, self.networks)

    def _over_networks(self, chosen: str) -> Plan:
        n = len(self.hosts)
        if chosen in {"", "ring"} and n > 2 and not best_networks(self.networks, n):
            # Cards without a switch: a network joins two neighbours.
            search = find_ring(count_shared(n, self.networks), self.names)
            if search.ring:
                hosts = self._in_ring(search, self.networks)
                return Plan(Hostfile(hosts, chosen), "ethernet")
        ips, remarks = self._reach()
        rows: list[tuple[Rdma, ...]] = [()] * n
        if chosen not in {"", "ring"}:
            rows = fabric_rows(self.names, self.surveys, self.networks, chosen)
        hosts = tuple(self._host(i, ips[i], rows[i]) for i in range(n))
        return Plan(Hostfile(hosts, chosen), "ethernet", (), remarks)


def _ends(networks: Sequence[Network], host: int, other: int) -> list[tuple[str, str]]:
    """Return a host's ends of the networks that it shares with another."""
    return [its.members[host] for its in networks if {host, other} <= its.members.keys()]
