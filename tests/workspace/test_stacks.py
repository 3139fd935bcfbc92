"""Where ranks are, seen from outside: whatever they do, and without harm to it."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time

import pytest

from phalanx.errors import DistributedError
from phalanx.workspace import QuietView, Workspace
from phalanx.workspace._connect import start_root
from phalanx.workspace._start import checked_options

BOUND_S = 2.0


class Notices(QuietView):
    def __init__(self):
        self.said = []

    def notice(self, text):
        self.said.append(text)


@pytest.fixture
def quick():
    """Three ranks whose long waits are told of soon."""
    options = checked_options(3, None, 0.0, 5.0, "any")
    connection = start_root(dataclasses.replace(options, quiet_s=0.4))
    with Workspace(connection, is_kept=False) as workspace:
        workspace._boot(is_new=True)
        yield workspace


def wait_until(predicate, timeout_s=10.0):
    deadline_s = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Background:
    """A cell on a thread of its own; leaving waits for its end."""

    def __init__(self, ws, code, **options):
        self._thread = threading.Thread(target=self._run, args=(ws, code), kwargs=options)
        self.results = self.error = None

    def _run(self, ws, code, **options):
        try:
            self.results = ws.run(code, **options)
        except (DistributedError, TimeoutError, KeyboardInterrupt) as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(30)


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
    with Background(ws, LOAD) as cell:
        wait_until(lambda: "in all_sum #" in ws.stacks(2)[2])
        seen = ws.stacks()
        ws.interrupt()
    assert cell.results is None
    assert seen[0] == seen[2]
    assert seen[0].splitlines()[1:] == ["    cell line 7"]
    assert seen[1].splitlines() == ["runs", "    cell line 3 in load", "    cell line 6"]


def test_a_rank_that_asks(ws):
    class Silent(QuietView):
        def ask(self, question):
            asked.set()
            return Prompt()

    class Prompt:
        def poll(self, timeout_s):
            return ("x",) if answered.is_set() else None

        def close(self):
            pass

    asked, answered = threading.Event(), threading.Event()
    with Background(ws, "input()", view=Silent()) as cell:
        asked.wait(10)
        seen = ws.stacks([0])
        answered.set()
    assert seen == {0: "waiting for input\n    cell line 1"}
    assert cell.error is None


def test_between_cells_and_ranks_that_are_not_there(ws):
    assert ws.stacks() == dict.fromkeys(range(3), "between cells")
    with pytest.raises(ValueError, match="there is no rank 3"):
        ws.stacks(3)


# Both hold the main thread in C; the first holds Python's lock as well.
IN_C = [
    pytest.param("import ctypes\nfor _ in [1]: ctypes.PyDLL(None).usleep(1_500_000)", id="gil"),
    pytest.param("import ctypes\nfor _ in [1]: ctypes.CDLL(None).usleep(1_500_000)", id="no-gil"),
]


@pytest.mark.slow
@pytest.mark.parametrize("code", IN_C)
def test_a_look_at_c_code_comes_at_once_and_does_not_cut_it_short(ws, code):
    timed = f"import time\nbegin = time.monotonic()\n{code}\ntook = time.monotonic() - begin"
    with Background(ws, timed, ranks=[1]) as cell:
        wait_until(lambda: "cell line 4" in ws.stacks(1)[1])
        begin_s = time.monotonic()
        for _ in range(5):
            assert ws.stacks(1)[1] == "runs\n    cell line 4"
        assert time.monotonic() - begin_s < 1.0
    assert cell.error is None
    assert ws.pull("took", ranks=1) >= 1.5


def test_looking_on_changes_no_operation(ws):
    code = """
import time
end, n, right = time.monotonic() + 0.5, 0, True
while px.all_max(time.monotonic() < end):
    right = right and px.all_sum(np.full(n % 5000, rank)).tolist() == [3] * (n % 5000)
    n += 1
right and n > 10
"""
    n_looks = 0
    with Background(ws, code) as cell:
        while cell.results is None and cell.error is None:
            assert set(ws.stacks()) == {0, 1, 2}
            n_looks += 1
    assert cell.error is None
    assert [result.value for result in cell.results] == ["True"] * 3
    assert n_looks > 3


def test_a_frozen_and_a_dead_rank_are_said_to_be(own):
    (pid,) = (int(result.value) for result in own.run("import os; os.getpid()", ranks=[1]))
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: own.stacks(1)[1] == "stopped (frozen)")
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: own.stacks(1)[1] == "between cells")
    assert [result.value for result in own.run("rank")] == ["0", "1"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: own.stacks(1)[1].startswith("dead: killed by signal 9"))
    assert own.stacks(0)[0] == "between cells"


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


# -- the line after ten seconds, here 0.4 ------------------------------------------------------


@pytest.mark.slow
def test_a_long_wait_is_told_of_once_and_changes_nothing(quick):
    view = Notices()
    code = LOAD.replace("while not over: time.sleep(0.01)", "time.sleep(1.5)")
    assert [r.value for r in quick.run("px.all_sum(1)\n" + code, view=view)] == ["3"] * 3
    (line,) = view.said
    assert line == (
        "ranks 0,2 have waited 0.4 s in all_sum #2; "
        "missing: rank 1, at cell line 4 in load <- cell line 7, last completed #1"
    )


@pytest.mark.slow
def test_a_long_wait_for_a_message_is_told_of(quick):
    view = Notices()
    code = """
