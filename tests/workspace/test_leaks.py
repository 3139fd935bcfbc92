"""Descriptors, threads and memory stay flat: over starts, over cells, over dying ranks."""

from __future__ import annotations

import gc
import signal
import threading
import time

import psutil
import pytest

from phalanx.errors import RankFailure
from phalanx.workspace import Workspace

pytestmark = pytest.mark.slow

MIB = 1 << 20


def rss_of(process: psutil.Process) -> int:
    return process.memory_info().rss


def test_starts_leak_nothing():
    me = psutil.Process()

    def rounds(n):
        for _ in range(n):
            with Workspace.start(n=2) as ws:
                ws.run("px.all_sum(1)")
        gc.collect()
        return me.num_fds(), threading.active_count(), len(me.children()), rss_of(me)

    *before, rss_before = rounds(3)
    *after, rss_after = rounds(8)
    assert after == before
    assert rss_after - rss_before < 2 * MIB


@pytest.mark.timeout(240)
def test_cells_leak_nothing():
    with Workspace.start(n=2) as ws:
        root = psutil.Process(ws._root.pid)
        everybody = [psutil.Process(), root, *root.children()]

        def cells(n):
            for i in range(n):
                ws.run("print('x' * 100)\npx.all_sum(1)", view=None)
                if i % 100 == 0:
                    with pytest.raises(Exception, match="ZeroDivisionError"):
                        ws.run("1 / 0")
            gc.collect()
            held = [count for p in everybody for count in (p.num_fds(), p.num_threads())]
            return held, sum(map(rss_of, everybody))

        before, rss_before = cells(300)
        after, rss_after = cells(900)
        # Fewer where a thread of an earlier test has ended meanwhile.
        assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)
        # IPython keeps each cell's text and result on purpose, what ranks show is a file.
        assert rss_after - rss_before < 8.5 * MIB  # 10 KiB a cell, of all together


def test_dying_ranks_leave_nothing_in_the_supervisor():
    with Workspace.start(n=8) as ws:
        pids = [int(r.value) for r in ws.run("import os\nos.getpid()")]
        root = psutil.Process(ws._root.pid)
        ws.run("px.all_sum(1)")
        before = root.num_fds()
        for rank in range(1, 8):
            with pytest.raises(RankFailure, match=f"rank {rank} "):
                ws.run(f"os.kill({pids[rank]}, {signal.SIGKILL:d})", ranks=[rank])
        # The channel, the pidfd and two pipes of each; its memory is its slot's.
        deadline_s = time.monotonic() + 2
        while root.num_fds() > before - 7 * 4:
            assert time.monotonic() < deadline_s
        assert [r.value for r in ws.run("rank")] == ["0"]
        assert not [pid for pid in pids[1:] if psutil.pid_exists(pid)]


def test_cells_that_fail_leave_no_descriptors_for_the_garbage_collection():
    with Workspace.start(n=2, linger=0) as ws:
        ws.run("import gc, os\ngc.disable()")

        def n_fds():
            return ws.run("len(os.listdir('/proc/self/fd'))")[1].value

        before = n_fds()
        for _ in range(5):
            with pytest.raises(ValueError, match="all_sum #1"):
                ws.run("px.all_sum(np.ones(1 + rank))")
        assert n_fds() == before
