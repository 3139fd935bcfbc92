"""Descriptors, threads and memory stay flat: over starts, over cells, over dying ranks."""

from __future__ import annotations

import gc
import signal
import threading

import psutil
import pytest
from support.inside import root_pid
from support.programs.memory import least_growth
from support.programs.restarting import pids, values
from support.runs.tiers import deep
from support.waiting import wait_until

from phalanx.errors import RankFailure
from phalanx.rank.output.record import WINDOW_NBYTES
from phalanx.workspace import View, Workspace

pytestmark = pytest.mark.slow

MIB = 1 << 20
N_WINDOWS = 3


def rss_of(*processes: psutil.Process) -> int:
    return sum(process.memory_info().rss for process in processes)


def growth(window, processes) -> float:
    """Run ``window`` four times; return by how many bytes a window after the first adds.

    The slope of a line through the sizes after each window: an allocator that grows once by a
    large step does not look like a leak, a leak of each window does.
    """
    sizes = []
    for _ in range(1 + N_WINDOWS):
        window()
        gc.collect()
        sizes.append(rss_of(*processes))
    middle = N_WINDOWS / 2
    weights = [step - middle for step in range(1 + N_WINDOWS)]
    slope = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    return min(slope / sum(weight**2 for weight in weights), sizes[-1] - sizes[-2])


def cells(ws, n):
    """Run cells, of which a few fail."""
    for i in range(n):
        ws.run("print('x' * 100)\npx.all_sum(1)", view=None)
        if i % 100 == 0:
            with pytest.raises(Exception, match="ZeroDivisionError"):
                ws.run("1 / 0")
    gc.collect()


def held(processes):
    """Return how many descriptors and threads each process has."""
    return [count for p in processes for count in (p.num_fds(), p.num_threads())]


def wait_no_more(processes, before):
    """Wait until no process has more than ``before``: one may have a file of /proc open."""

    def is_no_more():
        return all(now <= then for now, then in zip(held(processes), before, strict=True))

    wait_until(is_no_more, f"no more descriptors and threads than {before}")


def standing(ws):
    """Return how many processes a workspace has, and how many descriptors in all."""
    processes = family(ws)
    return len(processes), sum(process.num_fds() for process in processes)


def family(ws):
    root = psutil.Process(root_pid(ws))
    return [psutil.Process(), root, *root.children()]


def test_cells_leave_no_descriptor_and_no_thread(ws):
    processes = family(ws)
    cells(ws, 20)
    before = held(processes)
    cells(ws, 40)
    wait_no_more(processes, before)


def test_cells_that_fail_leave_no_descriptors_for_the_garbage_collection(ws):
    ws.run("import gc, os\ngc.disable()")

    def n_fds():
        return values(ws, "len(os.listdir('/proc/self/fd'))")[1]

    with pytest.raises(ValueError, match="all_sum #"):
        ws.run("px.all_sum(np.ones(1 + rank))")
    before = n_fds()
    for _ in range(5):
        with pytest.raises(ValueError, match="all_sum #1"):
            ws.run("px.all_sum(np.ones(1 + rank))")
    wait_until(lambda: n_fds() == before, f"{before} descriptors")
    ws.run("gc.enable()")


def test_ranks_keep_nothing_of_what_they_print_and_display(ws):
    ws.run("print('seen')\nimport sys\nprint('error', file=sys.stderr)\ndisplay(1)\n2")
    with pytest.raises(ZeroDivisionError):
        ws.run("1 / 0")
    for name in ("outputs", "exceptions"):
        kept = f"sum(map(len, getattr(get_ipython().history_manager, '{name}', {{}}).values()))"
        assert values(ws, kept) == ["0"] * 3


@deep
@pytest.mark.timeout(300)
def test_ranks_do_not_grow_with_what_they_print():
    """A million lines, after those in which what is made once is made."""
    print_lines = "for i in range(100_000): print(f'step {i} loss 0.123456')"
    size = "int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0]) * 1024"
    with Workspace.start(n=1) as ws:
        sizes = []
        for lines in (1, 3, 3, 3):  # times 100,000
            for _ in range(lines):
                ws.run(print_lines)
            (found,) = values(ws, size)
            sizes.append(int(found))
    assert least_growth(sizes) <= MIB


