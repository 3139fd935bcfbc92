"""What all ranks did last, on one clock: of ranks that rest, run and are dead."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from support.ranks.cells import BackgroundCell, wait_in
from support.ranks.tracing import check_trace
from support.waiting import wait_until

from phalanx.distributed.recorder import RECORD
from phalanx.protocol import HostClock, TraceIs
from phalanx.workspace import say_trace
from phalanx.workspace.trace import merged


def events_of(trace):
    return check_trace(trace.to_json())


def test_the_ranks_records_are_merged_and_written(ws, tmp_path):
    ws.run("for length in (1, 100_000): px.all_sum(np.ones(length))")
    ws.run("if rank == 0: px.send(np.ones(3), 1)\nif rank == 1: px.recv((3,), float, 0)")
    path = tmp_path / "trace.json"
    trace = ws.trace(path)
    records = trace.records
    assert (np.diff(records.entered_ns) >= 0).all()
    assert trace.dropped == {0: 0, 1: 0, 2: 0}
    assert [(host.offset_ns, host.uncertainty_ns) for host in trace.hosts] == [(0, 0)]
    for seq in set(records.seq[records.op == "all_sum"]):
        of_one = records[(records.op == "all_sum") & (records.seq == seq)]
        assert sorted(of_one["rank"]) == [0, 1, 2]
        assert of_one.done_ns.min() >= of_one.entered_ns.max()
    assert f"x: {len(records)} operations of ranks 0-2, the last " in say_trace(trace, "x")

    written = json.loads(path.read_bytes())
    assert written == json.loads(trace.to_json())
    events = check_trace(path.read_bytes())
    spans = [event for event in events if event["ph"] == "X"]
    assert [e["name"] for e in spans if not e["name"].startswith("wait")] == records.op.tolist()
    assert {event["tid"] for event in spans} == {0, 1, 2}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {"rank 0", "rank 1", "rank 2"}
    (send,) = [event for event in spans if event["name"] == "send"]
    what = send["args"]
    assert (what["peer"], what["nbytes"], what["dtype"], send["cat"]) == (
        1,
        24,
        "float64",
        "message",
    )
    # An event lies in another or beside it, on each thread: or it would not be shown.
    for tid in range(3):
        own = sorted((e["ts"], -e["dur"], e["dur"]) for e in spans if e["tid"] == tid)
        ends = []
        for begin, _, nanoseconds in own:
            while ends and ends[-1] <= begin + 1e-6:
                ends.pop()
            assert not ends or begin + nanoseconds <= ends[-1] + 1e-6
            ends.append(begin + nanoseconds)


def test_a_rank_that_holds_the_interpreter_is_seen_as_well_as_who_waits_for_it(ws, gate):
    def running():
        trace = ws.trace()
        found = trace.records[trace.records.state == "running"]
        return (trace, found) if sorted(found["rank"]) == [0, 1] else None

    code = f"if rank == 2: {gate.wait_in_c('PyDLL')}\npx.all_max(1)"
    with BackgroundCell(ws, code) as cell:
        wait_in(ws, "all_max", 0, 1)
        trace, found = wait_until(running, "ranks 0 and 1 are seen in an operation")
        gate.open()
    assert cell.error is None
    assert set(found.op) == {"all_max"}
    waits = [event for event in events_of(trace) if event["name"] == "wait for the last rank"]
    assert {event["tid"] for event in waits} >= {0, 1}


def test_a_dead_rank_has_left_what_it_was_in(breakable):
    ws = breakable
    code = "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\npx.all_sum(1)"
    victim = ws.topology().ranks[1].pid
    ws.run("px.all_min(1)")
    with BackgroundCell(ws, code) as cell:
        wait_in(ws, "all_sum", 0, 2)
        os.kill(victim, signal.SIGKILL)
    assert "rank 1" in str(cell.error)
    records = ws.trace().records
    assert records.op[records["rank"] == 1].tolist()[-1] == "all_min"
    last = records[records["rank"] == 0][-1]
    assert (last.op, last.state, last.failure) == ("all_sum", "failed", "rank_failure")
    ws.restart(1)
    assert 1 not in ws.trace().records["rank"]


def packed(*rows):
    """Records as the engine packs them: all_sum number i, entered and ended."""
    words = [
        [number << 1, 1 << 40 | number + 1, 8, 0, entered, entered, ended, 2 | 13 << 16]
        for number, (entered, ended) in enumerate(rows)
    ]
    return np.array(words, "u8").tobytes()


def test_clocks_of_other_hosts_are_moved_and_their_uncertainty_is_told():
    hosts = HostClock("here", 0, 0), HostClock("there", -500, 70_000)
    answer = TraceIs(2000, hosts, (0, 1), (packed((100, 200)), packed((590, 690))), (0, 4))
    trace = merged(answer)
    assert trace.records["rank"].tolist() == [1, 0]
    assert trace.records.entered_ns.tolist() == [90, 100]
    assert trace.records.done_ns.tolist() == [190, 200]
    assert trace.records.dtype.names[:2] == ("rank", "host")
    assert trace.records.dtype.names[2:] == RECORD.names
    assert "(4 older ones were dropped)" in say_trace(trace, "x")
    assert "clocks within 70 us" in say_trace(trace, "x")
    # Where a viewer shows it: Perfetto reads neither ``process_labels`` nor ``otherData``.
    names = {e["pid"]: e["args"]["name"] for e in events_of(trace) if e["name"] == "process_name"}
    assert names == {0: "here", 1: "there (clock ±70 us, 4 older operations dropped)"}
    events = [event for event in events_of(trace) if event["ph"] == "X"]
    assert [(event["pid"], event["tid"], event["ts"]) for event in events] == [
        (1, 1, 0),
        (0, 0, 0.01),
    ]


def test_the_newest_are_kept_and_the_others_counted():
    here = (HostClock("here", 0, 0),)
    rows = packed((100, 400), (600, 700)), packed((200, 300), (500, 510))
    trace = merged(TraceIs(2000, here, (0, 0), rows, (3, 0)))
    assert trace.newest(4) is trace
    newest = trace.newest(1)
    assert newest.records.entered_ns.tolist() == [600]
    assert (newest.dropped, newest.seconds) == ({0: 4, 1: 2}, 1400 / 1e9)
    assert [event["ts"] for event in events_of(newest) if event["ph"] == "X"] == [0]


def test_what_overlaps_lies_on_threads_beside():
    here = (HostClock("here", 0, 0),)
    rows = packed((100, 400), (200, 300), (350, 500), (600, 700))
    events = events_of(merged(TraceIs(2000, here, (0,), (rows,), (0,))))
    assert [event["tid"] for event in events if event["ph"] == "X"] == [0, 1, 1, 0]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["rank 0", "rank 0, beside it 1"]


def test_before_the_first_operation_there_is_nothing_to_show():
    here = (HostClock("here", 0, 0),)
    trace = merged(TraceIs(2000, here, (0,), (b"",), (0,)))
    assert say_trace(trace, "x") == "x: the ranks have communicated nothing yet"
    assert [event for event in events_of(trace) if event["ph"] == "X"] == []


@pytest.mark.parametrize(
    "invalidate_output",
    [
        lambda event: event.update(ts=float("nan")),
        lambda event: event.update(dur=-1.0),
        lambda event: event.update(tid=7),
        lambda event: event.update(dur=0.25),
        lambda event: event["args"].update(group=1 << 60),
        lambda event: event.update(ph="B"),
    ],
)
def test_the_check_of_the_format_refuses_what_a_viewer_would_not_show(invalidate_output):
    here = (HostClock("here", 0, 0),)
    encoded = merged(TraceIs(2000, here, (0,), (packed((100, 300), (300, 500)),), (0,))).to_json()
    check_trace(encoded)
    found = json.loads(encoded)
    invalidate_output(next(event for event in found["traceEvents"] if event["ph"] == "X"))
    with pytest.raises((AssertionError, KeyError, ValueError)):
        check_trace(json.dumps(found).encode())
