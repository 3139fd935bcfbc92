"""Ranks that are replaced: the new ones take part, the others keep all they have."""

from __future__ import annotations

import signal
import threading

import psutil
import pytest
from support.inside import n_unanswered
from support.programs.processes import wait_gone
from support.programs.restarting import Notices, assert_sound, kill, pids, values
from support.promise import PATIENCE_S
from support.ranks.cells import BackgroundCell, wait_busy, wait_in
from support.runs.tiers import deep_but
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError, RankFailure
from phalanx.workspace import View, Workspace


@pytest.fixture(scope="module", params=deep_but(["any"], ["any", "tcp"]))
def ws(request):
    """Four ranks that the tests of this file share and break."""
    with Workspace.start(n=4, transport=request.param) as workspace:
        yield workspace


@pytest.fixture
def notices(ws):
    view = Notices()
    ws.make_view = lambda: view
    yield view.texts
    ws.make_view = View


@pytest.mark.parametrize("rank", [0, 3])
def test_a_dead_rank_is_replaced_and_the_others_keep_all_they_have(ws, tmp_path, rank):
    others = [r for r in range(4) if r != rank]
    ws.push({"folder": str(tmp_path)})
    ws.run(
        "import threading, os\nkept = [rank]\nfile = open(f'{folder}/{rank}', 'w')\n"
        "stop = threading.Event()\nthread = threading.Thread(target=stop.wait, daemon=True)\n"
        "thread.start()"
    )
    before = pids(ws)
    kill(ws, rank)
    assert ws.restart() == (rank,)
    after = pids(ws)
    assert [after[r] for r in others] == [before[r] for r in others]
    assert after[rank] != before[rank]
    assert values(ws, "(kept, thread.is_alive(), file.write('x'))", ranks=others) == [
        f"([{r}], True, 1)" for r in others
    ]
    ws.run("stop.set(); file.close()", ranks=others)
    assert values(ws, "(rank, size, world.rank(), 'kept' in globals())", ranks=[rank]) == [
        f"({rank}, 4, {rank}, False)"
    ]
    assert_sound(ws)


@pytest.mark.slow
def test_several_at_once_and_the_same_rank_twice(ws):
    for ranks in ((1, 2), (2,), (0, 1, 2, 3)):
        kill(ws, *ranks)
        assert ws.restart() == ranks
        assert_sound(ws)


def test_one_of_two_dead_ranks_is_named_and_takes_cells_before_the_world_stands(ws):
    kill(ws, 1, 2)
    assert ws.restart(1) == (1,)
    assert values(ws, "(rank, size)", ranks=[1]) == ["(1, 4)"]
    with pytest.raises(CellError, match="rank 2"):
        ws.run("px.all_sum(1)", ranks=[0, 1, 3])
    assert ws.restart() == (2,)
    assert_sound(ws)


def test_a_new_rank_that_dies_while_it_starts_is_named_and_may_be_tried_again(ws):
    old = pids(ws)[1]
    problems = []

    def restart():
        with pytest.raises(DistributedError) as caught:
            ws.restart(1, force=True)
        problems.append(str(caught.value))

    thread = threading.Thread(target=restart)
    thread.start()
    wait_until(lambda: pids(ws)[1] != old, "the new rank is there")
    psutil.Process(pids(ws)[1]).kill()
    thread.join(PATIENCE_S)
    assert problems == ["not replaced: rank 1 killed by signal 9 (SIGKILL) while starting"]
    assert ws.topology().ranks[1].state == "dead"
    assert values(ws, "rank") == ["0", "2", "3"]
    assert ws.restart() == (1,)
    assert_sound(ws)


