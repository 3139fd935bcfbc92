"""Cells that cannot go on: operations that never complete, cells that never began."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from support.inside import replace_step
from support.programs.restarting import Lines, kill
from support.promise import PATIENCE_S, within
from support.ranks.cells import BackgroundCell, wait_busy, wait_idle
from support.runs.tiers import deep, deep_but
from support.waiting import wait_until

from phalanx.errors import CellError, RankFailure
from phalanx.workspace import Workspace


@pytest.fixture(scope="module", params=deep_but(["any"], ["any", "tcp"]))
def ws(request):
    """Three ranks that the tests of this file share."""
    with Workspace.start(n=3, transport=request.param) as workspace:
        yield workspace


@pytest.mark.promise
@pytest.mark.parametrize(
    ("code", "ranks", "reason"),
    [
        (
            "if rank == 0: raise ValueError('mine')\npx.all_sum(1)",
            None,
            "ended its cell with an error",
        ),
        ("if rank: px.all_sum(1)", None, "ended its cell"),
        ("px.all_sum(1)", [1, 2], "is not asked to run this cell"),
    ],
)
def test_an_operation_that_can_never_complete_ends(ws, code, ranks, reason):
    with within(), pytest.raises(CellError) as caught:
        ws.run(code, ranks=ranks)
    for rank in (1, 2):
        ename, evalue, _ = caught.value.failures[rank]
        assert ename == "RankFailure"
        assert "rank 0" in evalue
        assert reason in evalue
        assert "all_sum #" in evalue
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


def test_a_rank_that_ended_after_its_part_harms_no_one(ws, gate):
    # Rank 0 ends with operations queued that the others come to later.
    code = (
        "x = np.full(1000, rank)\n"
        "if rank == 0:\n    works = [px.all_sum(x, async_op=True) for _ in range(20)]\n"
        f"else:\n    {gate.wait}\n    got = [int(px.all_sum(x)[0]) for _ in range(20)]"
    )
    with BackgroundCell(ws, code) as cell:
        wait_idle(ws, 0)
        assert not cell.is_over
        gate.open()
    assert cell.error is None
    ws.run("if rank == 0: got = [int(work.wait()[0]) for work in works]")
    assert [result.value for result in ws.run("got == [3] * 20")] == ["True"] * 3
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


@pytest.mark.parametrize(
    ("start", "wait"),
    [
        ("thread = threading.Thread(target=work); thread.start()", "thread.join()"),
        ("later = asyncio.get_running_loop().run_in_executor(None, work)", "await later"),
    ],
)
def test_threads_that_outlive_their_cell_are_waited_for(ws, gate, start, wait):
    code = (
        "import asyncio, threading\n"
        f"def work():\n    {gate.wait}\n    global got\n    got = px.all_sum(1)\n"
        f"if rank == 0: {start}\nelse: got = px.all_sum(1)\nawait asyncio.sleep(0)"
    )
    with BackgroundCell(ws, code) as cell:
        wait_idle(ws, 0)
        gate.open()
    assert cell.error is None
    assert [r.value for r in ws.run(f"if rank == 0: {wait}\ngot")] == ["3"] * 3


def test_a_thread_of_asyncio_that_has_no_work_is_not_waited_for(ws):
    ws.run("import asyncio\nawait asyncio.to_thread(int)")
    with pytest.raises(CellError) as caught:
        ws.run("if rank: px.all_sum(1)", timeout=PATIENCE_S)
    assert {ename for ename, _, _ in caught.value.failures.values()} == {"RankFailure"}


FAIL_TO_ENTER = """
import time
from phalanx.rank.shell import OwnNames
if rank == 1:
    def fail(names, enter=OwnNames.enter):
        OwnNames.enter = enter
        {how}
    OwnNames.enter = fail
