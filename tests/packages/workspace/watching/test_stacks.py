"""Where ranks are, seen from outside: whatever they do, and without harm to it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import msgspec
import pytest
from support.inside import lifecycle
from support.programs.restarting import Notices
from support.promise import BOUND_S, PATIENCE_S, SLOW_OPERATION_S, check, within
from support.ranks.cells import LIMIT_S, BackgroundCell, time_is_up_once, wait_busy, wait_idle
from support.waiting import wait_until

from phalanx.errors import DistributedError
from phalanx.supervisor import launch_root
from phalanx.workspace import View, Workspace
from phalanx.workspace.options import checked_options


@pytest.fixture(scope="module")
def quick():
    """Three ranks whose long waits are told of soon."""
    options = checked_options(3, None, 0.0, 5.0, "any")
    connection = launch_root(msgspec.structs.replace(options, slow_operation_s=SLOW_OPERATION_S))
    with Workspace(connection, is_kept=False) as workspace:
        lifecycle(workspace).boot(is_new=True)
        yield workspace


def are_at(ws, places):
    """Whether the stack of each rank has the text that is given for it."""
    stacks = ws.stacks(list(places))
    return all(text in stacks[rank] for rank, text in places.items())


def wait_for_stack(ws, rank, text):
    """Wait until a rank is where it is to be looked at."""
    wait_until(lambda: are_at(ws, {rank: text}), f"rank {rank} is in {text!r}")


def time_is_up_at(ws, places):
    """Let the time limit of the body's cell pass once the ranks are at these places."""
    return time_is_up_once(lambda: are_at(ws, places), f"ranks are at {places}")


LOAD = """\
import time
def load():
    while not over: time.sleep(0.01)
over = False
if rank == 1:
    load()
px.all_sum(1)
"""


def test_a_rank_that_works_and_ranks_that_wait_for_it(ws):
    with BackgroundCell(ws, LOAD) as cell:
        for rank in (0, 2):
            wait_for_stack(ws, rank, "in all_sum #")
        wait_for_stack(ws, 1, "cell line 3 in load")
        seen = ws.stacks()
        ws.interrupt()
    assert cell.results is None
    assert seen[0] == seen[2]
    assert seen[0].splitlines()[1:] == ["    cell line 7"]
    assert seen[1].splitlines() == ["runs", "    cell line 3 in load", "    cell line 6"]


def test_a_rank_that_asks(ws):
    class Silent(View):
        def ask(self, question):
            asked.set()
            return Prompt()

    class Prompt:
        def poll(self, timeout_s):
            return ("x",) if answered.is_set() else None

        def close(self):
            pass

    asked, answered = threading.Event(), threading.Event()
    with BackgroundCell(ws, "input()", view=Silent()) as cell:
        assert asked.wait(PATIENCE_S)
        seen = ws.stacks([0])
        answered.set()
    assert seen == {0: "waiting for input\n    cell line 1"}
    assert cell.error is None


def test_between_cells_and_ranks_that_are_not_there(ws):
    assert ws.stacks() == dict.fromkeys(range(3), "between cells")
    with pytest.raises(ValueError, match="there is no rank 3"):
        ws.stacks(3)


# Both hold the main thread in C; PyDLL holds Python's lock as well.
@pytest.mark.promise
@pytest.mark.parametrize("library", ["PyDLL", "CDLL"])
def test_a_look_at_c_code_comes_at_once_and_does_not_cut_it_short(ws, gate, library):
    with BackgroundCell(
        ws, f"for _ in [1]:\n    got = {gate.wait_in_c(library)}", ranks=[1]
    ) as cell:
        wait_for_stack(ws, 1, "cell line 2")
        with within(BOUND_S / 2):
            for _ in range(5):
                assert ws.stacks(1)[1].splitlines() == ["runs", "    cell line 2"]
        assert not cell.is_over
        gate.open()
    assert cell.error is None
    assert ws.pull("got", ranks=1) == 1  # a signal would have made it -1


