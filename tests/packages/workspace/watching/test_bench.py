"""A sweep as a stream: points as they come, how far it is, stopped anywhere, refused or waiting."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from support.inside import is_running
from support.promise import PATIENCE_S
from support.ranks.cells import BackgroundCell, wait_busy, wait_in
from support.ranks.worlds import make_world
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError, RankFailure
from phalanx.workspace import Workspace
from phalanx.workspace import bench as bench_module
from phalanx.workspace.cells.cell import Cell, CellRuns, ExecutionSlot

# A sweep of these is over long after every stop: small sizes take a tenth of a second each, the
# large ones minutes.
N_MANY, LARGEST = 20_000, 64 << 20


@pytest.fixture(scope="module")
def ws():
    with Workspace.start(n=2, linger=0.0) as workspace:
        yield workspace


def still_runs(ws):
    """The ranks answer, and meet each other."""
    assert [r.value for r in ws.run("px.all_sum(rank)")] == ["1"] * 2


def test_points_come_one_by_one_with_progress(ws):
    sweep = ws.bench(begin=8, end=32768, factor=8, iterations=3)
    before = sweep.progress
    assert (before.state, before.n_done, before.n_points) == ("waiting", 0, 5)
    assert before.left_s is None
    seen = []
    for m in sweep:
        now = sweep.progress
        assert sweep.points[-1] is m
        seen.append((now.state, now.n_done, m.nbytes))
        assert now.nbytes == ([64, 512, 4096, 32768, 0])[now.n_done - 1]
        assert now.left_s >= 0
    assert seen == [("measuring", i + 1, 8**i * 8) for i in range(5)]
    assert all(m.n_wrong == 0 and m.ranks == 2 for m in sweep.points)
    assert all(m.algorithm and " or " not in m.algorithm for m in sweep.points)
    assert sweep.progress.state == "done"
    assert sweep.progress.text.startswith("done after 5 of 5 sizes, ")
    assert [limit.transport for limit in sweep.limits] == ["arena"]
    assert ws.sweeps[-1].points == sweep.points
    with pytest.raises(DistributedError, match="has been run"):
        list(sweep)


class Pressed:
    """Presses Ctrl-C in its finalizer, where Python drops a KeyboardInterrupt."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_finalizer_stops_it(ws):
    sweep = ws.bench(begin=8, end=LARGEST, iterations=N_MANY)

    @sweep.ends_at_ctrl_c()
    def measure():
        for _ in sweep:
            if len(sweep.points) == 1:
                Pressed()

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert sweep.progress.state == "stopped"
    still_runs(ws)


def test_ctrl_c_after_the_last_size_is_not_lost(ws):
    sweep = ws.bench(begin=8, end=8, iterations=1)

    @sweep.ends_at_ctrl_c()
    def measure():
        assert len(list(sweep)) == 1
        Pressed()

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert sweep.progress.state == "done"


def test_a_second_ctrl_c_raises_at_once(ws):
    sweep = ws.bench(begin=8, end=8, iterations=1)
    with sweep.ends_at_ctrl_c():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            list(sweep)


def test_a_name_that_a_cell_has_bound_does_not_disturb_it(ws):
    ws.run("__import__ = phalanx = msgspec = display = None")
    try:
        assert [m.n_wrong for m in ws.bench(begin=8, end=8, iterations=1)] == [0]
        assert [(link.a, link.b) for link in ws.measure_links()] == [(0, 1)]
    finally:
        ws.run("del __import__, phalanx, msgspec, display")


def test_it_is_stopped_in_the_middle_of_a_size(ws):
    kept = len(ws.sweeps)
    # So many calls that each size would take its budget of 5 s; each long enough to be seen in it.
    sweep = ws.bench(begin=8 << 20, end=32 << 20, factor=2, iterations=10_000_000)
    points = iter(sweep)

    def stop():
        wait_in(ws, "all_sum", 0)
        sweep.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert list(points) == []  # the first takes 5 s
    stopping.join()
    assert sweep.progress.state == "stopped"
    assert sweep.progress.elapsed_s < 30
    assert len(ws.sweeps) == kept
    still_runs(ws)


@pytest.mark.parametrize("leaves", [False, True])
def test_it_is_stopped_between_sizes_or_left_and_keeps_what_it_has(ws, leaves):
    sweep = ws.bench(begin=8, end=LARGEST, factor=2, iterations=N_MANY)
    for m in sweep:
        if m.nbytes == 32:
            if leaves:
                break
            sweep.stop()
    assert sweep.progress.state == "stopped"
    assert 3 <= len(sweep.points) < len(sweep.sizes)
    assert ws.sweeps[-1].state == "stopped"
    assert ws.sweeps[-1].points == sweep.points
    still_runs(ws)


