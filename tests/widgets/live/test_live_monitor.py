"""The monitor as the kernel sees it: what it draws, sends, keeps and answers."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import psutil
import pytest
from msgspec.structs import replace
from support.programs.restarting import wait_for
from support.promise import BOUND_S, PATIENCE_S
from support.ranks.made_up import MadeUp
from support.ranks.tracing import check_trace
from support.ranks.worlds import make_trace, make_world

from phalanx.errors import DistributedError
from phalanx.protocol import CellTime, HostClock, LateRank, RankSample, Samples, Span, Waiting
from phalanx.widgets import Monitor, Topology, monitor
from phalanx.widgets.frames.monitor import (
    KERNEL_BUSY,
    NOBODY_LOOKED,
    SUPERVISOR_BUSY,
    MonitorFrameBuilder,
)
from phalanx.widgets.frames.rates import Rates
from phalanx.widgets.live import monitor as _live_monitor
from phalanx.widgets.live.monitor import KEPT_NBYTES, _is_other_world
from phalanx.workspace import SampleView, Trace, Workspace

S = 1_000_000_000
_SVG = "{http://www.w3.org/2000/svg}"

# -- the still picture ------------------------------------------------------------------------------


def test_the_picture_says_who_came_last():
    picture = monitor(make_trace(4, late=2), make_world(1, 4))
    assert "rank 2 held the others up for 400 ms: last to 100 of 100 collectives" in picture.text
    assert "rank 0 held" not in picture.text
    texts = [text.text for text in ET.fromstring(picture.svg).iter(f"{_SVG}text")]
    assert {"rank 0", "rank 1", "rank 2", "rank 3", "all_sum", "barrier"} <= set(texts)


def test_nobody_is_named_for_what_the_clocks_may_be_wrong_by():
    trace = make_trace(4, late=2)  # by 4 ms
    trace.records["host"][trace.records["rank"] >= 2] = 1

    def text(unsure_ns):
        hosts = HostClock("a", 0, 0), HostClock("b", 9, unsure_ns)
        there = Trace(trace.records, hosts, trace.dropped, trace.now_ns)
        return monitor(there, make_world(2, 2)).text

    assert "rank 2 held the others up for 100 ms: last to 100 of 100" in text(3_000_000)
    unsure = text(5_000_000)
    assert "held the others up" not in unsure
    assert (
        "who came last to 100 of 100 collectives is within the uncertainty of the hosts' clocks (5 ms)"
        in unsure
    )


def test_what_is_not_there_any_more_or_not_yet_is_told_of():
    assert "28 older operations" in monitor(make_trace(4, dropped=7), make_world(1, 4)).text
    empty = make_trace(2).newest(0)
    assert "communicated nothing yet" in monitor(empty, make_world(1, 2)).text


def test_many_ranks_are_drawn_in_little_space():
    picture = monitor(make_trace(64, seconds=9.0), make_world(1, 64))
    assert len(picture.svg) < 400_000
    assert picture.text.count("\n") >= 64


# -- what is sent -----------------------------------------------------------------------------------


def _sample(
    number, *, at_s, moved=0, late=(), waits=(), cells=(), spans=(), missed=0, state="busy"
):
    ranks = tuple(
        RankSample(rank, 40 + rank, state, "", number, moved, int(at_s * S / 2), int(at_s * S / 4),
                   {1 - rank: (moved, 0)}, tuple(spans), missed)
        for rank in range(2)
    )  # fmt: skip
    return Samples(
        number, int(at_s * S), at_s, 1, ranks, tuple(cells), len(late), tuple(late), tuple(waits)
    )


def test_rates_and_shares_are_of_the_last_second():
    rates, moved, told = Rates(), 0, []
    assert rates.ranks() == ()
    for number in range(1, 25):  # four a second
        moved += 1000 if number <= 8 else 2000 if number <= 16 else 0
        rates.take([_sample(number, at_s=number / 4, moved=moved)])
        rank = rates.ranks()[0]
        told.append((rank.arena, rank.sent, *(link.rate for link in rates.links())))
        # One rank counts what it has sent, the other has counted nothing.
        assert [(its.source, its.target) for its in rates.links()] in ([], [(0, 1), (1, 0)])
    assert told[0] == (0, 0)  # of no time
    assert told[1] == told[7] == (4000.0,) * 4
    assert told[11] == told[15] == (8000.0,) * 4  # a second after the change
    assert told[19] == told[23] == (0, 0)
    assert (rank.share, rank.waiting) == (0.5, 0.25)


def test_a_frame_has_what_is_new():
    lanes = MonitorFrameBuilder(lambda ns: 7 if ns == 5 * S else 0)
    assert lanes.take(SampleView(())) is None
    span = Span(3, "all_sum", S, 0, 0, -1, 8, 4)
    over = Span(3, "all_sum", S, 2 * S, S, S // 2, 8, 4, group=2**63)
    cell = CellTime("c", 5 * S, (0, 1), {1: 6 * S})
    samples = (
        _sample(1, at_s=7, spans=[span], late=[LateRank(1, 2, 3_000_000, 2_000_000)], missed=2),
        _sample(2, at_s=7.2, spans=[over], late=[LateRank(1, 1, 5_000_000, 5_000_000)],
                cells=[cell], waits=[Waiting((0,), (1,), "all_sum #5", 7 * S)]),
    )  # fmt: skip
    frame = lanes.take(SampleView(samples, dropped=4, waiting=frozenset({1})))
    assert frame is not None
    assert [rank.state for rank in frame.ranks] == ["busy", "input"]
    # It ran at the first look; at the second one it is over: the page learns of its end only.
    assert frame.spans == ((0, over), (1, over))
    assert json.loads(msgspec.json.encode(frame))["spans"][1] == [1, [*msgspec.to_builtins(over)]]
    assert [(c.rank, c.begun, c.done, c.number) for c in frame.cells] == [
        (0, 5000.0, 0.0, 7),
        (1, 5000.0, 6000.0, 7),
    ]
    late = "rank 1 came last to 3 of 2 collectives: the others lost 8 ms, 5 ms at worst"
    assert frame.late == (late,)
    assert (frame.missed, frame.dropped) == (4, 4)
    assert frame.waits == (Waiting((0,), (1,), "all_sum #5", 7 * S),)
    assert lanes.number == 2


def test_who_came_last_is_named_and_that_the_clocks_do_not_tell():
    def said(*late, unsure=0):
        sample = replace(
            _sample(1, at_s=1.0), compared=80, late=late, unsure=unsure, unsure_ns=120_000
        )
        return MonitorFrameBuilder().take(SampleView((sample,))).late

    late = LateRank(0, 30, 5_000_000, 1_000_000), LateRank(1, 47, 2_120_000_000, 65_000_000)
    named = "rank 1 came last to 47 of 80 collectives: the others lost 2.12 s, 65 ms at worst"
    assert said(*late) == (named,)  # the other one came last by chance
    assert said(LateRank(1, 1, 900_000, 900_000)) == ()
    doubt = "who came last to 70 of 80 collectives is within the uncertainty of the hosts' clocks (120 µs)"
    assert said(*late, unsure=70) == (named, doubt)
    assert said(unsure=7) == ()


def test_a_time_that_nothing_is_known_of_is_told_with_the_reason(monkeypatch):
    now_s = [500.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], time=lambda: now_s[0])
    monkeypatch.setattr(_live_monitor, "time", clock)
    workspace = MadeUp(make_world(1, 2), make_trace(2))
    widget = Monitor(workspace)

    def look(*samples, at_s):
        now_s[0], workspace.new, before = at_s, samples, widget.frame
        widget.tick()
        return _frame(widget)["gaps"] if widget.frame != before else []

    # The root's clock is another one: 400 s behind.
    assert look(_sample(1, at_s=100), at_s=500.0) == []
    # Kept from looking for six seconds, but the samples of that time have come all the same.
    told = [_sample(n, at_s=100 + n / 4) for n in range(2, 25)]
    assert look(*told, at_s=506.1) == []
    assert look(at_s=515.0) == []  # a lease has run out meanwhile
    assert look(_sample(25, at_s=115.1), at_s=515.2) == [[106000.0, 115100.0, KERNEL_BUSY]]
    widget.begins()
    assert look(_sample(26, at_s=175.0), at_s=575.0) == [[115100.0, 175000.0, NOBODY_LOOKED]]
    for at_s in range(576, 590):
        look(at_s=float(at_s))
    assert look(_sample(27, at_s=190.0), at_s=590.0) == [[175000.0, 190000.0, SUPERVISOR_BUSY]]
    widget.close()


# -- a real one -------------------------------------------------------------------------------------


def _frame(widget) -> dict[str, Any]:
    return msgspec.json.decode(widget.frame)


def _tick_until(widget, condition, timeout_s=PATIENCE_S):
    def comes():
        widget.tick()
        return condition(_frame(widget))

    wait_for(comes, timeout_s)
    return _frame(widget)


@pytest.fixture(scope="module")
def shared():
    with Workspace.start(n=3, linger=0) as ws:
        widget = Monitor(ws)
        yield widget
        widget.close()


def test_what_a_new_one_shows(shared):
    assert (_frame(shared)["status"], _frame(shared)["ranks"]) == ("live", [])
    frame = _tick_until(shared, lambda frame: frame["ranks"])
    assert [rank["state"] for rank in frame["ranks"]] == ["idle"] * 3
    assert msgspec.json.decode(shared.world)["arenas"] == [[0, 1, 2]]


def test_the_straggler_is_named(shared, tmp_path):
    ws = shared.workspace
    # Rank 2 comes to each all_sum once the monitor has shown that the others wait for it there.
    code = (
        "import os, time\nfor i in range(4):\n"
        f"    while rank == 2 and not os.path.exists({str(tmp_path)!r} + f'/{{i}}'): time.sleep(0.01)\n"
        "    px.all_sum(rank)"
    )
    cell = threading.Thread(target=ws.run, args=(code,))
    cell.start()
    seen: list[str] = []

    def is_next(frame):
        return [its[1] for its in frame["waits"]] == [[2]] and frame["waits"][0][2] not in seen

    for i in range(4):
        seen.append(_tick_until(shared, is_next)["waits"][0][2])
        (tmp_path / str(i)).touch()
    assert all(operation.startswith("all_sum #") for operation in seen)
    said = "rank 2 came last to 4 of 4 collectives: the others lost "
    _tick_until(shared, lambda frame: frame["late"] and frame["late"][0].startswith(said))
    cell.join()
    assert "rank 2 held the others up for " in shared.still().text


def test_a_view_that_comes_later_has_what_was_and_can_save_it(shared):
    _tick_until(shared, lambda frame: frame["number"] > 3)
    frames = json.loads(shared.answer("history", {}))
    assert frames[-1] == _frame(shared)
    assert [its["number"] for its in frames] == sorted({its["number"] for its in frames})
    shared.workspace.run("px.all_sum(1)")
    said, _, saved = shared.answer("save", {}).partition("\n")
    assert re.match(r"trace\.json: \d+ operations of ranks 0-2, the last .*; open it at ", said)
    assert check_trace(saved.encode())
    with pytest.raises(ValueError, match="nothing is known"):
        shared.answer("rm", {})


def _n_steps(call):
    """Count the functions that a call enters and leaves: a cost that no other process changes."""
    n_steps = [0]

    def count(*_):
        n_steps[0] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return n_steps[0]


def test_what_is_saved_costs_what_it_holds_not_what_there_is(shared, monkeypatch):
    saved: list[str] = []

    def cost(n_there, n_saved):
        whole = make_trace(4, seconds=n_there / 200)  # 50 operations a second of each rank
        monkeypatch.setattr(shared.workspace, "trace", lambda: whole)
        monkeypatch.setattr("phalanx.widgets.live.monitor.MOST_SAVED", n_saved)
        return _n_steps(lambda: saved.append(shared.answer("save", {})))

    once = cost(4000, 1000)
    assert once < 60 * 1000  # 35 for each operation
    assert cost(16_000, 1000) < 1.1 * once
    assert cost(16_000, 4000) < 4.4 * once
    said, _, events = saved[-1].partition("\n")
    assert said.startswith("trace.json: 4000 operations of ranks 0-3 (12004 older ones ")
    assert said.endswith("; %distributed trace trace.json writes all 16004")
    spans = [its for its in json.loads(events)["traceEvents"] if its["ph"] == "X"]
    assert sum(its["cat"] != "wait" for its in spans) == 4000


def test_what_is_kept_is_bounded(shared):
    for _ in range(20):
        shared._keep(b"x" * (KEPT_NBYTES // 8))
    assert sum(map(len, shared._kept)) == shared._kept_nbytes <= KEPT_NBYTES
    while shared._kept:
        shared._kept_nbytes -= len(shared._kept.popleft())


def test_a_silent_supervisor_blocks_no_answer_and_no_other_workspace(shared, monkeypatch):
    is_asked, may_answer = threading.Event(), threading.Event()
    topology = Topology(shared.workspace)
    fetch_samples = shared.workspace.samples

    def samples(number):
        is_asked.set()
        assert may_answer.wait(PATIENCE_S)
        return fetch_samples(number)

    monkeypatch.setattr(shared.workspace, "samples", samples)
    for widget in (shared, topology):
        frame = shared.frame
        is_asked.clear()
        ticking = threading.Thread(target=widget.tick)
        ticking.start()
        try:
            assert is_asked.wait(PATIENCE_S)
            assert widget._looking.acquire(timeout=PATIENCE_S)
            widget._looking.release()
            shared.answer("history", {})
            assert shared.frame == frame
        finally:
            may_answer.set()
            ticking.join()
        may_answer.clear()
    monkeypatch.undo()
    # What comes for a workspace that is not shown any more is dropped.
    for widget in (shared, topology):
        ours, other = widget.workspace, SimpleNamespace()
        monkeypatch.setattr(widget, "_show", lambda _: pytest.fail("of another workspace"))

        def change(_number, widget=widget, other=other):
            widget._workspace = other
            return SampleView(())

        monkeypatch.setattr(ours, "samples", change)
        widget.tick()
        widget._workspace = ours
        monkeypatch.undo()
    topology.close()


@pytest.mark.promise
def test_a_dead_rank_is_named(shared):
    frame = _tick_until(shared, lambda frame: frame["ranks"])
    psutil.Process(frame["ranks"][1]["pid"]).kill()
    frame = _tick_until(shared, lambda frame: frame["ranks"][1]["state"] == "dead", BOUND_S)
    assert "SIGKILL" in frame["ranks"][1]["detail"]
    shared.workspace.restart(1)
    _tick_until(shared, lambda frame: frame["ranks"][1]["state"] == "idle")


def test_what_others_saw_in_a_pause_is_not_said_to_be_lost(shared, monkeypatch):
    frame = _tick_until(shared, lambda frame: frame["number"])
    samples = shared.workspace.samples(0).samples[-1:]

    def dropped(number):
        later = replace(samples[0], number=number)
        monkeypatch.setattr(shared.workspace, "samples", lambda _: SampleView((later,), dropped=3))
        shared.tick()
        return _frame(shared)["dropped"]

    before = frame["dropped"]
    assert dropped(frame["number"] + 100) == before + 3
    shared.begins()
    assert dropped(frame["number"] + 200) == before + 3


def test_a_lane_leads_to_the_notebooks_cell(shared):
    begun_ns = time.monotonic_ns()
    shared._on_cell_begins(None)
    during_ns = time.monotonic_ns()
    assert shared._number_of(during_ns) == -1
    shared._on_cell_ends(SimpleNamespace(execution_count=12))
    assert (shared._number_of(during_ns), shared._number_of(begun_ns)) == (12, 0)


def test_it_is_gone_with_its_workspace_and_comes_back_with_it():
    with Workspace.start(n=2, linger=30, name="monitor-a", detach=True) as ws:
        widget, topology = Monitor(ws), Topology(ws)
        _tick_until(widget, lambda frame: frame["ranks"])
        ws.detach()
        for one in (widget, topology):
            one.tick()
            frame = _frame(one)
            assert (frame["status"], len(frame["ranks"])) == ("gone", 2)
            assert "%distributed attach" in frame["why"]
    frame = _frame(widget)
    again = Workspace.attach("monitor-a", take=True)
    try:
        before = frame["number"]
        widget.workspace = again
        assert _frame(widget)["status"] == "live"
        _tick_until(widget, lambda frame: frame["number"] > before)
        topology.workspace = again
        assert _frame(topology)["status"] == "live"
    finally:
        again.stop()
    for one in (widget, topology):
        one.tick()
        assert _frame(one)["status"] == "gone"
    assert widget.still().text.startswith("monitor-a")  # as it was
    with pytest.raises(DistributedError, match="stopped"):
        Monitor(again)
    with pytest.raises(DistributedError, match="stopped"):
        Topology(again)
    widget.close()
    topology.close()


def test_other_ranks_of_the_same_name_begin_with_empty_lanes():
    def names(widget):
        return {its["number"] for its in json.loads(widget.answer("history", {}))}

    with Workspace.start(n=1, linger=0, name="monitor-b") as ws:
        ws.run("px.all_sum(1)")
        widget = Monitor(ws)
        _tick_until(widget, lambda frame: frame["ranks"])
        widget.workspace = ws  # the same ranks, as after an attach
        assert (_frame(widget)["world"], len(names(widget))) == (0, 1)
    with Workspace.start(n=2, linger=0, name="monitor-b") as other:
        widget.workspace = other
        frame = _frame(widget)
        assert (frame["world"], frame["ranks"], frame["status"]) == (1, [], "live")
        assert names(widget) == set()
        assert msgspec.json.decode(widget.world)["home"] == [0, 0]
        assert len(_tick_until(widget, lambda frame: frame["ranks"])["ranks"]) == 2
        assert all(its["world"] == 1 for its in json.loads(widget.answer("history", {})))
        before = other.topology()
    assert not _is_other_world(before, before)
    later = tuple(replace(its, pid=its.pid + 10_000) for its in before.ranks)
    assert _is_other_world(replace(before, ranks=later), before)
    assert not _is_other_world(replace(before, ranks=later, epoch=2), before)  # all were replaced
    widget.close()