def test_looking_on_changes_no_operation(ws, tmp_path):
    over = tmp_path / "over"
    code = f"""
import os
n, right = 0, True
while px.all_max(n < 20 or not os.path.exists({str(over)!r})):
    right = right and px.all_sum(np.full(n % 5000, rank)).tolist() == [3] * (n % 5000)
    n += 1
right
"""
    with BackgroundCell(ws, code) as cell:
        wait_busy(ws)
        for _ in range(20):
            assert set(ws.stacks()) == {0, 1, 2}
        assert not cell.is_over
        over.touch()
    assert cell.values() == ["True"] * 3


def test_a_frozen_and_a_dead_rank_are_said_to_be(breakable):
    ws = breakable
    pid = ws.topology().ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: ws.stacks(1)[1] == "stopped (frozen)", "rank 1 is said to be frozen")
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: ws.stacks(1)[1] == "between cells", "rank 1 is said to go on")
    assert [result.value for result in ws.run("rank")] == ["0", "1", "2"]
    os.kill(pid, signal.SIGKILL)
    dead = "dead: killed by signal 9"
    wait_until(lambda: ws.stacks(1)[1].startswith(dead), "rank 1 is said to be dead")
    assert ws.stacks(0)[0] == "between cells"


def test_what_a_rank_starts_has_neither_the_pipe_nor_its_name(ws):
    code = """
import os, stat, subprocess, sys
child = "import os; print(os.environ.get('PHALANX_STACKS'), *os.listdir('/proc/self/fd'))"
pipes = [fd for fd in map(int, os.listdir("/proc/self/fd")[:-1])
         if os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd)
         and stat.S_ISFIFO(os.fstat(fd).st_mode) and fd > 2]
out = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, close_fds=False)
len(pipes), out.stdout.split()[0]
"""
    # The two pipes that are inheritable are those of its own output.
    assert {result.value for result in ws.run(code)} == {"(2, 'None')"}


# -- the line after ten seconds, here sooner ----------------------------------------------------


@pytest.mark.slow
def test_a_long_wait_is_told_of_once_and_changes_nothing(quick, tmp_path):
    told = tmp_path / "told"

    def let_go(text):
        if "in load" in text:
            told.touch()

    view = Notices(let_go)
    # It goes on after the line for as long again, as a second line would come then.
    code = f"""\
import os, time
def load():
    while not os.path.exists({str(told)!r}): time.sleep(0.01)
    time.sleep({2 * SLOW_OPERATION_S})
px.all_sum(1)
if rank == 1: load()
px.all_sum(1)
"""
    assert [r.value for r in quick.run(code, view=view)] == ["3"] * 3
    # Where the machine holds a rank up, the first sum may take long, too.
    (line,) = [line for line in view.texts if "in load" in line]
    found = re.fullmatch(
        rf"ranks 0,2 have waited {SLOW_OPERATION_S} s in all_sum #(\d+); "
        r"missing: rank 1, at cell line 3 in load <- cell line 6, last completed #(\d+)",
        line,
    )
    assert found, line
    assert int(found[1]) == int(found[2]) + 1


@pytest.mark.slow
def test_a_long_wait_for_a_message_is_told_of(quick, gate):
    view = Notices(lambda text: gate.open())
    code = f"""
if rank: {gate.wait}
if rank == 1: px.send(np.ones(2), 0)
if rank == 0: px.recv((2,), np.float64, 1)
"""
    quick.run(code, view=view)
    (line,) = view.texts
    waited = f"rank 0 has waited {SLOW_OPERATION_S} s in recv from rank 1"
    assert line.startswith(f"{waited}; missing: rank 1, at cell ")


