"""The thread that owns the sockets."""

from __future__ import annotations

import logging

import zmq
from restarting import wait_for

from phalanx.workspace._io import SocketThread


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
                wait_for(lambda: len(seen) == 25)
            finally:
                thread.close()
    numbers = [record.args for record in caplog.records]
    assert numbers == [(1,), (10,)]
    assert all(record.exc_info for record in caplog.records)
