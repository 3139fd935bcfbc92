"""Make a hostfile from surveys of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import msgspec

from phalanx.hosts import Host, Hostfile, Rdma

from .networks import (
    Cable,
    DiscoveryError,
    ReachableHosts,
    best_networks,
    cables_to_dot,
    count_cables,
    fabric_rows,
    find_cables,
    networks_to_dot,
    reach,
    shared_networks,
)
from .ring_search import RingSearch, find_ring, missing_in_mesh, missing_in_ring
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
    cables: tuple[Cable, ...] = ()
    remarks: tuple[str, ...] = ()


class Discovery:
    """Survey results of hosts, and the plans made from them."""

    def __init__(self, hosts: Sequence[Host], surveys: Sequence[Survey]) -> None:
        self.hosts, self.surveys = tuple(hosts), tuple(surveys)
        self.names = [host.ssh for host in hosts]
        self.cables = find_cables(surveys)
        self.networks = tuple(shared_networks(surveys))
        self.counts = count_cables(len(hosts), self.cables)

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
        lacking = missing_in_mesh(self.counts)
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
        order = self.ring.ring if backend != "jaccl" else tuple(range(len(self.hosts)))
        reached = None if backend == "ring" else self._reach()
        hosts = self._cabled_hosts(order, reached, is_mesh=backend == "jaccl")
        remarks = [
            f"the cable {self.names[c.a]} {c.a_interface} - {self.names[c.b]} {c.b_interface} is "
            "seen from one side only"
            for c in self.cables
            if c.is_one_sided
        ]
        if reached is not None:
            remarks += reached.remarks
        return Plan(Hostfile(tuple(hosts), backend), "thunderbolt", self.cables, tuple(remarks))

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

    def _ends(self, host: int, other: int) -> list[tuple[str, str]]:
        """Return interface and address at ``host`` of each cable to ``other``."""
        return [c.end(host) for c in self.cables if {c.a, c.b} == {host, other}]

    def _cabled_hosts(
        self, order: Sequence[int], reached: ReachableHosts | None, *, is_mesh: bool
    ) -> list[Host]:
        """Return the hosts with their addresses and devices.

        In a ring of tcp connections (``reached`` is None), a host has the addresses on which its
        predecessor connects.
        """
        n = len(order)
        pairs = [(i, j) for i in order for j in order if i != j]
        width = min(self.counts[i][j] for i, j in pairs) if is_mesh else self.ring.cables
        hosts = []
        for place, me in enumerate(order):
            before, after = order[place - 1], order[(place + 1) % n]
            ips = tuple(address for _, address in self._ends(me, before)[:width])
            row: tuple[Rdma, ...] = ()
            if reached is not None:
                ips = reached.ips[me][:1]
                peers = {*order} - {me} if is_mesh else {before, after}
                row = tuple(self._devices(me, j, width) if j in peers else None for j in order)
            hosts.append(self._host(me, ips, row))
        return hosts

    def _devices(self, host: int, other: int, width: int) -> str | tuple[str, ...]:
        by_interface = {device.interface: device.name for device in self.surveys[host].rdma}
        names = []
        for interface, _ in self._ends(host, other)[:width]:
            if interface not in by_interface:
                msg = f"{self.names[host]}: {interface} has no RDMA device; say --backend ring"
                raise DiscoveryError(msg)
            names.append(by_interface[interface])
        return names[0] if width == 1 else tuple(names)

    def _host(self, place: int, ips: tuple[str, ...], rdma: tuple[Rdma, ...]) -> Host:
        return msgspec.structs.replace(self.hosts[place], ips=ips, rdma=rdma)

    # -- over networks that are there ---------------------------------------------------------

    def _reach(self) -> ReachableHosts:
        return reach(self.hosts, self.surveys, self.networks)

    def _over_networks(self, chosen: str) -> Plan:
        n = len(self.hosts)
        between = [[0] * n for _ in range(n)]
        for network in self.networks:
            for i in network.members:
                for j in network.members:
                    between[i][j] += i != j
        if chosen in {"", "ring"} and n > 2 and not best_networks(self.networks, n):
            search = find_ring(between, self.names)
            if search.ring:
                return self._point_to_point(search, chosen)
        reached = self._reach()
        rows: list[tuple[Rdma, ...]] = [()] * n
        if chosen not in {"", "ring"}:
            rows = fabric_rows(self.names, self.surveys, self.networks, chosen)
        hosts = tuple(self._host(i, reached.ips[i], rows[i]) for i in range(n))
        return Plan(Hostfile(hosts, chosen), "ethernet", (), reached.remarks)

    def _point_to_point(self, search: RingSearch, backend: str) -> Plan:
        """Make a ring of networks between neighbours: cards without a switch."""
        hosts = []
        for place, me in enumerate(search.ring):
            before = search.ring[place - 1]
            shared = [net for net in self.networks if me in net.members and before in net.members]
            ips = tuple(net.members[me][1] for net in shared[: search.cables])
            hosts.append(self._host(me, ips, ()))
        return Plan(Hostfile(tuple(hosts), backend), "ethernet")
