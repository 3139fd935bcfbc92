"""Links between ranks of one machine: which they are, and how much they may hold at once.

What the kernel passes from one process to another never leaves memory, so the speed of a link is
the speed of copies, and these are twice as fast while what is under way fits a core's cache. The
kernel lets up to `tcp_wmem` (4 MiB) pile up instead: four ranks on two cores took 8.7 ms for an
`all_sum` of 4 MiB so, and take 4.4 with a bound; two network namespaces 820 us for 1 MiB, and 315.

Links to other machines keep what the kernel finds: a long way needs all the room it can get.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from functools import cache
from pathlib import Path

from ._handshake import Lane

__all__ = ["bound_send_buffer", "machine"]

# The kernel doubles it (and net.core.wmem_max, 208 KiB as a rule, bounds it). Measured with 96 to
# 208 KiB: 192 is the best or next to it at each size; with 32 a segment of 64 KiB stalls.
_SEND_BUFFER_NBYTES = 192 << 10


@cache
def machine() -> str:
    """Name the running kernel, so that ranks in different containers know that they share it.

    Empty where that cannot be told. A hash: ranks tell it to each other, and nobody needs more.
    """
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return hashlib.sha256(b"phalanx machine " + boot.strip()).hexdigest()[:32]
    return ""


def bound_send_buffer(sock: socket.socket, lane: Lane, there: str) -> None:
    """Let a link hold what fits a cache, and no more, if its other end's machine is this one.

    Lanes of messages have a size of their own (`pairs.cpp`). Where it cannot be bounded, the link
    is slower.
    """
    if lane is Lane.COLLECTIVE and there and there == machine():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_NBYTES)
