"""The place where ranks without a supervisor meet: who is let in, and what all are told."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from support.promise import PATIENCE_S
from support.waiting import wait_until

import phalanx
from phalanx.distributed import _meeting_point
from phalanx.distributed._deadline import Deadline
from phalanx.distributed._guest import Guest, MeetingRefused, World
from phalanx.distributed._handshake import HandshakeRejected
from phalanx.distributed._launched_by import NOBODY, Launcher, _started, launched_by
from phalanx.distributed._meeting_point import Host
from phalanx.errors import DistributedError

RUN = bytes(range(32))
DIGEST = hashlib.sha256(b"a ring").digest()
OTHER_USER = """
import os, socket, sys
address = sys.argv[1].encode(), int(sys.argv[2])  # bytes: str would import a codec
os.setuid(65534)
sock = socket.socket()
sock.connect(address)
sock.sendall(bytes.fromhex(sys.argv[3]))
print("it knocks", flush=True)
print(sock.recv(100))
"""
KEYS = {"of one user": None, "with a key": bytes(range(64, 96))}


class Place:
    """Rank 0 as a thread, on a port of its own; guests are made by hand."""

    def __init__(self, executor, stack, world):
        self._executor = executor
        self._stack = stack
        self.world = world
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        self._listener.setblocking(False)
        self.address = self._listener.getsockname()

    def host(self, timeout=PATIENCE_S):
        self._host = host = Host(self._listener, self.world)
        deadline = Deadline(timeout)

        def wait():
            guests = host.wait(RUN, deadline)
            for sock in guests.values():
                self._stack.enter_context(sock)
            return sorted(guests)

        return self._executor.submit(wait)

    def let_in(self):
        """Return the ranks that rank 0 has let in so far."""
        return set(self._host._guests)

    def enter(self, rank, timeout=PATIENCE_S, **changes):
        guest = Guest(*self.address, replace(self.world, **changes), rank)
        self._stack.enter_context(guest.sock)
        return self._executor.submit(guest.enter, Deadline(timeout))

    def knock(self, data=b""):
        sock = self._stack.enter_context(socket.create_connection(self.address, timeout=PATIENCE_S))
        sock.sendall(data)
        return sock


@pytest.fixture(params=KEYS)
def key(request):
    return KEYS[request.param]


@pytest.fixture
def place(key):
    with ExitStack() as stack, ThreadPoolExecutor(8) as executor:
        yield lambda size: Place(executor, stack, World(DIGEST, size, NOBODY, key=key))


def test_guests_get_the_run_when_all_are_there(place):
    here = place(4)
    host = here.host()
    guests = [here.enter(rank) for rank in (3, 1, 2)]
    assert host.result(PATIENCE_S) == [1, 2, 3]
    assert {guest.result(PATIENCE_S) for guest in guests} == {RUN}


@pytest.mark.parametrize(
    "words",
    [b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 4096, b"phalanxM", b"phalanx\0" + bytes(400), b"\xff"],
)
def test_strangers_learn_nothing_and_the_ranks_meet(place, words):
    here = place(2)
    host = here.host()
    socks = [here.knock(words) for _ in range(5)]
    guest = here.enter(1)
    assert host.result(PATIENCE_S) == [1]
    assert guest.result(PATIENCE_S) == RUN
    for sock in socks:
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""


def test_a_flood_of_500_and_resets_keep_nobody_out(place, caplog):
    here = place(2)
    caplog.set_level("DEBUG")
    host = here.host()
    for _ in range(100):
        sock = here.knock(b"x")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    kept = [here.knock() for _ in range(500)]
    guest = here.enter(1)
    assert host.result(PATIENCE_S) == [1]
    assert guest.result(PATIENCE_S) == RUN
    assert len(kept) == 500
    assert sum("dropped" in record.getMessage() for record in caplog.records) <= 8 + 1


def test_a_byte_at_a_time_is_too_slow(place, monkeypatch):
    monkeypatch.setattr(_meeting_point, "_KNOCK_S", 0.2)
    here = place(2)
    host = here.host()
    slow = here.knock()
    slow.settimeout(0.02)
    is_closed = False
    for byte in here.world.hello(1) * 2:
        try:
            slow.sendall(bytes([byte]))
            is_closed = slow.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            is_closed = True
        break
    assert is_closed
    assert not host.done()
    here.enter(1)
    assert host.result(PATIENCE_S) == [1]


def test_a_missing_rank_is_named_to_those_that_came(place, clock):
    here = place(4)
    host = here.host(timeout=60)
    guest = here.enter(2, timeout=120)
    wait_until(lambda: here.let_in() == {2}, "rank 2 is let in")
    clock.jump(60)
    with pytest.raises(TimeoutError, match=r"ranks 1, 3 did not come within 60 s"):
        host.result(PATIENCE_S)
    with pytest.raises(MeetingRefused, match="ranks 1, 3 did not come") as caught:
        guest.result(PATIENCE_S)
    assert caught.value.is_late


def test_two_of_one_rank_are_the_end_for_all(place):
    here = place(3)
    host = here.host()
    guests = [here.enter(1), here.enter(1)]
    why = "two processes say that they are rank 1 of 3"
    with pytest.raises(DistributedError, match=why):
        host.result(PATIENCE_S)
    for guest in guests:
        with pytest.raises(MeetingRefused, match=why):
            guest.result(PATIENCE_S)


def test_a_second_rank_0_is_the_end_for_all(place):
    here = place(3)
    host = here.host()
    guests = [here.enter(1), here.enter(0)]
    with pytest.raises(DistributedError, match="say that they are rank 0"):
        host.result(PATIENCE_S)
    for guest in guests:
        with pytest.raises((MeetingRefused, ConnectionError)):
            guest.result(PATIENCE_S)


def test_a_rank_that_went_away_may_come_again(place):
    here = place(3)
    host = here.host()
    first = Guest(*here.address, here.world, 1)
    with pytest.raises(MeetingRefused, match=r"not every rank came within 1\.5 s; rank 0 did"):
        first.enter(Deadline(1.5))  # closes the socket
    second = here.enter(2)
    wait_until(lambda: here.let_in() == {2}, "rank 1 was there, and is not")
    assert not host.done()
    guests = [here.enter(1), second]
    assert host.result(PATIENCE_S) == [1, 2]
    assert {guest.result(PATIENCE_S) for guest in guests} == {RUN}


def test_another_version_is_told_to_all(place):
    here = place(3)
    host = here.host()
    good = here.enter(1)
    bad = here.enter(2, version="9.9.9")
    why = f"rank 2 has phalanx 9.9.9, rank 0 has {phalanx.__version__}"
    with pytest.raises(DistributedError, match=why):
        host.result(PATIENCE_S)
    for guest in (good, bad):
        with pytest.raises((MeetingRefused, ConnectionError)):
            guest.result(PATIENCE_S)


def test_ranks_of_two_launchers_do_not_meet(place):
    ours, other = launched_by("NOBODY_SETS_THIS"), Launcher(1, _started(1))
    here = place(2)
    here.world = replace(here.world, launcher=ours)
    host = here.host()
    with pytest.raises(MeetingRefused, match=r"started by process 1, rank 0 by .*two jobs"):
        here.enter(1, launcher=other).result(PATIENCE_S)
    gone = Launcher(other.pid, other.started + 1)  # it has ended: its ranks have another parent
    assert here.enter(1, launcher=gone).result(PATIENCE_S) == RUN
    assert host.result(PATIENCE_S) == [1]


def test_a_host_that_is_no_rank_is_left_again(place):
    here = place(2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        here.address = server.getsockname()
        guest = here.enter(1)
        sock, _ = server.accept()
        with sock:
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 200)
            with pytest.raises((ConnectionRefusedError, HandshakeRejected)):
                guest.result(PATIENCE_S)


@pytest.mark.parametrize("key", ["with a key"], indirect=True)
def test_another_key_is_kept_out_and_named_as_the_likely_cause(place, clock):
    here = place(2)
    host = here.host(timeout=60)
    guest = here.enter(1, key=bytes(32))
    with pytest.raises((HandshakeRejected, ConnectionError)):
        guest.result(PATIENCE_S)
    clock.jump(60)
    with pytest.raises(TimeoutError, match=r"rank 1 with another key .*PHALANX_KEY_FILE the same"):
        host.result(PATIENCE_S)


@pytest.mark.parametrize("key", ["with a key"], indirect=True)
def test_no_key_is_ever_shown(place):
    here = place(2)
    assert "key" not in repr(here.world)
    assert repr(KEYS["with a key"])[2:12] not in repr(here.world)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
@pytest.mark.parametrize("key", ["of one user"], indirect=True)
def test_another_user_is_kept_out(place, clock):
    here = place(2)
    arguments = [*map(str, here.address), here.world.hello(1).hex()]
    command = [sys.executable, "-c", OTHER_USER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"it knocks\n"
        host = here.host(timeout=60)
        assert other.communicate(timeout=PATIENCE_S) == (b"b''\n", b"")
    clock.jump(60)
    with pytest.raises(TimeoutError, match="rank 1 did not come"):
        host.result(PATIENCE_S)
