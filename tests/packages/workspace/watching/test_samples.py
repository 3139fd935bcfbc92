"""Samples of real ranks: of those that work, sleep, hold the interpreter or are frozen."""

from __future__ import annotations

import os
import signal

import pytest
from support.ranks.cells import BackgroundCell
from support.ranks.sampling import Reader
from support.runs.tiers import deep

from phalanx.protocol import Samples, WatchSamples
from phalanx.workspace import Workspace
from phalanx.workspace.connection.root_client import SampleLog


@pytest.fixture(scope="module")
def ws():
    # A rank that is frozen is to be sampled, not missed.
    with Workspace.start(n=3, linger=0, silence=60) as workspace:
        yield workspace


MISSED = [((0, 2), (1,))]  # ranks 0 and 2 wait for rank 1


def _missing(sample):
    return [wait.missing for wait in sample.waits]


def test_nobody_watches_nothing_comes(ws):
    assert ws.samples().samples == ()
    reader = Reader(ws)
    first = reader.until(lambda _: True)
    assert [its.state for its in first.ranks] == ["idle"] * 3
    assert first.waits == ()


def test_a_rank_that_sleeps_is_named_while_it_does_and_afterwards(ws, gate):
    reader = Reader(ws)
    begin_ns = reader.until(lambda _: True).now_ns
    code = f"if rank == 1: {gate.wait}\npx.all_sum(np.ones(1000))"
    with BackgroundCell(ws, code):
        is_missed = reader.until(lambda its: [(w.ranks, w.missing) for w in its.waits] == MISSED)
        # So long at least is rank 1 late.
        waited_ns = (
            reader.until(lambda its: its.now_ns > is_missed.now_ns + 5e8).now_ns - is_missed.now_ns
        )
        gate.open()
        late = reader.until(lambda its: its.late)
    assert is_missed.waits[0].what.startswith("all_sum #")
    assert late.compared == 1
    assert (late.late[0].rank, late.late[0].count) == (1, 1)
    assert waited_ns < late.late[0].late_ns < late.now_ns - begin_ns
    # The cell has its times on each rank. (Those of operations: connection/test_hosts.py.)
    ended = reader.until(lambda its: any(len(cell.ended_ns) == 3 for cell in its.cells))
    assert ended.cells[-1].begun_ns < min(ended.cells[-1].ended_ns.values())


def test_bytes_are_counted_and_quick_operations_come_in_few_spans(ws):
    reader = Reader(ws)
    before = reader.until(lambda _: True).ranks[0]
    ws.run("for _ in range(2000): px.all_sum(np.ones(100))")
    after = reader.until(lambda its: its.ranks[0].operations >= before.operations + 2000).ranks[0]
    assert after.arena_nbytes - before.arena_nbytes == 2000 * 800
    assert after.inside_ns > before.inside_ns
    reader.until(lambda _: True)
    # What came is all there, or counted.
    spans = [span for its in reader.seen for span in its.ranks[0].spans if span.done_ns]
    counted = sum(span.count for span in spans) + sum(its.ranks[0].missed for its in reader.seen)
    assert counted >= 2000
    assert all(len(its.ranks[0].spans) <= 70 for its in reader.seen)


def test_a_rank_that_holds_the_interpreter_is_sampled_too(ws, gate):
    reader = Reader(ws)
    reader.until(lambda _: True)
    code = f"if rank == 2: {gate.wait_in_c('PyDLL')}\npx.all_max(rank)"
    with BackgroundCell(ws, code) as cell:
        reader.until(lambda its: _missing(its) == [(2,)])
        gate.open()
    assert cell.error is None


def test_a_frozen_rank_is_sampled_and_a_dead_one_says_why(breakable):
    ws = breakable
    reader = Reader(ws)
    pid = reader.until(lambda _: True).ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    with BackgroundCell(ws, "px.all_sum(rank)") as cell:
        reader.until(lambda its: _missing(its) == [(1,)])
        os.kill(pid, signal.SIGKILL)
        dead = reader.until(lambda its: its.ranks[1].state == "dead")
    assert "SIGKILL" in dead.ranks[1].detail
    assert "SIGKILL" in str(cell.error)


@deep  # test_hosts.py counts the bytes between hosts in the first tier
def test_wires_are_counted():
    with Workspace.start(n=2, linger=0, transport="tcp") as own:
        reader = Reader(own)
        reader.until(lambda _: True)
        own.run("px.all_sum(np.ones(1 << 16))")
        sample = reader.until(lambda its: its.ranks[0].wires.get(1, (0, 0))[0] > 1 << 18)
        assert sample.ranks[0].arena_nbytes == 0


# -- the client's log -------------------------------------------------------------------------------


def _samples(number):
    return Samples(number, 0, 0.0, 1, (), (), 0, (), ())


def test_the_wish_is_said_again_but_not_each_time():
    now_s, sent = [0.0], []
    log = SampleLog(sent.append, clock=lambda: now_s[0])
    for now_s[0] in (0.0, 0.2, 0.9, 1.1, 1.2):
        log.read(0)
    assert len(sent) == 2  # nothing has come: it is said again
    log.take(_samples(1))
    for now_s[0] in (2.5, 4.0):
        log.read(0)
    assert len(sent) == 2
    now_s[0] = 4.2
    log.read(0)
    assert len(sent) == 3
    assert all(isinstance(wish, WatchSamples) and wish.seconds > 1.1 for wish in sent)


def test_what_is_not_kept_any_more_is_counted():
    log = SampleLog(lambda _: None, kept=3)
    for number in range(1, 8):
        log.take(_samples(number))
    view = log.read(2)
    assert ([its.number for its in view.samples], view.dropped) == ([5, 6, 7], 2)
    assert log.read(7).samples == ()
    assert log.read(0).dropped == 0  # who has just come has lost nothing
