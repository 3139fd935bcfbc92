"""Samples of a world of two hosts: all ranks are in them, on one clock, with the wires between."""

from __future__ import annotations

import signal

import pytest
from hosts_of_one_machine import Cell, host_of, start
from sampling import Reader

from phalanx.widgets import monitor
from phalanx.widgets._rates import Rates


@pytest.fixture(scope="module")
def ws():
    with start() as workspace:
        yield workspace


def test_ranks_of_the_other_host_are_sampled(ws):
    sample = Reader(ws).until(lambda its: its.ranks[3].pid)
    assert [its.detail for its in sample.ranks] == [""] * 4
    assert [its.state for its in sample.ranks] == ["idle"] * 4
    assert [its.pid for its in sample.ranks] == [its.pid for its in ws.topology().ranks]


def test_a_sleeper_on_the_other_host_is_named_meanwhile_and_afterwards(ws):
    reader = Reader(ws)
    reader.until(lambda its: its.ranks[3].pid)
    cell = Cell(ws, "import time\nif rank == 3: time.sleep(1)\npx.all_sum(np.ones(1000))")
    waits = reader.until(lambda its: [w.missing for w in its.waits] == [(3,)]).waits
    assert waits[0].ranks == (0, 1, 2)
    assert waits[0].what.startswith("all_sum #")
    sample = reader.until(lambda its: its.late)
    cell.end()
    (late,) = sample.late
    assert (sample.compared, late.rank, late.count) == (1, 3, 1)
    assert 0.5e9 < late.late_ns < 5e9
    assert "rank 3 held the others up for" in monitor(ws.trace(), ws.topology()).text
    # What rank 2 did there is told of in this machine's time, and by itself.
    spans = {
        span.number: span for its in reader.seen for span in its.ranks[2].spans if span.done_ns
    }
    (its,) = spans.values()
    assert its.op == "all_sum"
    assert its.wait_ns > 0.5e9
    assert reader.seen[0].now_ns < its.begun_ns < its.done_ns < reader.seen[-1].now_ns + 10**9


def test_bytes_between_hosts_are_counted_at_both_ends(ws):
    reader = Reader(ws)
    before = reader.until(lambda its: its.ranks[3].pid).ranks[3]
    ws.run("px.send(np.ones(1 << 17), 3) if rank == 0 else None\n"
           "got = px.recv((1 << 17,), np.float64, 0) if rank == 3 else None")  # fmt: skip

    def passed(its):
        return its.wires.get(0, (0, 0))[1] - before.wires.get(0, (0, 0))[1]

    after = reader.until(lambda its: passed(its.ranks[3]) >= 1 << 20)
    assert after.ranks[0].wires[3][0] == after.ranks[3].wires[0][1]
    # What the pictures make of it: a link's traffic.
    rates = Rates()
    rates.take(reader.seen)
    assert (0, 3) in {(link.source, link.target) for link in rates.links()}


def test_a_host_that_is_lost_shows_its_ranks_dead_and_why():
    with start() as own:
        reader = Reader(own)
        before = reader.until(lambda its: its.ranks[2].pid)
        host_of(own, 2).send_signal(signal.SIGKILL)
        dead = reader.until(lambda its: its.ranks[2].state == its.ranks[3].state == "dead")
        assert dead.ranks[2].detail.startswith("lost its host: ")
        assert dead.ranks[2].pid == before.ranks[2].pid
        assert dead.ranks[0].state == "idle"
