"""Control operations: deadlines, reasons to abort, shared memory of a host.

The supervisor creates the control page, the regions and the eventfds; ranks inherit the
descriptors.
"""

from __future__ import annotations

import enum
import math
import os
import time
from collections.abc import Callable

from phalanx import _native
from phalanx._native import ControlPage

__all__ = [
    "AbortKind",
    "ControlPage",
    "Deadline",
    "call_seconds",
    "create_page",
    "create_region",
    "create_wake",
    "culprit_rank",
    "give_back_region",
    "seconds",
]

_FOREVER_S = 3e9  # about a century; adding it overflows no clock


class AbortKind(enum.IntEnum):
    """Reason why an epoch was aborted; the numbers are the engine's."""

    RANK_FAILURE = _native.ABORT_RANK_FAILURE
    MISMATCH = _native.ABORT_MISMATCH
    TIMEOUT = _native.ABORT_TIMEOUT
    INTERRUPTED = _native.ABORT_INTERRUPTED
    ERROR = _native.ABORT_ERROR
    CLOSED = _native.ABORT_CLOSED
    LINK_BROKEN = _native.ABORT_LINK_BROKEN


def culprit_rank(kind: int, culprit: int, me: int = -1) -> int:
    """Return the rank that an abort reason accuses; -1 for none.

    ``me`` is this process's rank. For a broken link this is the other end of the link. If ``me`` is
    not an end of the link, it is the end that could not be reached.

    Examples
    --------
    >>> culprit_rank(AbortKind.RANK_FAILURE, 2)
    2
    >>> [culprit_rank(AbortKind.LINK_BROKEN, 2 << 16 | 0, me) for me in (0, 1, 2)]
    [2, 2, 0]
    """
    if kind != AbortKind.LINK_BROKEN or culprit < 0:
        return culprit
    lost, teller = culprit >> 16, culprit & 0xFFFF
    return teller if lost == me else lost


def create_region(nbytes: int = _native.Arena.DEFAULT_NBYTES) -> int:
    """Create the memory of one rank slot; return its descriptor.

    The size is address space, not memory: pages that no operation has touched use no memory. The
    descriptor is closed on exec, and the file cannot be shrunk. The caller owns it.
    """
    return _memory_file("phalanx-region", lambda fd: _native.Arena.format(fd, nbytes))


def _memory_file(name: str, format_file: Callable[[int], None]) -> int:
    fd = _native.make_memory_file(name)
    try:
        format_file(fd)
        _native.keep_size(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


# Free the memory of a dead rank's slot while peers map it. The region stays valid and reads as zeros.
# Abort the rank's epoch first: a peer in the middle of an operation checks the abort flag after its
# last read.
give_back_region = _native.Arena.give_back


def create_page(slots: int, ranks: int = 0) -> int:
    """Create the page of abort flags of a host; return its descriptor.

    The descriptor is as that of `create_region`. The supervisor maps the page as ``ControlPage(fd,
    slots=slots, author=slots, wake_fds=...)``. Each rank counts its messages with each of ``ranks``
    ranks (0: ``slots``).
    """
    return _memory_file("phalanx-page", lambda fd: _native.ControlPage.format(fd, slots, ranks))


# Create the eventfd that wakes a rank slot from link waits; return its descriptor, which is closed on
# exec and never blocks. The caller owns it.
create_wake = _native.make_wake


def seconds(timeout: float | None) -> float | None:
    """Check a user's timeout; infinity means no limit.

    Raises `ValueError`: the timeout is negative or not a number.
    """
    if timeout is None:
        return None
    checked = _checked(timeout)
    return None if checked == math.inf else checked


def _checked(timeout: float) -> float:
    shape = getattr(timeout, "shape", ())
    try:
        is_time = not shape and timeout >= 0  # False for NaN
    except (TypeError, ValueError):  # not a number
        is_time = False
    if not is_time:
        what = f"an array of shape {tuple(shape)}" if shape else repr(timeout)
        msg = f"timeout must be None or at least 0 seconds, not {what}"
        raise ValueError(msg)
    try:
        return float(timeout)
    except OverflowError:  # an int too large for float
        return math.inf


def call_seconds(timeout: float | None) -> float | None:
    """Check a call's timeout; infinity overrides the group's limit."""
    limit = seconds(timeout)
    return _FOREVER_S if limit is None and timeout is not None else limit


class Deadline:
    """Point on the monotonic clock, or never (``timeout=None``).

    Examples
    --------
    >>> Deadline(None).remaining() is None, Deadline(0).is_over(), str(Deadline(30.0))
    (True, True, '30 s')
    """

    __slots__ = ("_at", "_timeout")

    def __init__(self, timeout: float | None) -> None:
        self._timeout = None if timeout is None else _checked(timeout)
        self._at = None if self._timeout is None else time.monotonic() + self._timeout

    def remaining(self) -> float | None:
        """Return the seconds left, at least 0; None without a limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self._at is not None and time.monotonic() >= self._at

    def __str__(self) -> str:
        """Format the whole allowed time for an error text."""
        return "any time" if self._timeout is None else f"{self._timeout:g} s"