@pytest.mark.slow
def test_a_cycle_of_waits_that_another_thread_may_end_is_told_of(quick, gate):
    view = Notices(lambda text: "wait for each other" in text and gate.open())
    code = f"""
import threading
def work():
    {gate.wait}
    px.send(np.ones(2), 0)
if rank == 1:
    thread = threading.Thread(target=work)
    thread.start()
    px.recv((2,), np.float64, 0)
    thread.join()
if rank == 0:
    px.recv((2,), np.float64, 1)
    px.send(np.ones(2), 1)
"""
    quick.run(code, view=view)
    (line,) = [line for line in view.texts if "wait for each other" in line]
    found = re.fullmatch(
        r"ranks 0-1 wait for each other: rank 0 in recv #\d+ from rank 1 at cell line 11, "
        r"rank 1 in recv #\d+ from rank 0 at cell line 8; .*; "
        r"nothing is raised, as rank 1 may go on in another thread",
        line,
    )
    assert found, line


@pytest.mark.slow
def test_a_cell_that_takes_long_without_waiting_says_nothing(quick):
    view = Notices()
    quick.run(f"import time; time.sleep({2.5 * SLOW_OPERATION_S})", view=view)
    assert view.texts == []


# -- time limits -------------------------------------------------------------------------------


def test_a_time_limit_names_where_each_rank_was(ws):
    places = {0: "in all_sum #", 1: "cell line 3 in load", 2: "in all_sum #"}
    with time_is_up_at(ws, places), pytest.raises(TimeoutError) as caught:
        ws.run(LOAD, timeout=LIMIT_S)
    text = str(caught.value)
    assert text.startswith("the cell ran longer than 600 s; its ranks were stopped: ranks 0,2 in ")
    assert " at cell line 7; rank 1 at cell line 3 in load <- cell line 6" in text
    code = """\
import time
if rank == 1: time.sleep(60)
if rank == 2: raise ValueError('no')"""
    places = {0: "between cells", 1: "cell line 2", 2: "between cells"}
    with time_is_up_at(ws, places), pytest.raises(TimeoutError) as caught:
        ws.run(code, timeout=LIMIT_S)
    assert str(caught.value).endswith(
        "stopped: rank 1 at cell line 2; rank 2 had ended with ValueError: no; done: rank 0"
    )


# -- a stop that a rank does not react to ------------------------------------------------------

STUCK = """\
import time
def solve():
    {}
if rank == 1:
    solve()
    while True: time.sleep(0.05)
kept = rank
"""
IN_SOLVE = "cell line 3 in solve <- cell line 5"
STILL_RUNS = "rank 1 still runs the cell before"


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("is_locked", [True, False], ids=["gil", "no-gil"])
def test_a_rank_that_does_not_react_is_named_and_good_again_later(ws, gate, is_locked):
    call = gate.wait_in_c("PyDLL")
    if not is_locked:  # a lock: no signal ends the wait for it
        ws.run(
            "import ctypes, threading\nlibc = ctypes.CDLL(None)\n"
            "held = ctypes.create_string_buffer(64)\nlibc.pthread_mutex_lock(held)\n"
            f"def unlock():\n    {gate.wait}\n    libc.pthread_mutex_unlock(held)\n"
            "threading.Thread(target=unlock).start()",
            ranks=[1],
        )
        call = "libc.pthread_mutex_lock(held)"
    ws.run("globals().pop('kept', None)")
    view = Notices()
    places = {0: "between cells", 1: "in solve", 2: "between cells"}
    with (
        time_is_up_at(ws, places) as up_s,
        pytest.raises(TimeoutError, match=f"rank 1 at {IN_SOLVE}"),
    ):
        ws.run(STUCK.format(call), timeout=LIMIT_S, view=view)
    check(time.monotonic() - up_s[0], BOUND_S + 1.0)
    (line,) = view.texts
    words = f"rank 1 does not react to the stop: in C code called from {IN_SOLVE}; wait, "
    assert line.startswith(words)
    # The others kept what they had, and go on.
    assert [result.value for result in ws.run("kept", ranks=[0, 2])] == ["0", "2"]
    with pytest.raises(DistributedError, match=rf"{STILL_RUNS} \(in C code "):
        ws.run("rank")
    with pytest.raises(DistributedError, match=STILL_RUNS):
        ws.pull("rank")
    assert ws.pull("kept", ranks=[0, 2]) == [0, 2]
    if is_locked:  # who waits for it is freed; else a thread of rank 1 might still take part
        with pytest.raises(DistributedError, match=f"rank 1.* {STILL_RUNS[7:]}; all_sum #"):
            ws.run("px.all_sum(1)", ranks=[0, 2])
    gate.open()
    wait_idle(ws, 1)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3
    assert ws.pull("rank") == [0, 1, 2]
    # Its part of the cell was stopped where it was; no later one is.
    with pytest.raises(NameError):
        ws.run("kept", ranks=[1])
    assert [result.value for result in ws.run("import time; time.sleep(0.1); rank")] == [*"012"]


