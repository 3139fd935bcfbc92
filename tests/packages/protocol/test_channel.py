"""The rank's channel: frames, answers in any order, the end."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.promise import PATIENCE_S

from phalanx.protocol import (
    MAX_FRAME,
    CellEnded,
    Channel,
    ChannelClosed,
    EndRank,
    FrameReader,
    Inspect,
    Join,
    Refused,
    StopCell,
    ToSupervisor,
    Withdraw,
    pack_frame,
)


@given(st.lists(st.text(max_size=30), max_size=5), st.integers(1, 7))
def test_frames_do_not_depend_on_how_bytes_are_cut(cells, step):
    data = b"".join(pack_frame(CellEnded(cell, ok=True)) for cell in cells)
    reader = FrameReader()
    bodies = [
        body for at in range(0, len(data), step) for body in reader.feed(data[at : at + step])
    ]
    decoded = [msgspec.msgpack.decode(body, type=ToSupervisor) for body in bodies]
    assert decoded == [CellEnded(cell, ok=True) for cell in cells]


@given(st.binary(max_size=200))
def test_nonsense_is_refused_and_never_crashes(data):
    reader = FrameReader()
    try:
        for body in reader.feed(data):
            msgspec.msgpack.decode(body, type=ToSupervisor)
    except (ValueError, msgspec.DecodeError):
        pass


def test_an_absurd_length_is_refused_before_it_is_stored():
    with pytest.raises(ValueError, match="at most"):
        FrameReader().feed((MAX_FRAME + 1).to_bytes(4, "little"))


def test_an_answer_to_a_request_that_was_given_up_is_skipped():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        first = Join(channel.next_id(), 1)
        with pytest.raises(TimeoutError):
            channel.request(first, first.id, timeout=0.01)
        second = Join(channel.next_id(), 1)
        theirs.sendall(pack_frame(Refused(first.id, -1, "late")))
        theirs.sendall(pack_frame(Refused(second.id, -1, "right")))
        assert channel.request(second, second.id, timeout=PATIENCE_S).message == "right"


def test_a_notice_does_not_wait_behind_a_request():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        ask = Join(channel.next_id(), 1)
        thread = threading.Thread(target=lambda: channel.request(ask, ask.id, timeout=PATIENCE_S))
        thread.start()
        reader = FrameReader()
        seen = []
        while len(seen) < 1:
            seen += reader.feed(theirs.recv(1 << 16))
        channel.notify(CellEnded("x", ok=True))
        while len(seen) < 2:
            seen += reader.feed(theirs.recv(1 << 16))
        theirs.sendall(pack_frame(Refused(ask.id, -1, "")))
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_one_reader_takes_orders_and_hands_answers_to_the_request_that_waits():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel, orders = Channel(ours), []
        assert channel.serve(orders.append) == ours.fileno()
        ask = Join(channel.next_id(), 1)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(channel.request, ask, ask.id, timeout=PATIENCE_S)
            stop = StopCell("cell", "stop", 0.5)
            inspect = Inspect(ask.id, "code", 0)  # an order's id is no request's
            right = Refused(ask.id, -1, "right")
            theirs.sendall(b"".join(map(pack_frame, (stop, inspect, right))))
            while len(orders) < 2:
                assert channel.read()
            assert answer.result(PATIENCE_S) == right
        assert orders == [stop, inspect]
        theirs.close()
        assert not channel.read()
        for _ in range(2):
            with pytest.raises(ChannelClosed):
                channel.request(Withdraw(9, 1), 9, timeout=PATIENCE_S)


def test_orders_that_come_before_they_are_taken_are_kept():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel, orders = Channel(ours), []
        theirs.sendall(pack_frame(EndRank()) + pack_frame(Refused(1, -1, "")))
        channel.request(Join(1, 1), 1, timeout=PATIENCE_S)
        channel.serve(orders.append)
        assert orders == [EndRank()]


def test_a_supervisor_that_is_gone_is_said():
    ours, theirs = socket.socketpair()
    with ours:
        channel = Channel(ours)
        theirs.close()
        with pytest.raises(ChannelClosed, match="supervisor of this host is gone"):
            channel.request(Join(1, 1), 1, timeout=PATIENCE_S)
