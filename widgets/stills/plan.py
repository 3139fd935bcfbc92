"""Describe the world that hosts would form once started."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from phalanx.protocol import HostInfo, HostPlan, LinkInfo, RankInfo, WorldTopology


def planned(hosts: Sequence[HostPlan], *, name: str = "plan") -> WorldTopology:
    """Return the topology that these hosts would form, for `topology`.

    Parameters
    ----------
    hosts : sequence of HostPlan
        In the order of the hostfile, which is the order of the ranks.
    name : str, optional
        Title of the picture.

    Returns
    -------
    WorldTopology
        Epoch 0, each rank ``"planned"``. Ranks of a host will share memory; other pairs will use
        tcp. Process ids and cores are not known yet.

    Examples
    --------
    >>> [rank.host for rank in planned([HostPlan("a", 2), HostPlan("b", 1)]).ranks]
    [0, 0, 1]
    """
    home = [index for index, host in enumerate(hosts) for _ in range(host.ranks)]
    return WorldTopology(
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
