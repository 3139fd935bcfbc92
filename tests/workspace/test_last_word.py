"""What a supervisor says before it ends is heard, however late."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from phalanx.errors import DistributedError
from phalanx.protocol import BootFailed
from phalanx.workspace import _root_client
from phalanx.workspace._root_client import RootClient


class Gone:
    def poll(self):
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
    late = threading.Timer(2 * _root_client.POLL_S, inbox.put, [BootFailed("no qsub here")])
    late.start()
    assert client._wait(inbox, 10, "it") == BootFailed("no qsub here")
    late.join()


def test_nothing_more_is_said_to_be_gone_in_time(client):
    begin_s = time.monotonic()
    with pytest.raises(DistributedError, match="the supervisor is gone: its last line"):
        client._wait(queue.SimpleQueue(), 10, "it")
    assert time.monotonic() - begin_s < 2
