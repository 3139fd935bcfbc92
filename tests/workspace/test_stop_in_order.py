"""A stop of a workspace: the ranks end by themselves, or are killed and named."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest
from support.cells import LIMIT_S, BackgroundCell
from support.gates import Gate
from support.hosts.hosts_of_one_machine import start as start_on_two_hosts
from support.promise import PATIENCE_S
from support.restarting import Notices
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError
from phalanx.workspace import Workspace

DEAF = "\nwhile True:\n  try: sleep(1000)\n  except BaseException: pass\n"


def start_here(**options):
    return Workspace.start(n=2, **options)


def noted(ws):
    view = Notices()
    ws.make_view = lambda: view
    return view.texts


def marks(folder):
    return {path.name for path in folder.iterdir()}


def prepare(ws, folder):
    """Define ``mark``, and leave a mark when a rank ends."""
    ws.push({"folder": str(folder)})
    ws.run(
        "import atexit, signal; from time import sleep\n"
        "def mark(what): open(f'{folder}/{what}{rank}', 'w').close()\n"
        "atexit.register(mark, 'atexit')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); None"  # a cell may do that
    )


def begin(ws, folder, code, ranks=(0, 1)):
    """Run a cell in the background; return it once these ranks are in it."""
    cell = BackgroundCell(ws, f"mark('in')\n{code}")
    inside = {f"in{rank}" for rank in ranks}
    wait_until(lambda: inside <= marks(folder), "the ranks are in the cell")
    return cell


@pytest.mark.parametrize("start", [start_here, start_on_two_hosts])
@pytest.mark.parametrize("wait", ["sleep(1000)", "import asyncio; await asyncio.sleep(1000)"])
def test_a_stop_interrupts_the_cell_and_runs_what_is_registered_for_the_end(tmp_path, start, wait):
    with start(grace=LIMIT_S) as ws:
        notices, ranks = noted(ws), range(ws.size)
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, f"try: {wait}\nfinally: mark('finally')", ranks)
        ws.stop()
        assert marks(tmp_path) == {f"{w}{r}" for w in ("in", "finally", "atexit") for r in ranks}
        with pytest.raises(DistributedError, match="^this workspace was stopped; start another"):
            cell.values()
    assert notices == []


def test_a_call_in_another_thread_ends_before_the_ranks_have_ended(tmp_path):
    with start_here(grace=LIMIT_S) as ws, Gate(tmp_path) as gate:
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, f"try: sleep(1000)\nfinally: {gate.wait}")
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
        code = f"if rank == 1: {gate.wait_in_c('PyDLL')}\nif rank == 2:{DEAF.replace(chr(10), chr(10) + '  ')}"
        begin(ws, tmp_path, code, range(4))
        os.kill(ws.topology().ranks[0].pid, signal.SIGSTOP)
        ws.stop()
        (notice,) = notices
    assert notice.startswith(
        "ranks 0-3 did not end within 3 s of the stop (rank 0 stopped (frozen)"
    )
    assert (
        "; rank 1 in C code called from cell line 2; rank 2 in C code called from cell " in notice
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
            wait_until(lambda: Workspace.list()[0].is_stopping, "the stop has begun")
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


def test_a_forced_restart_lets_the_rank_end_and_names_one_that_does_not(tmp_path):
    with start_here(grace=1.0) as ws:
        notices = noted(ws)
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, "try: sleep(1000)\nfinally: mark('finally')")
        assert ws.restart(1, force=True) == (1,)
        assert marks(tmp_path) == {"in0", "in1", "finally1", "atexit1"}
        ws.interrupt()
        cell.wait()
        prepare(ws, tmp_path)
        cell = BackgroundCell(
            ws, f"mark('deaf')\nif rank == 0:{DEAF.replace(chr(10), chr(10) + '  ')}"
        )
        wait_until(lambda: "deaf0" in marks(tmp_path), "rank 0 is in its cell")
        assert ws.restart(0, force=True) == (0,)
        cell.wait()
        assert [result.value for result in ws.run("px.all_sum(1)")] == ["2", "2"]
    late = [text for text in notices if "within" in text]
    assert len(late) == 1
    assert re.match(
        r"rank 0 did not end within 1 s of the stop \(.*cell line \d\) and was killed$", late[0]
    )


def test_a_stop_from_elsewhere_says_why_the_cell_ends(tmp_path):
    with start_here() as ws:
        notices = noted(ws)
        prepare(ws, tmp_path)
        cell = begin(ws, tmp_path, "sleep(1000)")
        os.kill(Workspace.list()[0].pid, signal.SIGTERM)
        error = cell.wait()
    assert isinstance(error, (CellError, DistributedError))
    assert "the workspace is being stopped" in notices
    assert {"atexit0", "atexit1"} <= marks(tmp_path)
