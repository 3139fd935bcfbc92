"""Strangers at every port of a workspace: they learn nothing, do nothing, and disturb nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from itertools import pairwise

import psutil
import pytest
from security.strangers import (
    OtherUser,
    Pest,
    ZmqStranger,
    connect,
    endpoint,
    garbage,
    knock,
    learned,
    listening,
    requests,
)
from support.inside import root_address, root_pid
from support.tiers import deep
from support.waiting import wait_until

from phalanx.workspace import Workspace

CELL = "print('word', rank); px.all_sum(np.arange(1000.0) + rank).sum().item()"
SUM = sum(3 * i + 3 for i in range(1000))  # of three ranks


def check(ws: Workspace) -> None:
    assert [result.value for result in ws.run(CELL)] == [repr(float(SUM))] * 3


@pytest.fixture(scope="module")
def ws():
    with Workspace.start(n=3, transport="tcp") as workspace:
        yield workspace


@deep
@pytest.mark.slow
def test_a_world_forms_while_garbage_comes_to_every_port(tmp_path):
    bomb = tmp_path / "bomb"
    with Pest(os.getpid(), bomb) as pest, Workspace.start(n=3, transport="tcp") as workspace:
        for _ in range(3):
            check(workspace)
        addresses = set(listening(root_pid(workspace)))

        def is_everywhere():
            check(workspace)
            return addresses <= pest.visited

        wait_until(is_everywhere, "each port has been spoken to", timeout_s=60.0)
    assert len(addresses) > 8  # the supervisor's, and the controller's sockets
    assert not bomb.exists()
    assert pest.n_heard == 0


def test_one_port_is_open_and_the_rest_is_for_our_user(ws):
    addresses = listening(root_pid(ws))
    (port,) = (address for address in addresses if not isinstance(address, str))
    assert port[0] == "127.0.0.1"
    assert endpoint(port) == root_address(ws).endpoint  # through which its clients come
    for rank in ws.topology().ranks:
        assert listening(rank.pid) == []


def ports(ws: Workspace) -> list[tuple[str, int]]:
    return [a for a in listening(root_pid(ws)) if not isinstance(a, str)]


@pytest.mark.parametrize("name", garbage(None))
def test_garbage_at_the_port_while_cells_run(ws, name, tmp_path):
    bomb = tmp_path / "bomb"
    (sock,) = (knock(address, garbage(bomb)[name]) for address in ports(ws))
    check(ws)
    # A greeting of zmq, which is the same for all, and no more.
    heard = learned(sock)
    assert heard == b"" or (len(heard) <= 64 and heard.startswith(b"\xff")), heard
    sock.close()
    check(ws)
    assert not bomb.exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_another_user_hears_nothing_and_is_not_heard(ws, tmp_path):
    tmp_path.chmod(0o777)
    bomb = tmp_path / "bomb"
    names = [a for a in listening(root_pid(ws)) if isinstance(a, str)]
    with OtherUser() as other:
        assert other.say("zmq", names, bomb) == 0
        for _ in range(3):
            check(ws)
            assert other.say("garbage", names, bomb) == 0
        assert other.say("heard", [], bomb) == 0
    check(ws)
    assert not bomb.exists()


@pytest.mark.slow
def test_zmq_without_the_key_is_not_let_into_the_port(ws, tmp_path):
    bomb = tmp_path / "bomb"
    messages = requests(bomb, secrets.token_bytes(32), "engine")
    stranger = ZmqStranger(ports(ws), messages, root_address(ws).public_key)
    try:
        for _ in range(5):
            check(ws)
        assert stranger.heard() == []
    finally:
        stranger.close()
    assert not bomb.exists()


def test_the_port_asks_for_a_key(ws):
    signature, version = b"\xff" + bytes(8) + b"\x7f", b"\x03\x01"
    (port,) = ports(ws)
    with connect(port) as sock:
        sock.sendall(signature + version)
        with sock.makefile("rb") as stream:
            theirs = stream.read(64)
        assert theirs[12:32].rstrip(b"\0") == b"CURVE"
        sock.sendall(b"NULL".ljust(20, b"\0") + bytes(32))
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(64) == b""


@deep
def test_huge_messages_of_strangers_fill_no_memory(ws):
    (port,) = ports(ws)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    root = psutil.Process(root_pid(ws))
    nbytes = [root.memory_info().rss]
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(connect(port))  # stays open, as what it has sent would
            with contextlib.suppress(OSError):
                sock.sendall(greeting + b"\x06" + struct.pack(">Q", 1 << 30))
                for _ in range(64):
                    sock.sendall(bytes(1 << 20))
            nbytes.append(root.memory_info().rss)
    # What is kept is kept each time; the supervisor may need more for itself now and then.
    assert min(after - before for before, after in pairwise(nbytes)) < 16 << 20
    check(ws)


@deep
@pytest.mark.slow
def test_a_flood_of_half_open_connections_disturbs_nobody(ws):
    (port,) = ports(ws)
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(connect(port)).sendall(b"\xff\0")
        for _ in range(5):
            check(ws)
            ws.topology()  # through that port
    check(ws)
