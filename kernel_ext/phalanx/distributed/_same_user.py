"""Whose process is at the other end of a loopback connection.

What SO_PEERCRED is for Unix sockets, read from the kernel's table of tcp connections.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

__all__ = ["is_same_user", "peer_uid"]


def is_same_user(sock: socket.socket) -> bool:
    """Whether the other end is a process of our own user, on this machine.

    An end that nobody has accepted yet is not known to be anybody's: ask after its first word.
    """
    return peer_uid(sock) == os.geteuid()


def peer_uid(sock: socket.socket) -> int | None:
    """User id of the other end's process; None if it cannot be told."""
    ours, theirs = sock.getsockname()[:2], sock.getpeername()[:2]
    wanted = [_as_in_table(*theirs), _as_in_table(*ours)]
    name = "tcp6" if sock.family == socket.AF_INET6 else "tcp"
    try:
        lines = Path(f"/proc/self/net/{name}").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines[1:]:
        fields = line.split()
        # Without an inode the socket is nobody's: not accepted, or left behind.
        if fields[1:3] == wanted and fields[9] != "0":
            return int(fields[7])
    return None


def _as_in_table(host: str, port: int) -> str:
    """Write an address as the kernel does: words of 32 bits in the machine's own order.

    Examples
    --------
    >>> import sys
    >>> _as_in_table("127.0.0.1", 80) == ("0100007F:0050" if sys.byteorder == "little" else
    ...                                   "7F000001:0050")
    True
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