@pytest.mark.slow
@pytest.mark.promise
def test_an_interrupt_from_elsewhere_ends_the_waiting_too(ws, gate):
    with BackgroundCell(ws, STUCK.format(gate.wait_in_c("PyDLL"))) as cell:
        wait_for_stack(ws, 1, "in solve")
        with within(BOUND_S + 1.0):
            ws.interrupt()
            cell.wait()
    assert isinstance(cell.error, DistributedError)
    gate.open()
    wait_idle(ws, 1)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


SWALLOWS = """\
import os, time
while True:
    try:
        while not os.path.exists({!r}): time.sleep(0.01)
        break
    except KeyboardInterrupt: pass
"""


@pytest.mark.slow
def test_a_rank_that_swallows_the_stop_is_told_so(ws, tmp_path):
    told = tmp_path / "told"
    view = Notices(lambda text: told.touch())
    places = dict.fromkeys(range(3), "cell line 4")
    with time_is_up_at(ws, places), pytest.raises(TimeoutError):
        ws.run(SWALLOWS.format(str(told)), timeout=LIMIT_S, view=view)
    (line,) = view.texts
    assert line.startswith(
        "ranks 0-2 swallow the stop, a KeyboardInterrupt, and go on: at cell line 4; wait, "
    )
    for rank in range(3):
        wait_idle(ws, rank)


@pytest.mark.slow
def test_a_rank_that_writes_its_traceback_is_in_no_c_code(ws, tmp_path):
    told = tmp_path / "told"
    view = Notices(lambda text: told.touch())
    slow = (
        "import os, time\ndef show(*args, **options):\n"
        f"    while not os.path.exists({str(told)!r}): time.sleep(0.01)\n    return []"
    )
    ws.run(
        f"exec(compile({slow!r}, '/lib/python3.11/pygments/lexer.py', 'exec'))\n"
        "tracebacks = get_ipython().InteractiveTB\ntracebacks.structured_traceback = show",
        ranks=[0],
    )
    places = {0: "writing the traceback", 1: "between cells", 2: "between cells"}
    with time_is_up_at(ws, places), pytest.raises(TimeoutError):
        ws.run("1 / (rank > 0)", timeout=LIMIT_S, view=view)
    ws.run("del tracebacks.structured_traceback", ranks=[0])
    (line,) = view.texts
    assert line == (
        "rank 0 goes on after the stop: writing the traceback of an error; waiting 10 s at most"
    )


@pytest.mark.slow
def test_a_clean_up_that_takes_its_time_is_waited_for(ws, tmp_path):
    told = tmp_path / "told"
    view = Notices(lambda text: told.touch())
    # Many lines, as code that goes on is told from code that is stuck by its line.
    pauses = "\n".join(["        time.sleep(0.01)"] * 100)
    code = (
        f"import os, time\ndef save():\n    while not os.path.exists({str(told)!r}):\n{pauses}\n"
        "    globals()['saved'] = True\n"
        "if rank == 0:\n    try: time.sleep(60)\n    finally: save()"
    )
    with time_is_up_at(ws, {0: "cell line 106"}), pytest.raises(TimeoutError):
        ws.run(code, timeout=LIMIT_S, view=view)
    (line,) = view.texts
    assert line.startswith("rank 0 goes on after the stop: at cell line ")
    assert " in save <- cell line " in line
    assert ws.pull("saved", ranks=0) is True
