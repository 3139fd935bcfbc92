"""What a supervisor owns for its ranks: shared memory, the abort page and the descriptors that wake them.

It makes descriptors that ranks inherit; when to use them is the supervisor's business.
"""

from __future__ import annotations

import enum
import os

from phalanx import _native
from phalanx._native import AbortPage

__all__ = [
    "AbortKind",
    "AbortPage",
    "accused",
    "create_page",
    "create_region",
    "create_wake",
    "give_back_region",
    "region_nbytes",
]


class AbortKind(enum.IntEnum):
    """Why an epoch was given up; the numbers are the engine's."""

    RANK_FAILURE = _native.ABORT_RANK_FAILURE
    MISMATCH = _native.ABORT_MISMATCH
    TIMEOUT = _native.ABORT_TIMEOUT
    INTERRUPTED = _native.ABORT_INTERRUPTED
    ERROR = _native.ABORT_ERROR
    CLOSED = _native.ABORT_CLOSED
    LINK_BROKEN = _native.ABORT_LINK_BROKEN


def accused(kind: int, culprit: int, me: int = -1) -> int:
    """Name the rank that a reason accuses, as rank ``me`` sees it; -1 for none.

    Of a broken link that is its other end; of one that ``me`` is no end of, the one that could
    not be reached.

    Examples
    --------
    >>> accused(AbortKind.RANK_FAILURE, 2)
    2
    >>> [accused(AbortKind.LINK_BROKEN, 2 << 16 | 0, me) for me in (0, 1, 2)]
    [2, 2, 0]
    """
    if kind != AbortKind.LINK_BROKEN or culprit < 0:
        return culprit
    lost, teller = culprit >> 16, culprit & 0xFFFF
    return teller if lost == me else lost


def region_nbytes() -> int:
    """Return the size of a rank's region of the arena, in bytes.

    It is address space, not memory: pages that no operation has touched cost nothing.

    Examples
    --------
    >>> region_nbytes() % 4096
    0
    """
    return _native.Arena.DEFAULT_NBYTES


def create_region(nbytes: int | None = None) -> int:
    """Make the memory of one rank slot.

    Parameters
    ----------
    nbytes : int, optional
        Its size; `region_nbytes` if left out.

    Returns
    -------
    int
        A descriptor that is closed on exec and cannot be shrunk; the caller owns it.

    Examples
    --------
    >>> import os
    >>> fd = create_region()
    >>> os.fstat(fd).st_size >= region_nbytes(), os.get_inheritable(fd)
    (True, False)
    >>> os.close(fd)
    """
    fd = _native.make_memory_file("phalanx-region")
    try:
        _native.Arena.format(fd, region_nbytes() if nbytes is None else nbytes)
        _native.keep_size(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def give_back_region(fd: int) -> None:
    """Return the memory of a dead rank's slot to the system, though its peers map it.

    The region stays one, and reads as zeros. Abort the rank's epoch first: a peer that is in the
    middle of an operation looks at that after its last read.

    Raises
    ------
    OSError
        The descriptor is no region, or the system cannot do it.

    Examples
    --------
    >>> import os
    >>> fd = create_region()
    >>> _ = os.pwrite(fd, bytes(1 << 20), 1 << 20)
    >>> give_back_region(fd)
    >>> os.fstat(fd).st_blocks * 512, os.fstat(fd).st_size == region_nbytes()
    (4096, True)
    >>> os.close(fd)
    """
    _native.Arena.give_back(fd)


def create_page(slots: int, ranks: int = 0) -> int:
    """Make the page of abort flags of a host with ``slots`` rank slots.

    Parameters
    ----------
    slots : int
        Ranks of this host.
    ranks : int, optional
        Ranks of the world, of which each rank counts the messages it has passed; as many as
        slots if left out.

    Returns
    -------
    int
        A descriptor that is closed on exec and cannot be shrunk; the caller owns it. The
        supervisor maps it as ``AbortPage(fd, slots=slots, author=slots, wake_fds=...)``.

    Examples
    --------
    >>> import os
    >>> fd = create_page(4)
    >>> page = AbortPage(fd, slots=4, author=4)
    >>> page.abort(1, AbortKind.RANK_FAILURE, 2, "killed by signal 9 (SIGKILL)")
    True
    >>> page.reason(1)
    (1, 2, 'killed by signal 9 (SIGKILL)')
    >>> page.close()
    >>> os.close(fd)
    """
    fd = _native.make_memory_file("phalanx-page")
    try:
        _native.AbortPage.format(fd, slots, ranks)
        _native.keep_size(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_wake() -> int:
    """Make the descriptor that wakes one rank slot out of a wait on its links.

    Returns
    -------
    int
        A descriptor that is closed on exec and never blocks; the caller owns it.
    """
    return _native.make_wake()
