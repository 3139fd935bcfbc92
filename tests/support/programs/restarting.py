"""Kill ranks, and check that they work: for the tests of restarts."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from support.programs.processes import wait_gone
from support.promise import PATIENCE_S
from support.ranks.cells import BackgroundCell
from support.waiting import wait_until

from phalanx.errors import CellError
from phalanx.workspace import View


class Notices(View):
    """Keeps the notices; ``on_notice`` gets each of them as well."""

    def __init__(self, on_notice=lambda text: None):
        self.texts = []
        self._on_notice = on_notice

    def notice(self, text):
        self.texts.append(text)
        self._on_notice(text)


class Lines(Notices):
    """Keeps the lines that are shown, too."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def lines(self, stream, lines):
        self.shown += [line for _, line in lines]


class BegunNotices(Notices):
    """Keeps the ranks that have printed "begun", too."""

    def __init__(self):
        super().__init__()
        self.begun = set()

    def lines(self, stream, lines):
        for ranks, line in lines:
            if line.strip() == "begun":
                self.begun.update(ranks)


def stop_begun(ws, code):
    """Stop a cell once all ranks have printed "begun" in it; return how it ended and what was noticed."""
    view = BegunNotices()
    with BackgroundCell(ws, code, view=view) as cell:
        wait_until(lambda: len(view.begun) == ws.size, "all ranks have begun")
        ws.interrupt()
    return cell.error, view.texts


def failures(ws, code):
    """Run a cell that fails; return each rank's error as text."""
    with pytest.raises(CellError) as caught:
        ws.run(code)
    return str(caught.value)


def pids(ws):
    return [info.pid for info in ws.topology().ranks]


def kill(ws, *ranks):
    """Kill ranks, and wait until the workspace says that they are dead."""
    processes = [psutil.Process(pids(ws)[rank]) for rank in ranks]
    for process in processes:
        process.kill()
    assert wait_gone(processes) == []
    wait_for(lambda: all(ws.topology().ranks[rank].state == "dead" for rank in ranks))


def wait_for(condition, timeout_s=PATIENCE_S):
    """Wait as `support.waiting.wait_until` does, for callers that do not say for what."""
    return wait_until(condition, "what this test waits for", timeout_s)


def values(ws, code, **options):
    return [result.value for result in ws.run(code, **options)]


def assert_sound(ws):
    """Check values: over all ranks, and from rank to rank."""
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
