"""Room for the arena in the address space of a process that is limited (`ulimit -v`).

It knows sizes and the limit, nothing of what is mapped.
"""

from __future__ import annotations

import mmap
import resource

__all__ = ["check_room"]

# What a process goes on with: stacks of threads to come, malloc's arenas, a few modules.
_SPARE_NBYTES = 64 << 20


def check_room(nbytes: int) -> None:
    """Refuse to map so much where it would leave a process hardly anything.

    Without any address space Python and its libraries crash, or wait for threads that could not
    be started, instead of saying that there is none.

    Raises
    ------
    OSError
        It does not fit; says by how much the process is limited.
    """
    limit_nbytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_nbytes == resource.RLIM_INFINITY:
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        mmap.mmap(-1, nbytes + _SPARE_NBYTES, flags=flags, prot=0).close()
    except OSError:
        msg = (
            f"cannot map the {nbytes >> 20} MiB of address space that the ranks of a host share: "
            f"a process may have {limit_nbytes >> 20} MiB here; raise that limit (ulimit -v)"
        )
        raise OSError(msg) from None
