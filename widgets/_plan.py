"""A world that nobody has started, as a topology that can be drawn: what a hostfile says.

It knows `HostPlan`, not how hostfiles are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from phalanx.protocol import HostInfo, HostPlan, LinkInfo, RankInfo, Topology

__all__ = ["planned"]


def planned(hosts: Sequence[HostPlan], *, name: str = "plan") -> Topology:
    """Return the world that these hosts would make, for `topology` to draw.

    Parameters
    ----------
    hosts : sequence of HostPlan
        In the hostfile's order, which is that of the ranks.
    name : str, optional
        What stands above the picture.

    Returns
    -------
    Topology
        Of epoch 0, each rank ``"planned"``: ranks of a host will share memory, others meet over
        tcp. Processes and cores are not known yet.

    Examples
    --------
    >>> [rank.host for rank in planned([HostPlan("a", 2), HostPlan("b", 1)]).ranks]
    [0, 0, 1]
    """
    home = [index for index, host in enumerate(hosts) for _ in range(host.ranks)]
    return Topology(
        name=name,
        epoch=0,
        hosts=tuple(
            HostInfo(index, host.name, host.addresses[0] if host.addresses else "", 0)
            for index, host in enumerate(hosts)
        ),
        ranks=tuple(RankInfo(rank, host, 0, "planned") for rank, host in enumerate(home)),
        links=tuple(
            LinkInfo(a, b, "arena" if home[a] == home[b] else "tcp")
            for a, b in combinations(range(len(home)), 2)
        ),
    )
