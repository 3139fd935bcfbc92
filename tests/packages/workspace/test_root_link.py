"""The link to a root: large messages, a root that does not read, its end, forked children."""

from __future__ import annotations

import os
import queue
import socket
import threading

import msgspec
import pytest
from support.promise import PATIENCE_S

from phalanx.protocol import AskRoot, FromRoot, GetOutput, Notice, pack_frame, read_frame
from phalanx.workspace.connection.transport import RootLink, SocketThread

LARGE = "x" * (8 << 20)


@pytest.fixture
def link():
    """A link, what has come over it (None: its end), and the root's end."""
    ours, theirs = socket.socketpair()
    came = queue.SimpleQueue()
    thread = SocketThread("test")
    theirs.settimeout(PATIENCE_S)
    try:
        yield RootLink(thread, ours, FromRoot, came.put, lambda: came.put(None)), came, theirs
    finally:
        thread.close()
        theirs.close()


def test_large_messages_pass_both_ways_at_once(link):
    ours, came, theirs = link
    answer = threading.Thread(target=theirs.sendall, args=(pack_frame(Notice(LARGE)),))
    answer.start()
    ours.send(Notice(LARGE))
    assert msgspec.msgpack.decode(read_frame(theirs), type=Notice).text == LARGE
    assert came.get(timeout=PATIENCE_S) == Notice(LARGE)
    answer.join()


def test_a_root_that_does_not_read_holds_nobody_up(link):
    ours, came, theirs = link
    for number in range(4):
        ours.send(AskRoot(number, GetOutput(0)))
        ours.send(Notice(LARGE))
    theirs.sendall(pack_frame(Notice("news")))
    assert came.get(timeout=PATIENCE_S) == Notice("news")
    for number in range(4):
        assert msgspec.msgpack.decode(read_frame(theirs), type=AskRoot).id == number
        read_frame(theirs)


def test_the_end_comes_after_the_last_message_and_once(link):
    ours, came, theirs = link
    theirs.sendall(pack_frame(Notice("last")) + b"\1\0\0\0")
    theirs.close()
    assert came.get(timeout=PATIENCE_S) == Notice("last")
    assert came.get(timeout=PATIENCE_S) is None
    ours.send(Notice("to nobody"))
    ours.finish()
    with pytest.raises(queue.Empty):
        came.get(timeout=0.05)


def test_a_root_reads_all_that_was_sent_before_the_finish(link):
    ours, _, theirs = link
    ours.send(AskRoot(1, GetOutput(0)))
    ours.finish()
    assert msgspec.msgpack.decode(read_frame(theirs), type=AskRoot).id == 1
    assert theirs.recv(1) == b""


def test_a_message_that_is_not_understood_is_left_out(link, caplog):
    _, came, theirs = link
    theirs.sendall(b"\1\0\0\0\x80" + pack_frame(Notice("good")))
    assert came.get(timeout=PATIENCE_S) == Notice("good")
    assert "could not be handled" in caplog.text


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_link_open():
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE_S)
    thread = SocketThread("test")
    RootLink(thread, ours, FromRoot, lambda _: None, lambda: None)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the end of the parent's end
        os._exit(0)
    try:
        thread.close()
        assert theirs.recv(1) == b""
    finally:
        for fd in (reading, writing):
            os.close(fd)
        os.waitpid(child, 0)
        theirs.close()