# A thread says when the client has enough to draw.
PRINT_MUCH = """
import pathlib, sys, threading, time
window = sys.stdout.throttle
def watch():
    while not window.is_full: time.sleep(0.01)
    pathlib.Path(%r).touch()
threading.Thread(target=watch).start()
most = 0
for _ in range(30):
    sys.stdout.write(("y" * 999 + "\\n") * 1000)
    most = max(most, window._sent - window._drawn)
"""


class LateView(View):
    """Draws nothing until a file is there."""

    def __init__(self, path):
        self._path = path

    def lines(self, stream, lines):
        wait_until(self._path.exists, "the rank has printed all that it may")


def test_ranks_print_no_faster_than_it_is_drawn(ws, tmp_path):
    path = tmp_path / "full"
    ws.run(PRINT_MUCH % str(path), ranks=[0], view=LateView(path), max_lines=5)
    (most,) = values(ws, "most", ranks=[0])
    assert MIB < int(most) <= WINDOW_NBYTES  # after each piece; all of it has 30 MB


def check_deaths(ws):
    """Kill all ranks but the first, and check what the supervisor still holds of them."""
    ranks = range(1, ws.size)
    before_pids = pids(ws)
    root = psutil.Process(root_pid(ws))
    ws.run("import os\npx.all_sum(1)")
    before = root.num_fds()
    for rank in ranks:
        with pytest.raises(RankFailure, match=f"rank {rank} "):
            ws.run(f"os.kill({before_pids[rank]}, {signal.SIGKILL:d})", ranks=[rank])
    # The channel, the pidfd and two pipes of each; its memory is its slot's.
    expected = before - len(ranks) * 4
    wait_until(lambda: root.num_fds() <= expected, f"no more than {expected} descriptors")
    assert values(ws, "rank") == ["0"]
    wait_until(lambda: not any(map(psutil.pid_exists, before_pids[1:])), "the dead are reaped")


def test_dying_ranks_leave_nothing_in_the_supervisor(breakable):
    check_deaths(breakable)


def test_restarts_leave_no_process_and_no_descriptor(ws):
    def restart():
        ws.restart(1, force=True)
        assert values(ws, "int(px.all_sum(np.ones(1 << 18)).sum())") == [str(3 << 18)] * 3

    restart()  # what is made once
    before = standing(ws)
    for _ in range(3):
        restart()
    wait_until(lambda: standing(ws) == before, f"{before} processes and descriptors")


@deep
def test_starts_leak_nothing():
    me = psutil.Process()

    def start():
        with Workspace.start(n=2) as ws:
            ws.run("px.all_sum(1)")

    def held_here():
        gc.collect()
        return me.num_fds(), threading.active_count(), len(me.children())

    for _ in range(3):
        start()
    before = held_here()
    assert growth(lambda: [start() for _ in range(3)], [me]) < MIB
    wait_until(lambda: held_here() == before, f"{before} descriptors, threads and children")


@deep
@pytest.mark.timeout(600)
def test_cells_leak_nothing():
    with Workspace.start(n=2) as ws:
        processes = family(ws)
        cells(ws, 300)
        before = held(processes)
        # IPython keeps each cell's text and result on purpose, what ranks show is a file:
        # 10 KiB a cell, of all together.
        assert growth(lambda: cells(ws, 300), processes) < 300 * 10 * 1024
        wait_no_more(processes, before)


@deep
@pytest.mark.timeout(600)
def test_fifty_restarts_leave_nothing():
    with Workspace.start(n=2) as ws:

        def restart():
            ws.restart(1, force=True)
            assert values(ws, "int(px.all_sum(np.ones(1 << 18)).sum())") == [str(2 << 18)] * 2

        for _ in range(5):  # what is made once
            restart()
        me, root, *children = family(ws)
        lasting = [p for p in children if "controller" in " ".join(p.cmdline())]
        assert len(lasting) == 1
        before = standing(ws)
        # 16 MiB over 50 restarts, as one difference, was the bound before.
        slope = growth(lambda: [restart() for _ in range(12)], [me, root, *lasting])
        assert slope < 12 / 50 * 16 * MIB
        wait_until(lambda: standing(ws) == before, f"{before} processes and descriptors")
