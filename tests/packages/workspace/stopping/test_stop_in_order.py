"""A stop of a workspace: the ranks end by themselves, or are killed and named."""

from __future__ import annotations

import os
import re
import signal
import threading

import psutil
import pytest
from support.hosts.hosts_of_one_machine import start as start_on_two_hosts
from support.inside import root_pid
from support.programs.processes import wait_gone
from support.programs.restarting import Notices
from support.promise import PATIENCE_S
from support.ranks.cells import LIMIT_S, BackgroundCell
from support.runs.gates import Gate
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError
from phalanx.workspace import Workspace

DEAF = """if rank in deaf:
  while True:
    try: mark('in'); sleep(1000)
    except BaseException: pass
"""


def start_here(**options):
    return Workspace.start(n=2, **options)


def noted(ws):
    view = Notices()
    ws.make_view = lambda: view
    return view.texts


def marks(folder):
    return {path.name for path in folder.iterdir()}


def is_stopping(ws):
    return any(info.name == ws.name and info.is_stopping for info in Workspace.list())


def prepare(ws, folder):
    """Define ``mark``, and leave a mark when a rank ends."""
    ws.push({"folder": str(folder)})
    ws.run(
        "import asyncio, atexit, signal; from time import sleep\n"
        "def mark(what): open(f'{folder}/{what}{rank}', 'w').close()\n"
        "atexit.register(mark, 'atexit')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # a cell may do that
        "deaf = range(size)"
    )


def begin(ws, folder, code, ranks=(0, 1)):
    """Run a cell in the background; return it once these ranks are in it."""
    cell = BackgroundCell(ws, code)
    inside = {f"in{rank}" for rank in ranks}
    wait_until(lambda: inside <= marks(folder), "the ranks are in the cell")
    return cell


@pytest.mark.parametrize(
    ("start", "wait"),
    [(start_here, "await asyncio.sleep(1000)"), (start_on_two_hosts, "sleep(1000)")],
)
def test_a_stop_interrupts_the_cell_and_runs_what_is_registered_for_the_end(tmp_path, start, wait):
    with start(grace=LIMIT_S) as ws:
        notices, ranks = noted(ws), range(ws.size)
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, f"try: mark('in'); {wait}\nfinally: mark('finally')", ranks)
        ws.stop()
        assert marks(tmp_path) == {f"{w}{r}" for w in ("in", "finally", "atexit") for r in ranks}
        with pytest.raises(DistributedError, match="^this workspace was stopped; start another"):
            cell.values()
    assert notices == []


def test_a_call_in_another_thread_ends_before_the_ranks_have_ended(tmp_path):
    with start_here(grace=LIMIT_S) as ws, Gate(tmp_path) as gate:
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, f"try: mark('in'); sleep(1000)\nfinally: {gate.wait}")
        stopping = threading.Thread(target=ws.stop)
        stopping.start()
        error = cell.wait()
        assert stopping.is_alive()
        gate.open()
        stopping.join(PATIENCE_S)
    assert re.match("this workspace was stopped", str(error))
    assert {"atexit0", "atexit1"} <= marks(tmp_path)


def test_a_call_of_ipyparallels_client_is_interrupted(tmp_path):
    with start_here(grace=LIMIT_S) as ws:
        prepare(ws, tmp_path)
        ws.client()[:].execute("mark('in'); sleep(1000)", block=False)
        wait_until(lambda: {"in0", "in1"} <= marks(tmp_path), "the ranks are in the call")
        ws.stop()
    assert {"atexit0", "atexit1"} <= marks(tmp_path)


def test_ranks_that_do_not_end_are_named_with_their_place_and_killed(tmp_path):
    with Workspace.start(n=4, grace=3.0) as ws, Gate(tmp_path) as gate:
        notices = noted(ws)
        prepare(ws, tmp_path)
        ws.run("if rank == 3: atexit.register(\n  sleep, 1000)")
        ws.run("deaf = {2}")
        in_c = f"  try: mark('in'); {gate.wait_in_c('PyDLL')}\n  except BaseException: pass"
        code = f"{DEAF}while rank == 1:\n{in_c}\nmark('in')"
        begin(ws, tmp_path, code, range(4))
        os.kill(ws.topology().ranks[0].pid, signal.SIGSTOP)
        ws.stop()
        (notice,) = notices
    assert notice.startswith(
        "ranks 0-3 did not end within 3 s of the stop (rank 0 stopped (frozen)"
    )
    assert (
        "; rank 1 in C code called from cell line 6; rank 2 in C code called from cell " in notice
    )
    assert notice.endswith("; rank 3 in atexit) and were killed")


@pytest.mark.parametrize("again", ["stop", "ctrl_c"])
def test_a_second_stop_kills_at_once(tmp_path, again):
    with start_here(grace=LIMIT_S) as ws:
        notices = noted(ws)
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, DEAF)
        main = threading.main_thread().ident

        def stop_again():
            wait_until(lambda: is_stopping(ws), "the stop has begun")
            if again == "stop":
                ws.stop()
            else:
                signal.pthread_kill(main, signal.SIGINT)

        second = threading.Thread(target=stop_again)
        second.start()
        ws.stop()
        second.join(PATIENCE_S)
        cell.wait()
    assert notices == ["ranks 0-1 had not ended at the second stop and were killed"]


def test_a_forced_restart_lets_the_rank_end_and_a_second_one_kills_it(tmp_path):
    with start_here(grace=LIMIT_S) as ws:
        notices = noted(ws)
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, "try: mark('in'); sleep(1000)\nfinally: mark('finally')")
        assert ws.restart(1, force=True) == (1,)
        assert marks(tmp_path) == {"in0", "in1", "finally1", "atexit1"}
        ws.interrupt()
        cell.wait()
        ws.push({"deaf": {0}})
        (tmp_path / "in0").unlink()
        cell = begin(ws, tmp_path, DEAF, [0])
        first = threading.Thread(target=ws.restart, args=(0,), kwargs={"force": True})
        first.start()
        cell.wait()  # it is told of the restart, while the rank goes on
        assert ws.restart(0, force=True) == (0,)
        first.join(PATIENCE_S)
        assert [result.value for result in ws.run("px.all_sum(1)")] == ["2", "2"]
    assert notices.count("rank 0 had not ended at the second stop and was killed") == 1


def test_ranks_have_their_grace_time_when_the_linger_time_is_over(tmp_path):
    with start_here(grace=LIMIT_S, linger=0) as ws, Gate(tmp_path) as gate:
        prepare(ws, tmp_path)
        begin(ws, tmp_path, f"try: mark('in'); sleep(1000)\nfinally: mark('out'); {gate.wait}")
        root = psutil.Process(root_pid(ws))
        ws.detach()
        wait_until(lambda: {"out0", "out1"} <= marks(tmp_path), "the ranks are interrupted")
        # Longer than the time of ranks that are only killed: what must not happen has no sign.
        assert wait_gone([root], 1.5) == [root]
        gate.open()
        assert wait_gone([root]) == []
    assert {"atexit0", "atexit1"} <= marks(tmp_path)


def test_a_stop_from_elsewhere_says_why_the_cell_ends(tmp_path):
    with start_here() as ws:
        notices = noted(ws)
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, "mark('in'); sleep(1000)")
        os.kill(root_pid(ws), signal.SIGTERM)
        error = cell.wait()
    assert isinstance(error, (CellError, DistributedError))
    assert "the workspace is being stopped" in notices
    assert {"atexit0", "atexit1"} <= marks(tmp_path)
