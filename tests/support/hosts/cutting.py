"""Cutting the connections between two living processes, as a broken cable or a firewall would."""

from __future__ import annotations

import ctypes
import errno
import os
import socket

import psutil
import pytest
from support.hosts.bed import Bed

PIDFD_GETFD = 438  # of every architecture that has it: asm-generic/unistd.h


def cut(one: int, other: int, address: str = "") -> int:
    """Shut down every tcp connection that two processes have with each other; how many.

    With an address only those between that one and itself.
    """
    ours = {
        (c.laddr, c.raddr): c.fd
        for c in _connections(one)
        if not address or c.laddr.ip == c.raddr.ip == address
    }
    theirs = {(c.raddr, c.laddr) for c in _connections(other)}
    shared = [fd for ends, fd in ours.items() if ends in theirs]
    for fd in shared:
        with socket.socket(fileno=_borrow(one, fd)) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    return len(shared)


def _connections(pid):
    return [c for c in psutil.Process(pid).net_connections("tcp") if c.raddr]


def _borrow(pid: int, fd: int) -> int:
    """Another process's descriptor; a skip where the system does not give it, else `OSError`."""
    pidfd = os.pidfd_open(pid)
    try:
        got: int = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)
    if got < 0 and ctypes.get_errno() == errno.EBADF:  # closed meanwhile
        raise OSError(errno.EBADF, "it has closed that")
    if got < 0:
        pytest.skip(f"no descriptors of other processes here: {os.strerror(ctypes.get_errno())}")
    return got


def ports_of(bed: Bed, host: int, pid: int) -> list[str]:
    """Its own ports of the tcp connections of a process on a host of a bed."""
    lines = bed.run(host, ["ss", "-tnpH"]).stdout.splitlines()
    return [line.split()[3].rpartition(":")[2] for line in lines if f"pid={pid}," in line]


def reset(bed: Bed, host: int, pid: int) -> int:
    """Reset every tcp connection of a process on a host of a bed, all at once; how many."""
    ports = ports_of(bed, host, pid)
    if not ports:
        return 0
    which = " or ".join(f"sport = :{port}" for port in ports)
    killed = bed.run(host, ["ss", "-KtnH", which]).stdout.splitlines()
    if len(killed) < len(ports):
        pytest.skip("this kernel resets no connections (CONFIG_INET_DIAG_DESTROY)")
    return len(killed)