px.all_sum(np.ones(1 + rank))
"""  # the last line has the next cell join anew


def fail_to_enter(ws, how):
    with pytest.raises(CellError):
        ws.run(FAIL_TO_ENTER.format(how=how))


def test_a_cell_that_could_not_begin_does_not_hold_the_next_one(ws):
    fail_to_enter(ws, "raise RuntimeError('no joining today')")
    with within(PATIENCE_S), pytest.raises(CellError) as caught:
        ws.run("began = True")
    assert caught.value.failures[1][:2] == ("RuntimeError", "no joining today")
    assert [r.value for r in ws.run("'began' in globals(), px.all_sum(1)")] == ["(False, 3)"] * 3


def test_a_stop_while_ranks_join_frees_them(ws, tmp_path):
    mark = tmp_path / "joins"
    fail_to_enter(ws, f"open({str(mark)!r}, 'w').close(); time.sleep(60)")

    def stop():
        wait_until(mark.exists, "rank 1 joins")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with within(PATIENCE_S), pytest.raises(KeyboardInterrupt):
        ws.run("began = True")
    thread.join()
    assert [r.value for r in ws.run("'began' in globals(), px.all_sum(1)")] == ["(False, 3)"] * 3


def test_a_stop_before_the_cell_is_sent_stops_it(ws, monkeypatch):
    def stopped_after(announce):
        def stopped(*arguments, **options):
            here = announce(*arguments, **options)
            os.kill(os.getpid(), signal.SIGINT)
            return here

        return stopped

    with monkeypatch.context() as patched:
        replace_step(patched, ws, "announce", stopped_after)
        with pytest.raises(KeyboardInterrupt):
            ws.run("import time; time.sleep(60)")
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


UNSEEN = """
import signal, time
_real = signal.pthread_kill
signal.pthread_kill = lambda thread, number: (
    signal.raise_signal(number) if number == signal.SIGINT else _real(thread, number)
)
"""


def stop_when(ws, wait):
    """Stop the cell that runs, from another thread, as soon as ``wait`` returns."""

    def stop():
        wait()
        ws.interrupt()

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


@pytest.mark.promise
def test_a_stop_just_before_a_wait_ends_it(ws):
    ws.run(UNSEEN)  # noted by the interpreter, but not by the thread that is about to wait
    thread = stop_when(ws, lambda: wait_busy(ws))
    with within(), pytest.raises(CellError, match="KeyboardInterrupt"):
        ws.run("time.sleep(60)")
    thread.join()
    ws.run("signal.pthread_kill = _real")


@pytest.mark.promise
def test_a_stop_that_a_callback_of_ipython_swallows_stops_the_cell(ws, tmp_path):
    ws.run(
        f"import pathlib, time\nmark = pathlib.Path({str(tmp_path)!r}, str(rank))\n"
        "def slow(info):\n"
        "    if not mark.exists():\n        mark.touch()\n        time.sleep(60)\n"
        "get_ipython().events.register('pre_run_cell', slow)"
    )
    marks = {tmp_path / str(rank) for rank in range(3)}
    are_in = "all ranks are in the callback"
    thread = stop_when(ws, lambda: wait_until(lambda: set(tmp_path.iterdir()) == marks, are_in))
    with within(), pytest.raises(CellError, match="KeyboardInterrupt"):
        ws.run("time.sleep(60)")
    thread.join()
    ws.run("get_ipython().events.unregister('pre_run_cell', slow)")


def test_a_cell_for_dead_ranks_only_does_not_hold_the_next_one(breakable):
    ws = breakable
    pid = ws.topology().ranks[1].pid
    with pytest.raises(RankFailure):
        ws.run(f"import os, signal; os.kill({pid}, signal.SIGKILL)", ranks=[1])
    for _ in range(2):
        with pytest.raises(RankFailure, match="rank 1"):
            ws.run("1", ranks=[1])
    assert [result.value for result in ws.run("rank")] == ["0", "2"]


def test_of_several_dead_the_one_that_was_asked_is_named(breakable):
    kill(breakable, 1, 2)
    for rank in (1, 2):
        with pytest.raises(RankFailure, match=f"rank {rank} on .*SIGKILL"):
            breakable.run("1", ranks=[rank])


LATE_STOP = """
import signal, sys
def stop_late(frame, what, _):  # when IPython has shown the error, before the cell's end is told
    if what == "return" and frame.f_code.co_name == "wrapped":
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
sys.setprofile(stop_late)
raise ValueError("its own")
"""


def test_a_stop_that_comes_when_a_cell_has_failed_is_too_late(ws):
    view = Lines()
    with pytest.raises(ValueError, match="its own"):
        ws.run(LATE_STOP, view=view)
    assert (view.texts, view.shown) == ([], [])


# Who is stopped while it shows that another was, is a matter of luck.
@pytest.mark.slow
@pytest.mark.parametrize("n_times", [2, pytest.param(8, marks=deep)])
def test_a_time_limit_in_an_operation_shows_nothing_but_its_error(ws, n_times):
    view = Lines()
    code = "import time\nif rank: px.all_sum(1)\nelse: time.sleep(60)"
    for _ in range(n_times):
        with pytest.raises(TimeoutError):
            ws.run(code, timeout=0.3, view=view)
    texts = [text for text in view.texts if "variables may differ" not in text]
    assert (texts, view.shown) == ([], [])


FILL = """
import resource
if rank == 1:
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), resource.RLIM_INFINITY))
    held = []
    while True: held.append(bytearray(100))
"""
FREE = """
if rank == 1:
    held = None
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
px.all_sum(1)
"""


def test_a_cell_that_leaves_no_memory_ends_with_its_error(own):
    with pytest.raises(MemoryError):
        own.run(FILL, timeout=PATIENCE_S)
    assert [result.value for result in own.run(FREE, timeout=PATIENCE_S)] == ["2", "2"]