import time
if rank == 1: time.sleep(1.2); px.send(np.ones(2), 0)
if rank == 0: px.recv((2,), np.float64, 1)
if rank == 2: time.sleep(1.2)
"""
    quick.run(code, view=view)
    (line,) = view.said
    assert line.startswith("rank 0 has waited 0.4 s in recv from rank 1; missing: rank 1, at cell ")


@pytest.mark.slow
def test_a_cell_that_takes_long_without_waiting_says_nothing(quick):
    view = Notices()
    quick.run("import time; time.sleep(1)", view=view)
    assert view.said == []


# -- time limits -------------------------------------------------------------------------------


def test_a_time_limit_names_where_each_rank_was(ws):
    with pytest.raises(TimeoutError) as caught:
        ws.run(LOAD, timeout=0.6)
    text = str(caught.value)
    assert text.startswith("the cell ran longer than 0.6 s; its ranks were stopped: ranks 0,2 in ")
    assert " at cell line 7; rank 1 at cell line 3 in load <- cell line 6" in text
    with pytest.raises(TimeoutError) as caught:
        ws.run("import time\nif rank: time.sleep(60)", timeout=0.3)
    assert str(caught.value).endswith("stopped: ranks 1-2 at cell line 2; done: rank 0")
    with pytest.raises(TimeoutError) as caught:
        ws.run("import time\nif rank: time.sleep(60)\nraise ValueError('no')", timeout=0.3)
    assert str(caught.value).endswith("line 2; rank 0 had ended with ValueError: no")


# -- a stop that a rank does not react to ------------------------------------------------------

STUCK = """\
import ctypes, time
def solve():
    {}
if rank == 1:
    solve()
    while True: time.sleep(0.05)
kept = rank
"""
STUCK_IN = [
    pytest.param("ctypes.PyDLL(None).sleep(7)", id="gil"),
    # Which no signal interrupts.
    pytest.param("libc.pthread_mutex_timedlock(held, in_7_s())", id="no-gil"),
]


@pytest.mark.slow
@pytest.mark.parametrize("call", STUCK_IN)
def test_a_rank_that_does_not_react_is_named_and_good_again_later(ws, call):
    ws.run(
        "import ctypes, time\nglobals().pop('kept', None)\nlibc = ctypes.CDLL(None)\n"
        "held = ctypes.create_string_buffer(64)\nlibc.pthread_mutex_lock(held)\n"
        "in_7_s = lambda: (ctypes.c_long * 2)(int(time.time() + 7), 0)",
        ranks=[1],
    )
    view = Notices()
    begin_s = time.monotonic()
    with pytest.raises(TimeoutError, match="rank 1 at cell line 3 in solve <- cell line 5"):
        ws.run(STUCK.format(call), timeout=0.5, view=view)
    assert time.monotonic() - begin_s < 0.5 + BOUND_S + 1.0
    (line,) = view.said
    assert line.startswith(
        "rank 1 does not react to the stop: "
        "in C code called from cell line 3 in solve <- cell line 5; wait, "
    )
    # The others kept what they had, and go on.
    assert [result.value for result in ws.run("kept", ranks=[0, 2])] == ["0", "2"]
    with pytest.raises(DistributedError, match=r"rank 1 still runs the cell before \(in C code "):
        ws.run("rank")
    with pytest.raises(DistributedError, match="rank 1 still runs the cell before"):
        ws.pull("rank")
    assert ws.pull("kept", ranks=[0, 2]) == [0, 2]
    wait_until(lambda: ws.topology().ranks[1].state == "idle", 20)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3
    assert ws.pull("rank") == [0, 1, 2]
    # Its part of the cell was stopped where it was; no later one is.
    with pytest.raises(NameError):
        ws.run("kept", ranks=[1])
    assert [result.value for result in ws.run("import time; time.sleep(0.1); rank")] == [*"012"]


@pytest.mark.slow
def test_who_waits_for_a_rank_that_was_left_is_freed(ws):
    with pytest.raises(TimeoutError):
        ws.run(STUCK.format("ctypes.PyDLL(None).sleep(4)"), timeout=0.2)
    with pytest.raises(DistributedError, match="rank 1.* still runs the cell before; all_sum #"):
        ws.run("px.all_sum(1)", ranks=[0, 2])
    wait_until(lambda: ws.topology().ranks[1].state == "idle", 20)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


@pytest.mark.slow
def test_an_interrupt_from_elsewhere_ends_the_waiting_too(ws):
    with Background(ws, STUCK.format("ctypes.PyDLL(None).sleep(4)")) as cell:
        wait_until(lambda: "in solve" in ws.stacks(1)[1])
        begin_s = time.monotonic()
        ws.interrupt()
    assert time.monotonic() - begin_s < BOUND_S + 1.0
    assert isinstance(cell.error, DistributedError)
    wait_until(lambda: ws.topology().ranks[1].state == "idle", 20)
    assert [result.value for result in ws.run("px.all_sum(1)")] == ["3"] * 3


@pytest.mark.slow
def test_a_clean_up_that_takes_its_time_is_waited_for(ws):
    view = Notices()
    # A line each, as code that goes on is told from code that is stuck by that.
    save = "\n".join(["    time.sleep(0.1)"] * 35)
    code = (
        f"import time\ndef save():\n{save}\n    globals()['saved'] = True\n"
        "if rank == 0:\n    try: time.sleep(60)\n    finally: save()"
    )
    with pytest.raises(TimeoutError):
        ws.run(code, timeout=0.2, view=view)
    (line,) = view.said
    assert line.startswith("rank 0 goes on after the stop: at cell line ")
    assert " in save <- cell line " in line
    assert ws.pull("saved", ranks=0) is True
