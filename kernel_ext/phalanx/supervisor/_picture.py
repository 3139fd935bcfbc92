"""The world as a picture of it needs it: hosts, ranks with what they do, the paths between them.

It joins the world, its hosts and the boot's options; who asks is its user's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phalanx.protocol import BootOptions, RankInfo, Topology

from ._any_host import Host
from ._links import links_of
from ._world import World

__all__ = ["topology_of"]


def topology_of(
    options: BootOptions,
    world: World,
    host: Host,
    engines: Sequence[str],
    ready: Collection[int],
) -> Topology:
    """Draw up the topology as of now; ranks that are not ``ready`` are starting."""
    hosts = host.layout.hosts
    ranks = tuple(
        RankInfo(
            rank=rank,
            host=hosts[rank],
            pid=host.pid(rank),
            state=world.state(rank) if rank in ready else "starting",
            engine=engines[rank],
            # Why it is dead, or the operation it is in.
            detail=world.dead.get(rank)
            or ("in recover" if rank in world.asking else host.doing(rank)),
            rss_nbytes=0 if rank in world.dead else host.rss_nbytes(rank),
        )
        for rank in range(options.ranks)
    )
    return Topology(
        name=options.name,
        epoch=world.epoch,
        hosts=host.infos,
        ranks=ranks,
        links=links_of(hosts, options.transport),
    )
