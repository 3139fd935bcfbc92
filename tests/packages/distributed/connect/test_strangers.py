"""Strangers at the ports where ranks connect to each other; ranks are threads of this process."""

from __future__ import annotations

import random
import socket
import struct

import psutil
import pytest
from distributed.farm.meeting import Late, check_links, hello, identity, talk
from support.promise import HOLDS, PATIENCE_S, within

from phalanx.distributed.connect import connector
from phalanx.distributed.connect.endpoints import Share
from phalanx.distributed.connect.handshake import LinkPart, LinkPurpose


def strangers() -> dict[str, bytes]:
    return {
        "a port scanner": b"",
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 4096,
        "half a hello": hello(identity(1))[:40],
        "another workspace": hello(identity(1, workspace="other")),
        "another epoch": hello(identity(1, epoch=2)),
        "an overheard hello": hello(identity(1)),
        "a rank nobody waits for": hello(identity(9)),
        "a purpose nobody waits for": hello(identity(1), LinkPart(0, LinkPurpose.PAIR)),
        "a wrong key": hello(identity(1, key=bytes(32))) + bytes(32),
        "tls": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500),
        "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
        "noise": random.Random(3).randbytes(4096),
    }


@pytest.mark.parametrize("name", strangers())
def test_a_stranger_is_left_standing_while_the_world_forms(meet, knock, name):
    meeting = meet(2)
    knocks = []
    late = Late(
        meeting.rendezvous[1],
        lambda shares: knocks.append(knock(shares[0], strangers()[name])),
    )
    futures = [meeting.start(0), meeting.start(1, rendezvous=late)]
    check_links([future.result(PATIENCE_S) for future in futures])
    learned = b""
    try:
        while data := knocks[0].recv(4096):
            learned += data
    except ConnectionResetError:
        pass
    # At most the acceptor's random challenge, and that for words that only a rank can have said.
    assert len(learned) == (32 if name == "an overheard hello" else 0)


@pytest.mark.promise
@pytest.mark.parametrize("words", ["nothing", "an overheard hello"])
def test_a_flood_of_500_connections_keeps_no_rank_out(meet, knock, words, caplog):
    meeting = meet(4)
    said = hello(identity(1)) if words != "nothing" else b""

    def flood(shares: list[Share]) -> None:
        for _ in range(500):
            knock(shares[0], said)

    caplog.set_level("DEBUG")
    late = Late(meeting.rendezvous[3], flood)
    with within(5.0 if HOLDS else PATIENCE_S):
        futures = [
            meeting.start(r, rendezvous=late if r == 3 else meeting.rendezvous[r]) for r in range(4)
        ]
        check_links([future.result(PATIENCE_S) for future in futures])
    logged = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(logged) <= 8 + 1  # some, and how many they were


def test_a_byte_at_a_time_is_too_slow(meet, knock, monkeypatch):
    monkeypatch.setattr(connector, "UNPROVEN_LIMIT_S", 0.3)
    meeting = meet(2)
    first = meeting.start(0)
    shares = meeting.stand_in(1)
    slow = knock(shares[0])
    is_closed = False
    for byte in hello(identity(1)):
        try:
            slow.sendall(bytes([byte]))
            slow.settimeout(0.02)
            is_closed = slow.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            is_closed = True
        break
    assert is_closed
    assert not first.done()
    talk(knock(shares[0])).close()
    for sock in first.result(PATIENCE_S).values():
        sock.close()


def test_a_reset_knock_is_nothing(meet, knock):
    meeting = meet(2)
    first = meeting.start(0)
    shares = meeting.stand_in(1)
    for data in (b"", b"phal"):
        for _ in range(50):
            sock = knock(shares[0], data)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
    talk(knock(shares[0])).close()
    for sock in first.result(PATIENCE_S).values():
        sock.close()


def test_nobody_listens_when_the_group_stands(meet):
    def listening():
        connections = psutil.Process().net_connections("tcp")
        return {c.laddr for c in connections if c.status == psutil.CONN_LISTEN}

    before = listening()  # pytest's own, where it runs tests again
    meeting = meet(3)
    futures = [meeting.start(rank) for rank in range(3)]
    results = [future.result(PATIENCE_S) for future in futures]
    assert listening() <= before
    check_links(results)


def test_a_silent_stranger_is_dropped_when_its_time_is_over(meet, knock, monkeypatch):
    monkeypatch.setattr(connector, "UNPROVEN_LIMIT_S", 0.05)
    meeting = meet(2)
    first = meeting.start(0)
    shares = meeting.stand_in(1)
    silent = knock(shares[0])
    assert silent.recv(1) == b""
    assert not first.done()
    talk(knock(shares[0])).close()
    for sock in first.result(PATIENCE_S).values():
        sock.close()
