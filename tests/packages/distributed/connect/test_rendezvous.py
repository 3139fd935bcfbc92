"""The two ways to exchange bytes: within a group, and through a supervisor that the test plays.

That everyone gets every share is seen by each world and each split that the other tests form.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import pytest
from support.promise import PATIENCE_S

from phalanx import _native
from phalanx.distributed.connect.rendezvous import ChannelRendezvous, GroupRendezvous
from phalanx.errors import DistributedError, RankFailure
from phalanx.protocol import (
    Channel,
    FrameReader,
    Gather,
    Gathered,
    Refused,
    Withdraw,
    pack_frame,
)

SIZE = 3


@pytest.fixture
def ranks() -> Iterator[list[GroupRendezvous]]:
    """Ranks that are threads, in groups with links between all of them."""
    links: list[dict[int, list[int]]] = [{} for _ in range(SIZE)]
    for rank in range(SIZE):
        for peer in range(rank):
            one, other = socket.socketpair()
            links[rank][peer], links[peer][rank] = [one.detach()], [other.detach()]
    groups = [
        _native.Group(rank=rank, size=SIZE, epoch=1, hosts=range(SIZE), links=links[rank])
        for rank in range(SIZE)
    ]
    yield [GroupRendezvous(group) for group in groups]
    for group in groups:
        group.close()


def test_empty_and_large_shares(ranks):
    shares = [b"", b"x" * 300_000, b"y"]
    with ThreadPoolExecutor(SIZE) as threads:
        for _ in range(3):
            results = threads.map(lambda r, s: r.all_gather(s, timeout=PATIENCE_S), ranks, shares)
            assert list(results) == [shares] * SIZE


def test_one_that_does_not_come_is_a_timeout(ranks):
    with ThreadPoolExecutor(SIZE) as threads:
        futures = [threads.submit(r.all_gather, b"", timeout=0.05) for r in ranks[:2]]
        errors = [future.exception() for future in futures]
    assert any(isinstance(error, TimeoutError) for error in errors)
    assert all(isinstance(error, (TimeoutError, DistributedError)) for error in errors)
    assert all("rendezvous" in str(error) for error in errors)


@contextmanager
def answered_by(
    answer: Callable[[msgspec.Struct], msgspec.Struct | None],
) -> Iterator[ChannelRendezvous]:
    """Give rank 0's way through a supervisor that answers so (None: not at all)."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        reader = FrameReader()
        while data := theirs.recv(4096):
            for body in reader.feed(data):
                said = answer(msgspec.msgpack.decode(body, type=Gather | Withdraw))
                if said is not None:
                    theirs.sendall(pack_frame(said))

    thread = threading.Thread(target=serve)
    thread.start()
    channel = Channel(ours)
    yield ChannelRendezvous(channel, epoch=1, size=SIZE, host_names=("a", "a", "b"))
    channel.close()
    thread.join()
    theirs.close()


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            lambda ask: Refused(ask.id, -1, "rank 2") if isinstance(ask, Withdraw) else None,
            TimeoutError,
            "rank 2 did not come to round 0 .* within 0.05 s",
        ),
        (lambda ask: Refused(ask.id, 2, "killed"), RankFailure, "^rank 2 on b: killed$"),
        (lambda ask: Refused(ask.id, -1, "epoch 1 is over"), DistributedError, "epoch 1 is over"),
        (lambda ask: Gathered(ask.id, (b"",)), DistributedError, "round 0 of epoch 1 with a wrong"),
    ],
)
def test_what_the_supervisor_answers_is_said(answer, kind, text):
    with answered_by(answer) as rank, pytest.raises(kind, match=text):
        rank.all_gather(b"", timeout=0.05 if kind is TimeoutError else PATIENCE_S)


def test_a_supervisor_that_is_gone_is_an_error_not_a_wait():
    ours, theirs = socket.socketpair()
    theirs.close()
    rank = ChannelRendezvous(Channel(ours), epoch=1, size=SIZE)
    with pytest.raises(DistributedError, match="supervisor of this host is gone"):
        rank.all_gather(b"", timeout=PATIENCE_S)
    ours.close()
