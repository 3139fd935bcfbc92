"""Who owns a root, and clients that do not read."""

from __future__ import annotations

import asyncio
import os
import socket

import msgspec
import pytest
from support.ranks.loops import as_test, run_jumping

from phalanx.protocol import BootOptions, FrameReader, Hello, Notice, WorldConfig
from phalanx.supervisor.root import clients as clients_module
from phalanx.supervisor.root.clients import Client, Clients

LINGER_S = 5.0


def scene(test):
    async def main(play):
        await play()
        await asyncio.sleep(1)  # all transports are closed

    return as_test(test, lambda play: run_jumping(lambda: main(play)))


class Events:
    """A root that only has clients, and what has come to an end there."""

    def __init__(self):
        self.ended = []
        options = BootOptions(WorldConfig("test", 1), LINGER_S, "/")
        self.clients = Clients(
            options, lambda: self.ended.append("owner"), lambda: self.ended.append("root")
        )
        self.met = []
        self.asked = []

    def on_client(self, client):
        self.met.append(client)
        self.clients.meet(client)

    def on_request(self, client, body):
        self.asked.append(body)

    def on_client_gone(self, client):
        self.clients.lose(client)


async def connected(events):
    """A new client: what the root has of it, and its own end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: Client(events), theirs)
    return events.met[-1], ours


async def told(sock):
    """All that a client has been told so far."""
    reader, found = FrameReader(), []
    while True:
        try:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 20), 0.5)
        except asyncio.TimeoutError:
            return found
        found += [msgspec.msgpack.decode(body) for body in reader.feed(data)]
        if not data:
            return [*found, None]


@scene
async def test_the_first_client_is_the_owner_and_its_end_starts_the_linger_time():
    events = Events()
    first, sock = await connected(events)
    assert events.clients.has_owner(first)
    (record,) = await told(sock)
    assert (record["name"], record["owner_pid"]) == ("test", os.getpid())
    sock.close()
    await asyncio.sleep(1)
    assert events.ended == ["owner"]
    await asyncio.sleep(LINGER_S)
    assert events.ended == ["owner", "root"]


@scene
async def test_a_second_client_may_attach_once_the_first_has_gone_or_take_over():
    events = Events()
    first, sock = await connected(events)
    second, other = await connected(events)
    assert not events.clients.greet(second, Hello())
    assert f"is used by process {os.getpid()}" in (await told(other))[-1]["message"]
    assert events.clients.greet(second, Hello(is_taking=True))
    assert (await told(sock))[-1] == {"type": "OwnershipTransferred", "pid": os.getpid()}
    assert events.ended == ["owner"]
    other.close()
    await asyncio.sleep(1)
    assert events.clients.greet(first, Hello())
    await asyncio.sleep(2 * LINGER_S)
    assert events.ended == ["owner", "owner"]
    sock.close()


@scene
async def test_an_owner_of_another_container_has_the_workspace_until_it_leaves(monkeypatch):
    monkeypatch.setattr(clients_module, "peer_of", lambda _: (0, os.geteuid()))
    events = Events()
    _, sock = await connected(events)
    second, other = await connected(events)
    assert not events.clients.greet(second, Hello())
    said = (await told(other))[-1]["message"]
    assert "is used by a process of another pid namespace" in said
    sock.close()
    await asyncio.sleep(1)
    assert events.clients.greet(second, Hello())
    other.close()


@scene
async def test_another_user_is_not_met(monkeypatch):
    monkeypatch.setattr(clients_module, "peer_of", lambda _: (1, os.geteuid() + 1))
    events, (ours, theirs) = Events(), socket.socketpair()
    ours.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: Client(events), theirs)
    assert await told(ours) == [None]
    assert events.met == []
    ours.close()


@pytest.mark.parametrize("data", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n"])
@scene
async def test_bytes_that_are_no_frames_end_the_connection(data):
    events = Events()
    _, sock = await connected(events)
    await asyncio.get_running_loop().sock_sendall(sock, data)
    assert (await told(sock))[-1] is None
    assert events.ended == ["owner"]
    assert events.asked == []
    sock.close()


@scene
async def test_a_client_that_does_not_read_is_given_up_and_told_of_it_when_it_reads(monkeypatch):
    monkeypatch.setattr(clients_module, "MOST_UNREAD_NBYTES", 1 << 20)
    events = Events()
    client, sock = await connected(events)
    events.clients.tell(Notice("x" * (4 << 20)))  # one message may be larger
    assert events.ended == []
    n_sent = 0
    while events.clients.has_owner(client):
        events.clients.tell(Notice("y" * 1000))
        n_sent += 1
    assert n_sent < 4000
    assert events.ended == ["owner"]
    events.clients.tell(Notice("nobody hears that"))
    *_, word, end = await told(sock)
    assert (word, end) == ({"type": "OwnershipTransferred", "pid": -1}, None)
    sock.close()


@scene
async def test_the_last_word_waits_for_no_client_that_does_not_read():
    events = Events()
    _, sock = await connected(events)
    reading, other = await connected(events)
    events.clients.tell(Notice("x" * (4 << 20)))
    await events.clients.close("rank 1 was killed", (reading, 7))
    words = await told(other)
    stopped = {"type": "Stopped", "cut_off": "rank 1 was killed"}
    assert words[1:] == [{"type": "RootAnswered", "id": 7, "answer": stopped}, None]
    sock.close()
