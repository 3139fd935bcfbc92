"""Cells that cannot go on: frozen ranks, operations that never complete, cells that never began."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from restarting import Notices

from phalanx.errors import CellError, DistributedError, RankFailure
from phalanx.workspace import Workspace

BOUND_S = 2.0  # design.md section 5: on one machine


@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_a_frozen_rank_is_named_after_the_silence_limit(transport):
    with Workspace.start(n=3, silence=0.5, transport=transport) as ws:
        (pid,) = (int(result.value) for result in ws.run("import os; os.getpid()", ranks=[1]))
        os.kill(pid, signal.SIGSTOP)
        thaw = threading.Timer(2.0, os.kill, (pid, signal.SIGCONT))
        thaw.start()
        with pytest.raises(CellError) as caught:
            ws.run(
                "import time; begin = time.time()\ntry: px.all_sum(1)\n"
                "finally: took = time.time() - begin"
            )
        thaw.join()
        for rank in (0, 2):
            ename, evalue, _ = caught.value.failures[rank]
            assert ename == "RankFailure"
            assert "rank 1" in evalue
            assert "frozen" in evalue
        assert max(ws.pull("took", ranks=[0, 2])) < 0.5 + 0.5
        assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


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
    begin_s = time.monotonic()
    with pytest.raises(CellError) as caught:
        ws.run(code, ranks=ranks)
    assert time.monotonic() - begin_s < BOUND_S
    for rank in (1, 2):
        ename, evalue, _ = caught.value.failures[rank]
        assert ename == "RankFailure"
        assert "rank 0" in evalue
        assert reason in evalue
        assert "all_sum #" in evalue
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


def test_a_rank_that_ended_after_its_part_harms_no_one(ws):
    code = "for _ in range(200): px.all_sum(np.ones(100_000))\nif rank == 0: px.all_sum"
    ws.run(code)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


def test_threads_that_outlive_their_cell_are_waited_for(ws):
    ws.run(
        "import threading, time\n"
        "def work():\n    time.sleep(0.4)\n    global got\n    got = px.all_sum(1)\n"
        "if rank == 0:\n    thread = threading.Thread(target=work)\n    thread.start()\n"
        "else:\n    got = px.all_sum(1)"
    )
    assert [r.value for r in ws.run("if rank == 0: thread.join()\ngot")] == ["3"] * 3


def test_a_cell_that_could_not_begin_does_not_hold_the_next_one(own, monkeypatch):
    with pytest.raises(CellError):
        own.run("px.all_sum(np.ones(1 + rank))")  # the next cell has to join anew
    enter = own._runner._enter

    def fail():
        msg = "no joining today"
        raise DistributedError(msg)

    monkeypatch.setattr(own._runner, "_enter", fail)
    with pytest.raises(DistributedError, match="no joining today"):
        own.run("1")
    monkeypatch.setattr(own._runner, "_enter", enter)
    assert [result.value for result in own.run("rank")] == ["0", "1"]


def test_a_stop_before_the_cell_is_sent_stops_it(own, monkeypatch):
    announce = own._runner._announce

    def stopped(*arguments, **options):
        here = announce(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return here

    monkeypatch.setattr(own._runner, "_announce", stopped)
    with pytest.raises(KeyboardInterrupt):
        own.run("import time; time.sleep(60)")
    monkeypatch.setattr(own._runner, "_announce", announce)
    assert [result.value for result in own.run("px.all_sum(1)")] == ["2", "2"]


UNSEEN = """
import signal, time
_real = signal.pthread_kill
signal.pthread_kill = lambda thread, number: (
    signal.raise_signal(number) if number == signal.SIGINT else _real(thread, number)
)
"""


def stop_when_busy(ws):
    """Stop the cell that runs, from another thread, once every rank is in it."""

    def stop():
        while {rank.state for rank in ws.topology().ranks} != {"busy"}:
            pass
        ws.interrupt()

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


def test_a_stop_just_before_a_wait_ends_it(own):
    own.run(UNSEEN)  # noted by the interpreter, but not by the thread that is about to wait
    thread = stop_when_busy(own)
    begin_s = time.monotonic()
    with pytest.raises(CellError, match="KeyboardInterrupt"):
        own.run("time.sleep(60)")
    assert time.monotonic() - begin_s < BOUND_S
    thread.join()


def test_a_stop_that_a_callback_of_ipython_swallows_stops_the_cell(own):
    own.run(
        "import time\n"
        "def slow(info): time.sleep(60)\n"
        "get_ipython().events.register('pre_run_cell', slow)"
    )
    thread = stop_when_busy(own)
    begin_s = time.monotonic()
    with pytest.raises(CellError, match="KeyboardInterrupt"):
        own.run("time.sleep(60)")
    assert time.monotonic() - begin_s < BOUND_S
    thread.join()


def test_a_cell_for_dead_ranks_only_does_not_hold_the_next_one(own):
    (pid,) = (int(result.value) for result in own.run("import os; os.getpid()", ranks=[1]))
    with pytest.raises(RankFailure):
        own.run(f"import os, signal; os.kill({pid}, signal.SIGKILL)", ranks=[1])
    for _ in range(2):
        with pytest.raises(RankFailure, match="rank 1"):
            own.run("1", ranks=[1])
    assert [result.value for result in own.run("rank")] == ["0"]


def test_of_several_dead_the_one_that_was_asked_is_named():
    with Workspace.start(n=3) as ws:
        pids = [int(result.value) for result in ws.run("import os; os.getpid()")]
        for pid in pids[1:]:
            os.kill(pid, signal.SIGKILL)
        while sum(rank.state == "dead" for rank in ws.topology().ranks) < 2:
            time.sleep(0.01)
        for rank in (1, 2):
            with pytest.raises(RankFailure, match=f"rank {rank} on .*SIGKILL"):
                ws.run("1", ranks=[rank])


@pytest.mark.slow
def test_a_time_limit_in_an_operation_shows_nothing_but_its_error(own):
    class View(Notices):
        def lines(self, stream, lines):
            self.texts += [line for _, line in lines]

    view = View()
    for _ in range(8):  # who is stopped while it shows that another was, is a matter of luck
        with pytest.raises(TimeoutError):
            own.run(
                "import time\nif rank: px.all_sum(1)\nelse: time.sleep(60)", timeout=0.2, view=view
            )
    assert view.texts == []
