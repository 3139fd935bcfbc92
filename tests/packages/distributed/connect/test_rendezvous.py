"""One contract for both rendezvous: through a (fake) supervisor, and within a group."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from support.promise import PATIENCE_S

from phalanx import _native
from phalanx.distributed.connect.rendezvous import ChannelRendezvous, GroupRendezvous, Rendezvous
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


class FakeSupervisor:
    """Answers rounds when all have come; ``refuse`` is its answer instead, if set."""

    def __init__(self, size: int) -> None:
        pairs = [socket.socketpair() for _ in range(size)]
        self.channels = [Channel(theirs) for theirs, _ in pairs]
        self._socks = [ours for _, ours in pairs]
        self._lock = threading.Lock()
        self._rounds: dict[int, dict[int, Gather]] = {}
        self.refuse: Callable[[Gather], msgspec.Struct] | None = None
        self._threads = [threading.Thread(target=self._serve, args=(rank,)) for rank in range(size)]
        for thread in self._threads:
            thread.start()

    def _serve(self, rank: int) -> None:
        reader = FrameReader()
        while data := self._socks[rank].recv(4096):
            for body in reader.feed(data):
                message = msgspec.msgpack.decode(body, type=Gather | Withdraw)
                if isinstance(message, Gather):
                    self._gather(rank, message)
                else:
                    answer = Refused(message.id, -1, f"rank {SIZE - 1}")
                    self._socks[rank].sendall(pack_frame(answer))

    def _gather(self, rank: int, ask: Gather) -> None:
        if self.refuse is not None:
            self._socks[rank].sendall(pack_frame(self.refuse(ask)))
            return
        with self._lock:
            asks = self._rounds.setdefault(ask.round, {})
            asks[rank] = ask
            if len(asks) < len(self._socks):
                return
            parts = tuple(asks[peer].data for peer in range(len(self._socks)))
            for peer, sock in enumerate(self._socks):
                sock.sendall(pack_frame(Gathered(asks[peer].id, parts)))

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        for thread in self._threads:
            thread.join()
        for sock in self._socks:
            sock.close()


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    fake = FakeSupervisor(SIZE)
    yield fake
    fake.close()


@pytest.fixture
def engines() -> Iterator[list[_native.Group]]:
    """Groups of ranks that are threads, with links between all of them."""
    links: list[dict[int, int]] = [{} for _ in range(SIZE)]
    for rank in range(SIZE):
        for peer in range(rank):
            one, other = socket.socketpair()
            links[rank][peer], links[peer][rank] = [one.detach()], [other.detach()]
    groups = [
        _native.Group(rank=rank, size=SIZE, epoch=1, hosts=range(SIZE), links=links[rank])
        for rank in range(SIZE)
    ]
    yield groups
    for group in groups:
        group.close()


@pytest.fixture(params=["channel", "group"])
def ranks(request: pytest.FixtureRequest) -> list[Rendezvous]:
    if request.param == "group":
        return [GroupRendezvous(engine) for engine in request.getfixturevalue("engines")]
    fake = request.getfixturevalue("supervisor")
    return [ChannelRendezvous(fake.channels[rank], epoch=1, size=SIZE) for rank in range(SIZE)]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SIZE) as executor:
        yield executor


def test_everyone_gets_every_share_in_the_order_of_ranks(ranks, threads):
    def act(rank: Rendezvous) -> list[list[bytes]]:
        me = ranks.index(rank)
        return [
            rank.all_gather(b"%d:%d" % (me, number), timeout=PATIENCE_S) for number in range(20)
        ]

    expected = [[b"%d:%d" % (r, number) for r in range(SIZE)] for number in range(20)]
    assert list(threads.map(act, ranks)) == [expected] * SIZE


def test_empty_and_large_shares(ranks, threads):
    shares = [b"", b"x" * 300_000, b"y"]
    results = threads.map(lambda r, s: r.all_gather(s, timeout=PATIENCE_S), ranks, shares)
    assert list(results) == [shares] * SIZE


def test_one_that_does_not_come_is_a_timeout(ranks, threads):
    futures = [threads.submit(r.all_gather, b"", timeout=0.05) for r in ranks[:2]]
    errors = [future.exception() for future in futures]
    assert any(isinstance(error, TimeoutError) for error in errors)
    assert all(isinstance(error, (TimeoutError, DistributedError)) for error in errors)
    assert all("rendezvous" in str(error) for error in errors)


def test_the_one_through_the_supervisor_names_the_missing(supervisor):
    first = ChannelRendezvous(supervisor.channels[0], epoch=1, size=SIZE)
    with pytest.raises(TimeoutError, match="rank 2 did not come to round 0 .* within 0.01 s"):
        first.all_gather(b"", timeout=0.01)


def test_a_refusal_names_the_rank_that_was_lost(supervisor):
    supervisor.refuse = lambda ask: Refused(ask.id, 2, "killed by signal 9 (SIGKILL)")
    rank = ChannelRendezvous(supervisor.channels[0], epoch=1, size=SIZE, host_names=("a", "a", "b"))
    with pytest.raises(RankFailure) as caught:
        rank.all_gather(b"", timeout=PATIENCE_S)
    assert str(caught.value) == "rank 2 on b: killed by signal 9 (SIGKILL)"


def test_a_refusal_without_a_culprit_and_a_wrong_answer(supervisor):
    rank = ChannelRendezvous(supervisor.channels[0], epoch=1, size=SIZE)
    supervisor.refuse = lambda ask: Refused(ask.id, -1, "epoch 1 is over")
    with pytest.raises(DistributedError, match="epoch 1 is over"):
        rank.all_gather(b"", timeout=PATIENCE_S)
    supervisor.refuse = lambda ask: Gathered(ask.id, (b"",))
    with pytest.raises(DistributedError, match="round 1 of epoch 1"):
        rank.all_gather(b"", timeout=PATIENCE_S)


def test_a_supervisor_that_is_gone_is_an_error_not_a_wait(supervisor):
    ours, theirs = socket.socketpair()
    theirs.close()
    rank = ChannelRendezvous(Channel(ours), epoch=1, size=SIZE)
    with pytest.raises(DistributedError, match="supervisor of this host is gone"):
        rank.all_gather(b"", timeout=PATIENCE_S)
    ours.close()
