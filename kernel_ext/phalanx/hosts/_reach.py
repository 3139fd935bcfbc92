"""How hosts reach each other on networks and RDMA fabrics that are there: addresses and devices.

Pure: surveys and networks in; it knows nothing of cables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import DistributedError

from ._host import Host, Rdma, bare_name, is_address
from ._networks import Network, addresses_on, best_networks
from ._survey import Survey

__all__ = ["DiscoveryError", "Reached", "fabric_rows", "reach"]

_MOST_TOLD = 24  # hosts in one line


class DiscoveryError(DistributedError):
    """The hosts cannot be joined as was asked; the text names everything that is missing."""


@dataclass(frozen=True)
class Reached:
    """Each host's addresses for the others, the networks they are of, and what is to be said."""

    ips: dict[int, tuple[str, ...]]
    networks: tuple[Network, ...]
    remarks: tuple[str, ...]


def reach(hosts: Sequence[Host], surveys: Sequence[Survey], networks: Sequence[Network]) -> Reached:
    """Choose the addresses by which all hosts reach all others.

    Raises
    ------
    DiscoveryError
        Some have none; names them.
    """
    n, names = len(hosts), [host.ssh for host in hosts]
    wanted = [ip for host in hosts for ip in host.ips]
    wanted += [name for name in map(bare_name, names) if is_address(name)]
    best = best_networks(networks, n, wanted)
    if best:
        ips = {i: tuple(network.members[i][1] for network in best) for i in range(n)}
        return Reached(ips, tuple(best), ())
    own = {i: tuple(addresses_on(survey)[:1]) for i, survey in enumerate(surveys)}
    if n == 1 and not own[0]:
        own[0] = ("127.0.0.1",)
    lost = [names[i] for i in range(n) if not own[i]]
    if lost:
        msg = f"{', '.join(lost)}: no address that others could reach"
        raise DiscoveryError(msg)
    said = ", ".join(f"{names[i]} {own[i][0]}" for i in range(min(n, _MOST_TOLD)))
    remark = f"no network has all hosts on it; each is to be reached at its own address: {said}"
    return Reached(own, (), (remark,) if n > 1 else ())


def fabric_rows(
    names: Sequence[str], surveys: Sequence[Survey], networks: Sequence[Network], backend: str
) -> list[tuple[Rdma, ...]]:
    """Return each host's row of devices, on InfiniBand or RoCE that all hosts are on.

    Raises
    ------
    DiscoveryError
        There is no such fabric; names the hosts without an active device.
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
        tuple(own[i] if _is_peer(i, j, n, backend) else None for j in range(n)) for i in range(n)
    ]


def _is_peer(i: int, j: int, n: int, backend: str) -> bool:
    return i != j and (backend == "jaccl" or (i - j) % n in {1, n - 1})


def _by_fabric(host: int, survey: Survey, networks: Sequence[Network]) -> dict[str, str]:
    """Return a host's active devices by what they are on: an InfiniBand subnet, or a network (RoCE)."""
    found: dict[str, str] = {}
    for device in sorted(survey.rdma, key=lambda device: -device.speed_mbps):
        if not device.is_active:
            continue
        if device.fabric:
            found.setdefault(device.fabric, device.name)
            continue
        for network in networks:
            if network.members.get(host, ("", ""))[0] == device.interface:
                found.setdefault(network.prefix, device.name)
    return found