def test_stopped_before_it_begins(ws):
    sweep = ws.bench(end=8)
    sweep.stop()
    assert list(sweep) == []
    assert sweep.progress.state == "stopped"
    still_runs(ws)


def test_one_that_was_over_stops_nothing_else(ws, gate):
    sweep = ws.bench(end=8, iterations=1)
    assert len(list(sweep)) == 1
    with BackgroundCell(ws, f"{gate.wait}; done = 1") as cell:
        wait_busy(ws)
        sweep.stop()
        gate.open()
    assert cell.error is None
    assert [r.value for r in ws.run("done")] == ["1", "1"]
    assert sweep.progress.state == "done"


def test_while_a_cell_runs_it_is_refused_or_waits_and_is_stopped_while_it_waits(ws):
    ws.run("import time")
    code = "\n# forever\nwhile True: time.sleep(0.01)"
    with BackgroundCell(ws, code, ranks=[1]) as running:
        wait_busy(ws, 1)
        with pytest.raises(
            DistributedError, match=r"^a cell runs already on rank 1.*: `# forever`; wait for it"
        ):
            list(ws.bench(end=8))
        for is_stopped in (True, False):
            sweep, found = ws.bench(end=8, iterations=1, wait=True), []
            measuring = threading.Thread(target=lambda to=found, of=sweep: to.extend(of))
            measuring.start()
            wait_until(lambda of=sweep: of._thread is not None, "the sweep waits")
            assert sweep.progress.text == "waiting for the ranks"
            assert is_running(ws)
            sweep.stop() if is_stopped else ws.interrupt()
            measuring.join(PATIENCE_S)
            assert [m.nbytes for m in found] == ([] if is_stopped else [8])
            assert sweep.progress.state == ("stopped" if is_stopped else "done")
    assert isinstance(running.error, CellError)


def test_a_cell_that_comes_meanwhile_hears_of_the_sweep(ws):
    sweep = ws.bench(begin=8, end=1 << 26, iterations=100)
    measurements = iter(sweep)
    next(measurements)
    with pytest.raises(
        DistributedError, match="^a bandwidth sweep of all_sum runs already on ranks 0-1"
    ):
        ws.run("1")
    sweep.stop()
    assert len(list(measurements)) < 23  # the sweep was under way


def test_ranks_of_other_hosts_need_no_memory_of_this_one(monkeypatch):
    monkeypatch.setattr(bench_module, "available_memory", lambda: 4 << 30)
    bench = bench_module.BandwidthBench(64, lambda: None, lambda: make_world(8, 8))
    sweep = bench.sweep(
        "all_sum", begin=8, end=64 << 20, factor=4, dtype="float32", iterations=20, wait=False
    )
    assert sweep.sizes[-1] == 32 << 20


def test_what_the_ranks_refuse_is_told_as_one_line(ws, monkeypatch):
    monkeypatch.setattr(bench_module, "available_memory", lambda: 1 << 60)
    sweep = ws.bench(begin=1 << 50, end=1 << 50)
    with pytest.raises(
        ValueError, match=r"^1 PiB on 2 ranks needs 3 PiB of memory per rank.* free"
    ):
        list(sweep)
    assert sweep.progress.state == "failed"
    still_runs(ws)


def test_a_rank_that_dies_is_named(breakable):
    sweep = breakable.bench(begin=8, end=8 << 20, factor=2, iterations=100_000)
    pid = breakable.topology().ranks[1].pid
    points = iter(sweep)
    next(points)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RankFailure, match="killed by signal 9"):
        list(points)
    assert sweep.progress.state == "failed"
    assert breakable.sweeps[-1].state == "failed"


def test_turns():
    turns = ExecutionSlot()
    with turns.take(Cell("a", (0, 1), "\n  x = 1  \ny")):
        assert turns.is_taken
        with (
            pytest.raises(CellRuns, match=r"^a cell runs already on ranks 0-1: `x = 1`; wait"),
            turns.take(Cell("b", (0,))),
        ):
            pass
    assert not turns.is_taken
    assert turns.cell is None
    assert "`" + "y" * 59 + "…`" in Cell("b", (0,), "y" * 80).text
