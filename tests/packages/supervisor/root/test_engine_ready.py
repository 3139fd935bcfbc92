"""A rank says that it takes cells only when the controller can reach it and hears it."""

from __future__ import annotations

import asyncio

import pytest
import zmq
from support.promise import PATIENCE_S
from support.ranks.loops import in_asyncio

from phalanx.rank.output.streams import PublishThread
from phalanx.supervisor.engine.curve import HandshakeCounter


@pytest.fixture
def make_socket():
    """Make sockets, which are closed after the test."""
    context, made = zmq.Context(), []

    def make(kind):
        made.append(context.socket(kind))
        return made[-1]

    yield make
    context.destroy(linger=0)


@in_asyncio
async def test_handshakes_are_over_when_each_endpoint_has_answered(make_socket, tmp_path):
    urls = [f"ipc://{tmp_path}/{name}" for name in "ab"]
    sock = make_socket(zmq.ROUTER)
    counter = HandshakeCounter(sock)
    for url in urls:
        counter.expect()
        sock.connect(url)
    peers = [make_socket(zmq.ROUTER) for _ in urls]
    waiting = asyncio.ensure_future(counter.wait())
    for peer, url in zip(peers, urls, strict=True):
        await asyncio.sleep(0)
        assert not waiting.done()
        peer.bind(url)
    await asyncio.wait_for(waiting, PATIENCE_S)


def test_a_thread_that_publishes_knows_of_its_first_subscription(make_socket):
    out, subscriber = make_socket(zmq.XPUB), make_socket(zmq.SUB)
    out.bind("inproc://out")
    subscriber.connect("inproc://out")
    thread = PublishThread(out, session=None)
    thread.start()
    try:
        assert not thread.subscribed.done()
        subscriber.subscribe(b"")
        thread.subscribed.result(PATIENCE_S)
    finally:
        thread.stop()


def test_a_publisher_that_sees_no_subscriptions_is_ready_at_once(make_socket):
    thread = PublishThread(make_socket(zmq.PUB))
    assert thread.subscribed.done()