# A thread that might answer the others keeps the wait from being one for each other.
RECV = (
    "import threading, time\n"
    "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    "    px.recv((1,), np.int8, 0)"
)


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", RECV], ids=["sleep", "recv"])
def test_a_live_rank_in_the_midst_of_a_cell_is_replaced_by_force(ws, notices, code):
    with BackgroundCell(ws, f"if rank == 2:\n    {code}\nelse:\n    px.all_sum(1)") as cell:
        wait_in(ws, "all_sum", 0, 1, 3)
        assert ws.restart(2, force=True) == (2,)
    assert isinstance(cell.error, RankFailure)
    assert (cell.error.rank, cell.error.reason) == (2, "is being restarted")
    assert "rank 2 is being restarted" in notices
    assert_sound(ws)


def test_ranks_that_are_frozen_or_hold_the_gil_are_replaced_by_force_with_all_they_started(ws):
    (child,) = values(ws, "import subprocess; subprocess.Popen(['sleep', '600']).pid", ranks=[3])
    frozen, process = psutil.Process(pids(ws)[1]), psutil.Process(int(child))
    holds_gil = "import ctypes; ctypes.PyDLL(None).sleep(600)"  # PyDLL does not let go of it
    with BackgroundCell(ws, holds_gil, ranks=[3]) as busy:
        wait_busy(ws, 3)
        frozen.send_signal(signal.SIGSTOP)
        assert ws.restart((1, 3), force=True) == (1, 3)
    assert isinstance(busy.error, RankFailure)
    assert "is being restarted" in str(busy.error)
    assert wait_gone([frozen, process]) == []
    assert_sound(ws)


def test_a_cell_that_runs_goes_on_without_the_new_rank_and_the_next_with_it(ws, notices, gate):
    kill(ws, 1)
    with BackgroundCell(ws, f"{gate.wait}\nrank") as cell:
        wait_busy(ws, 0, 2, 3)
        assert ws.restart() == (1,)
        assert "rank 1 will take part from the next cell on" in notices
        gate.open()
    assert cell.values() == ["0", "2", "3"]
    assert_sound(ws)


def test_splits_of_survivors_stand_and_those_of_the_replaced_are_named_and_made_anew(ws):
    ws.run("part = world.split(rank % 2)")
    kill(ws, 2)
    ws.restart()
    code = "px.all_gather(rank, group=part).tolist()"
    assert values(ws, code, ranks=[1, 3]) == ["[1, 3]"] * 2
    with pytest.raises(CellError, match="rank 2 has closed or lost this split; make the split"):
        ws.run(code, ranks=[0])
    ws.run("part = world.split(rank % 2)")
    assert values(ws, "px.all_gather(rank, group=part).tolist()") == [
        "[0, 2]",
        "[1, 3]",
        "[0, 2]",
        "[1, 3]",
    ]


def test_a_second_request_waits_for_the_restart_under_way(ws, notices):
    old, done = pids(ws)[1], []
    threads = [
        threading.Thread(target=lambda how=how: done.append(ws.restart(**how)))
        for how in ({"ranks": 1, "force": True}, {}, {"ranks": 1})
    ]
    threads[0].start()
    wait_until(lambda: pids(ws)[1] != old, "the new rank is there")
    new = psutil.Process(pids(ws)[1])
    new.suspend()  # so that it is not up before all have asked
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: n_unanswered(ws) == 3, "all have asked")
    new.resume()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert done == [(1,)] * 3
    said = "rank 1 was being restarted already; that was waited for"
    assert notices.count(said) == 2
    assert pids(ws)[1] == new.pid
    assert_sound(ws)


def test_a_new_rank_does_not_show_what_the_one_before_was_in(ws, gate):
    code = f"if rank == 3: {gate.wait}\nelse: px.recv((1,), np.int8, rank + 1)"
    with BackgroundCell(ws, code) as cell:
        wait_in(ws, "recv", 0, 1, 2)
        psutil.Process(pids(ws)[1]).kill()
        gate.open()
    assert isinstance(cell.error, RankFailure)
    kill(ws, 2)
    ws.restart(1)
    assert ws.topology().ranks[1].detail == ""
    assert "recv" not in ws.stacks(1)[1]
    ws.restart(2)
    assert_sound(ws)
