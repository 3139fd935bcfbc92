"""Breaking ranks, and seeing that they work: for the tests of restarts."""

from __future__ import annotations

import time

import numpy as np
import psutil
from processes import wait_gone

from phalanx.workspace import QuietView

BOUND_S = 2.0  # design.md section 5: on one machine


class Notices(QuietView):
    """A view that keeps our own lines."""

    def __init__(self):
        self.texts = []

    def notice(self, text):
        self.texts.append(text)


def pids(ws):
    return [info.pid for info in ws.topology().ranks]


def kill(ws, *ranks):
    """End ranks between cells, and wait until the workspace knows it."""
    processes = [psutil.Process(pids(ws)[rank]) for rank in ranks]
    for process in processes:
        process.kill()
    assert wait_gone(processes, BOUND_S) == []
    wait_for(lambda: all(ws.topology().ranks[rank].state == "dead" for rank in ranks))


def wait_for(condition, timeout_s=10.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def values(ws, code, **options):
    return [result.value for result in ws.run(code, **options)]


def assert_sound(ws):
    """Values, over all ranks and from rank to rank."""
    n = ws.size
    assert (
        values(ws, "int(px.all_sum(np.arange(1000) + rank).sum())")
        == [str(int((n * np.arange(1000) + n * (n - 1) // 2).sum()))] * n
    )
    code = (
        "px.send(np.full(3, rank), (rank + 1) % size); "
        "px.recv((3,), np.int64, (rank - 1) % size).tolist()"
    )
    assert values(ws, code) == [str([(rank - 1) % n] * 3) for rank in range(n)]
