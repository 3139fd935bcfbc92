"""The beginning and end of an engine's group: who owns its sockets, and who waits for its threads."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading

import pytest
from support.programs.launching import PATIENCE_S

from phalanx import _native


def test_a_refused_group_closes_all_its_sockets():
    theirs, fds = [], []
    for _ in range(5):
        one, other = socket.socketpair()
        theirs.append(other)
        fds.append(one.detach())
    read_end, write_end = os.pipe()  # no stream socket
    with pytest.raises(ValueError, match="not a stream socket"):
        _native.Group(
            rank=0,
            size=5,
            epoch=1,
            hosts=range(5),
            links={1: [fds[0]], 2: [read_end], 3: [fds[1], fds[2]]},
            pair_links={1: fds[3], 2: fds[4]},
        )
    for other in theirs:
        other.settimeout(PATIENCE_S)
        assert other.recv(1) == b""
        other.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(read_end)
    os.close(write_end)


def test_other_threads_run_while_a_dropped_group_waits():
    """The links are full, so each failure message waits for some milliseconds."""
    size = 17
    links, theirs = {}, []
    for peer in range(1, size):
        one, other = socket.socketpair()
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                one.send(bytes(1 << 16))
        links[peer] = [one.detach()]
        theirs.append(other)
    group = _native.Group(rank=0, size=size, epoch=1, hosts=range(size), links=links)
    go, has_run = threading.Lock(), []
    go.acquire()

    def run() -> None:
        go.acquire()
        has_run.append(True)

    helper = threading.Thread(target=run)
    helper.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # so nobody takes the GIL that is not given away
    try:
        go.release()
        del group
        ran = list(has_run)
    finally:
        sys.setswitchinterval(interval)
    helper.join()
    assert ran
    for other in theirs:
        other.close()
