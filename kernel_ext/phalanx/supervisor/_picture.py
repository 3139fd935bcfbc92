"""The world as a picture of it needs it: hosts, ranks with what they do, the paths between them.

It joins the world, the host and the boot's options; who asks is its user's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from pathlib import Path

from phalanx.protocol import BootOptions, HostInfo, RankInfo, Topology

from ._host import HostSupervisor
from ._links import links_of
from ._world import World

__all__ = ["topology_of"]


def topology_of(
    options: BootOptions,
    world: World,
    host: HostSupervisor,
    engines: Sequence[str],
    ready: Collection[int],
) -> Topology:
    """Draw up the topology as of now; ranks that are not ``ready`` are starting."""
    ranks = tuple(
        RankInfo(
            rank=rank,
            host=0,
            pid=host.pid(rank),
            state=world.state(rank) if rank in ready else "starting",
            engine=engines[rank],
            # Why it is dead, or the operation it is in.
            detail=world.dead.get(rank)
            or ("in recover" if rank in world.asking else host.memory.doing(rank)),
            rss_nbytes=0 if rank in world.dead else _rss_nbytes(host.pid(rank)),
        )
        for rank in range(options.ranks)
    )
    cores = len(os.sched_getaffinity(0))
    here = HostInfo(index=0, name=socket.gethostname(), address="127.0.0.1", cores=cores)
    return Topology(
        name=options.name,
        epoch=world.epoch,
        hosts=(here,),
        ranks=ranks,
        links=links_of((0,) * len(ranks), options.transport),
    )


def _rss_nbytes(pid: int) -> int:
    """Memory that a process has in use, as Linux tells it; 0 elsewhere."""
    try:
        resident = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
    except OSError:
        return 0
    return int(resident) * os.sysconf("SC_PAGE_SIZE")
