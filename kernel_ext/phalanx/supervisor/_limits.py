"""What a process may have here, and what a world of ranks needs.

It knows the limits of the system, and our needs as counted; nothing of what is opened.
"""

from __future__ import annotations

import os
import resource

from phalanx.errors import DistributedError

__all__ = ["allow_descriptors", "needed_descriptors", "save_address_space", "stripe_sockets"]

# ipyparallel's controller has the most: 79 and 8 a rank, counted with 1 and 4 ranks (a root has 21
# and 7 a rank, a rank 43 and 3 for each); and some to spare.
BASE, PER_RANK = 128, 10
GROUPS = 4  # the world and some splits of it: each has links of its own


def needed_descriptors(ranks: int) -> int:
    """Return how many open files a process of such a world may need."""
    return BASE + PER_RANK * ranks


def stripe_sockets(ranks_elsewhere: int, n_addresses: int, connections_per_ip: int) -> int:
    """Return how many sockets a rank's links to other hosts may take, at most.

    Examples
    --------
    >>> stripe_sockets(3, 2, 8)  # as many hosts as ranks elsewhere, if each has one
    192
    """
    return ranks_elsewhere * max(1, n_addresses) * connections_per_ip * GROUPS


def allow_descriptors(ranks: int, sockets: int = 0) -> None:
    """Raise the soft limit of open files, for this process and its children, where it is too low.

    ``sockets`` are links to other hosts on top: as many as the hard limit allows.

    Raises
    ------
    DistributedError
        The hard limit is too low as well. Found out later, connections would just not be.
    """
    needed = needed_descriptors(ranks)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed + sockets:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        msg = (
            f"{ranks} ranks need {needed} open files in a process, and only {hard} are allowed "
            f"here; raise the limit (ulimit -n {needed}), or start fewer ranks"
        )
        raise DistributedError(msg)
    wanted = needed + sockets
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def save_address_space() -> None:
    """Where a process may have only so much of it (`ulimit -v`), let threads share what is reserved.

    glibc reserves 64 MiB for each thread that allocates: 9 of the 16 of a rank, which then has
    1,390 MiB of addresses (2 ranks on the host; 70 MiB of memory), and 820 with this.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")
