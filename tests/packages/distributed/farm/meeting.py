"""Ranks that connect to each other: threads of the test, or played by it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
from support.promise import PATIENCE_S

from phalanx.distributed.connect.connector import connect_links
from phalanx.distributed.connect.endpoints import Endpoint, Share
from phalanx.distributed.connect.handshake import (
    Handshake,
    Identity,
    LinkPart,
    LinkPurpose,
    accept,
    initiate,
)
from phalanx.distributed.connect.rendezvous import Rendezvous

KEY = bytes(range(32))
TO_RANK_0 = LinkPart(0)
Links = dict[int, socket.socket]


def identity(rank: int, **changes) -> Identity:
    return Identity(**{"workspace": "lab", "epoch": 3, "rank": rank, "key": KEY, **changes})


class MemoryRendezvous:
    """Rendezvous of ranks that are threads of one process."""

    def __init__(self, rank: int, parts: list[bytes], barrier: threading.Barrier) -> None:
        self._rank = rank
        self._parts = parts
        self._barrier = barrier

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        self._parts[self._rank] = data
        self._barrier.wait(timeout)
        parts = list(self._parts)
        self._barrier.wait(timeout)  # all have read this round
        return parts


class Meeting:
    """``size`` ranks, some of them threads, the others played by the test."""

    def __init__(self, executor: ThreadPoolExecutor, size: int) -> None:
        self._executor = executor
        shared = [b""] * size, threading.Barrier(size)
        self.rendezvous = [MemoryRendezvous(rank, *shared) for rank in range(size)]
        self.size = size

    def start(self, rank: int, **options) -> Future[Links]:
        rendezvous = options.pop("rendezvous", self.rendezvous[rank])
        me = options.pop("me", identity(rank))
        peers = options.pop("peers", [r for r in range(self.size) if r != rank])
        addresses = options.pop("addresses", ["127.0.0.1"])
        options.setdefault("timeout", PATIENCE_S)
        purposes = peers if isinstance(peers, dict) else {LinkPurpose.COLLECTIVE: peers}

        def connect() -> Links:
            made = connect_links(me, purposes, addresses, rendezvous, **options)
            links = {purpose: {} for purpose in purposes}
            for part, sock in made.items():
                links[part.purpose].setdefault(part.peer, []).append(sock)
            if "striping" in options:
                return links
            ones = {
                purpose: {peer: one for peer, (one,) in its.items()}
                for purpose, its in links.items()
            }
            return ones if isinstance(peers, dict) else ones[LinkPurpose.COLLECTIVE]

        return self._executor.submit(connect)

    def stand_in(
        self, *ranks: int, port: int = 1, gone: Any = None, at_once: int = 0
    ) -> list[Share]:
        """Take the place of ranks in the rendezvous; nobody listens at port 1, or at ``gone``."""

        def give(rank: int) -> list[bytes]:
            peers = tuple(r for r in range(self.size) if r != rank)
            endpoints = [Endpoint("127.0.0.1", port)]
            endpoints += [Endpoint(*gone)] if gone else endpoints * (at_once - 1)
            share = Share((peers, ()), tuple(endpoints), at_once=len(endpoints))
            return self.rendezvous[rank].all_gather(
                msgspec.msgpack.encode(share), timeout=PATIENCE_S
            )

        parts = next(iter(list(self._executor.map(give, ranks))))
        return [msgspec.msgpack.decode(part, type=Share) for part in parts]


def check_links(results: list[Links]) -> None:
    """Every pair is joined by one connection, and nothing but what is sent comes out of it."""
    for rank, links in enumerate(results):
        for peer, sock in links.items():
            assert not sock.get_inheritable()
            sock.setblocking(True)
            sock.sendall(struct.pack("<II", rank, peer))
    for rank, links in enumerate(results):
        for peer, sock in links.items():
            assert struct.unpack("<II", sock.recv(4096)) == (peer, rank)
            sock.close()


class Late:
    """A rendezvous that does something between the others' listening and this rank's coming."""

    def __init__(self, inner: Rendezvous, then: Callable[[list[Share]], None]) -> None:
        self._inner = inner
        self._then = then

    def all_gather(self, data: bytes, *, timeout: float | None) -> list[bytes]:
        parts = self._inner.all_gather(data, timeout=timeout)
        self._then([msgspec.msgpack.decode(part, type=Share) for part in parts])
        return parts


def hello(me: Identity, part: LinkPart = TO_RANK_0) -> bytes:
    """What a rank says first."""
    return next(initiate(me, part))[0]


def shake(sock: socket.socket, handshake: Handshake) -> LinkPart:
    """Run a handshake over a blocking socket; which connection it is."""
    outgoing, needs = next(handshake)
    while True:
        sock.sendall(outgoing)
        message = sock.recv(needs, socket.MSG_WAITALL)
        if len(message) < needs:
            raise ConnectionError
        try:
            outgoing, needs = handshake.send(message)
        except StopIteration as proven:
            return proven.value


def answer(sock: socket.socket) -> LinkPart:
    """Let rank 1 prove itself to rank 0; which of its connections it is."""
    return shake(sock, accept(identity(0), lambda _: True))


def talk(
    sock: socket.socket, me: Identity | None = None, part: LinkPart = TO_RANK_0
) -> socket.socket:
    """Prove ourselves to rank 0, as rank 1."""
    shake(sock, initiate(me or identity(1), part))
    return sock
