"""What a supervisor says before it ends is heard, and the thread that hears it survives bad messages."""

from __future__ import annotations

import logging
import queue

import pytest
import zmq
from support.promise import BOUND_S, within
from support.waiting import wait_until

from phalanx.errors import DistributedError
from phalanx.protocol import BootFailed
from phalanx.workspace._io import SocketThread
from phalanx.workspace._root_client import RootClient


class Gone:
    """A root that has ended; ``on_poll`` is called each time somebody asks."""

    def __init__(self):
        self.on_poll = lambda: None

    def poll(self):
        self.on_poll()
        return 1

    def log_tail(self):
        return "its last line"


@pytest.fixture
def client():
    client = RootClient.__new__(RootClient)
    client._root = Gone()
    return client


def test_an_answer_that_comes_after_the_end_is_taken(client):
    inbox = queue.SimpleQueue()
    client._root.on_poll = lambda: inbox.put(BootFailed("no qsub here"))
    assert client._wait(inbox, 10, "it") == BootFailed("no qsub here")


@pytest.mark.promise
def test_nothing_more_is_said_to_be_gone_in_time(client):
    gone = pytest.raises(DistributedError, match="the supervisor is gone: its last line")
    with within(BOUND_S), gone:
        client._wait(queue.SimpleQueue(), 60, "it")


def test_messages_that_cannot_be_handled_are_told_of_and_do_not_fill_the_log(tmp_path, caplog):
    seen = []

    def refuse(frames):
        seen.append(frames)
        msg = "not ours"
        raise ValueError(msg)

    endpoint = f"ipc://{tmp_path}/bad"
    thread = SocketThread("test")
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.bind(endpoint)
        with caplog.at_level(logging.ERROR):
            try:
                thread.socket(zmq.PULL, endpoint, refuse)
                for _ in range(25):
                    sender.send(b"?")
                wait_until(lambda: len(seen) == 25, "all messages have come")
            finally:
                thread.close()
    numbers = [record.args for record in caplog.records]
    assert numbers == [(1,), (10,)]
    assert all(record.exc_info for record in caplog.records)
