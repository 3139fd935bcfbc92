"""What a supervisor says before it ends is heard, and the thread that hears it survives bad messages."""

from __future__ import annotations

import logging
import queue
import sys

import pytest
import zmq
from support.inside import root_client_of, wait_for_answer
from support.promise import BOUND_S, PATIENCE_S, within
from support.waiting import wait_until

from phalanx.errors import DistributedError
from phalanx.protocol import BootOptions, Failed, WorldConfig
from phalanx.supervisor import launch_root
from phalanx.workspace.connection.transport import SocketThread


class Gone:
    """A root that has ended."""

    def last_output(self):
        return "its last line"


class AlmostEmpty(queue.SimpleQueue):
    """A queue into which the last message comes just after the first look."""

    def get(self, timeout):
        self.put(Failed("no sbatch here"))
        raise queue.Empty


def test_an_answer_that_comes_after_the_end_is_taken():
    assert wait_for_answer(root_client_of(Gone()), AlmostEmpty(), 10) == Failed("no sbatch here")


@pytest.mark.promise
def test_nothing_more_is_said_to_be_gone_in_time():
    gone = pytest.raises(DistributedError, match="the supervisor is gone: its last line")
    with within(BOUND_S), gone:
        wait_for_answer(root_client_of(Gone()), queue.SimpleQueue(), 60)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("kill -9 $$", "killed by signal 9 (SIGKILL)"),
        ("echo a warning >&2; kill -9 $$", "killed by signal 9 (SIGKILL): a warning"),
        ("exit 3", "exited with status 3"),
        ("echo no memory >&2; exit 1", "no memory"),
    ],
)
def test_a_supervisor_that_ends_before_it_has_spoken_is_told_by_how_it_ended(
    tmp_path, monkeypatch, program, said
):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    options = BootOptions(WorldConfig("a", 1), linger_s=0.0, cwd="/")
    with pytest.raises(DistributedError) as caught:
        launch_root(options)
    assert str(caught.value) == f"the supervisor did not start: {said}"


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


@pytest.fixture
def pair(tmp_path):
    """A socket thread, its socket and what came for it, and the other end."""
    endpoint = f"ipc://{tmp_path}/pair"
    came = queue.SimpleQueue()
    thread = SocketThread("test", way_out="start anew")
    with zmq.Context() as context, context.socket(zmq.PAIR) as other:
        other.rcvtimeo = round(1000 * PATIENCE_S)
        other.bind(endpoint)

        def take(frames):
            if frames == [b"exit"]:
                raise SystemExit
            came.put(frames)

        yield thread, thread.socket(zmq.PAIR, endpoint, take), came, other
        thread.close()


def test_a_handler_that_exits_does_not_end_the_thread(pair):
    _, _, came, other = pair
    other.send(b"exit")
    other.send(b"news")
    assert came.get(timeout=PATIENCE_S) == [b"news"]


def test_a_buffer_with_gaps_is_refused_where_it_is_sent(pair):
    thread, sock, _, other = pair
    with pytest.raises(BufferError, match="not contiguous"):
        thread.send(sock, [memoryview(bytearray(8))[::2]])
    with pytest.raises(TypeError, match="bytes-like"):
        thread.send(sock, ["text"])
    thread.send(sock, [b"well"])
    assert other.recv() == b"well"


def test_a_message_that_cannot_be_sent_does_not_end_the_thread(pair):
    thread, sock, _, other = pair
    with zmq.Context() as context, context.socket(zmq.PAIR) as closed:
        pass
    thread.send(closed, [b"lost"])
    thread.send(sock, [b"well"])
    assert other.recv() == b"well"


def test_a_broken_thread_is_told_to_every_caller(pair):
    thread, sock, _, _ = pair

    def fail():
        raise KeyboardInterrupt

    thread._tasks.append(fail)
    thread._ring()
    thread._thread.join()
    for call in (thread.check, lambda: thread.send(sock, [b"?"])):
        with pytest.raises(DistributedError, match=r"broke \(KeyboardInterrupt\); start anew"):
            call()
