"""A stop keeps ranks in step: real ranks that go at different paces."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from support.programs.restarting import BegunNotices
from support.promise import PATIENCE_S
from support.ranks.cells import BackgroundCell, wait_in
from support.runs.tiers import deep, deep_but
from support.waiting import wait_until

from phalanx.errors import CellError
from phalanx.workspace import Workspace
from phalanx.workspace.cells import stopping
from phalanx.workspace.cells.stopping import StopInStep

DIFFER = "variables may differ; px.broadcast them before you go on"

# Rank 1 is slower, and rank 2 does something between two operations that takes it more or less time.
TRAIN = """
import time
n, W = 0, np.zeros(4)
def train(steps):
    global n, W
    for step in range(steps):
        g = px.all_sum(np.ones(4) * (rank + 1)) / size
        W = W - 0.1 * g
        n += 1
        if rank == 1: time.sleep(0.001)
        if rank == 2: sum(range(step % 5000))
"""
BOTH = """
n = 0
while True:
    works = [px.all_sum(np.ones(100), async_op=True) for _ in range(3)]
    n += 1
    if rank == 0: [px.send(np.full(3, n), 1) for _ in range(2)]
    if rank == 1: got = [px.recv((3,), "int64", 0) for _ in range(2)]
    for work in works: work.wait()
    if n == 20: print("begun", flush=True)
"""
LONG = "train(20)\nprint('begun', flush=True)\ntrain(10**7)"


@pytest.fixture(scope="module", params=deep_but(["any"], ["any", "tcp"]))
def ws(request):
    """Four ranks that the tests of this file share."""
    with Workspace.start(n=4, transport=request.param) as workspace:
        workspace.run(TRAIN)
        yield workspace


def stop(ws, code, view=None, waiting=(), **options):
    """Stop a cell whose ranks have all begun; return what was said of where they stopped.

    The ranks ``waiting`` are in an `all_sum` that cannot complete.
    """
    view = view or BegunNotices()
    with BackgroundCell(ws, code, view=view, **options) as cell:
        wait_until(lambda: len(view.begun) == 4, "all ranks have begun")
        wait_in(ws, "all_sum", *waiting)
        ws.interrupt()
    assert isinstance(cell.error, CellError)
    return [line for line in view.texts if DIFFER in line]


@pytest.fixture
def patient(monkeypatch):
    """A stop that waits for ranks on a busy machine, too."""
    monkeypatch.setattr(stopping, "STEP_S", PATIENCE_S)


@pytest.fixture
def due_once_all_have_reported(monkeypatch):
    """A stop whose patience ends when every rank has said where it is, however long that takes."""

    class Due(StopInStep):
        def step(self, running, now_s):
            if self._reports.keys() >= set(running):
                self.due_s = now_s
            super().step(running, now_s)

    monkeypatch.setattr(stopping, "STEP_S", PATIENCE_S)
    monkeypatch.setattr(stopping, "StopInStep", Due)


def values(ws, code):
    return [result.value for result in ws.run(code)]


def epoch(ws):
    (found,) = set(values(ws, "px.init().describe()['epoch']"))
    return found


@pytest.mark.parametrize("n_times", [4, pytest.param(50, marks=deep)])
def test_a_stop_in_a_training_loop_keeps_ranks_in_step(ws, patient, n_times):
    before = epoch(ws)
    for _ in range(n_times):
        assert stop(ws, LONG) == []
        assert len(set(values(ws, "n, W[0].item()"))) == 1
        assert epoch(ws) == before
        assert values(ws, "px.all_sum(1)") == ["4"] * 4


def test_a_time_limit_keeps_ranks_in_step(ws, patient):
    view = BegunNotices()
    with pytest.raises(TimeoutError):
        ws.run(LONG, timeout=1.0, view=view)
    assert not any(DIFFER in line for line in view.texts)
    assert len(set(values(ws, "n"))) == 1


def test_what_was_submitted_and_sent_is_completed(ws, patient):
    assert stop(ws, BOTH) == []
    # A message that was left would be received here.
    ws.run("if rank == 0: px.send(np.full(3, -1), 1)")
    ws.run("if rank == 1: got = px.recv((3,), 'int64', 0).tolist()")
    assert ws.pull("got", ranks=1) == [-1] * 3
    assert values(ws, "px.all_sum(1)") == ["4"] * 4


def test_what_the_cell_does_about_the_stop_is_not_held(ws, patient):
    code = "try:\n    " + LONG.replace("\n", "\n    ") + "\nfinally:\n    last = px.all_sum(n)"
    assert stop(ws, code) == []
    assert values(ws, "last == 4 * n") == ["True"] * 4


def test_a_rank_in_input_after_an_operation_is_not_held(ws, monkeypatch):
    monkeypatch.setattr(stopping, "STEP_S", 1e9)  # a stop that waits for no rank would have no end

    class AskedView(BegunNotices):
        """Has a prompt that nobody answers."""

        def ask(self, question):
            self.begun.update(range(4))
            return SimpleNamespace(poll=lambda timeout_s: None, close=lambda: None)

    code = "train(3)\nif rank == 1: input('who? ')\ntrain(10**7)"
    (line,) = stop(ws, code, AskedView())
    assert re.search(r"rank 1 (at|in|before) ", line), line
    assert values(ws, "px.all_sum(1)") == ["4"] * 4


def test_ranks_that_come_to_no_operation_are_named(ws, due_once_all_have_reported):
    code = "train(3)\nprint('begun', flush=True)\nwhile rank == 1: pass\ntrain(10**7)"
    (line,) = stop(ws, code, waiting=(0, 2, 3))
    assert re.fullmatch(
        r"ranks 0,2-3 stopped in all_sum #\d+, rank 1 at cell line 3 after all_sum #\d+: " + DIFFER,
        line,
    ), line
    assert values(ws, "px.all_sum(1)") == ["4"] * 4


def test_of_cells_without_operations_nothing_is_said(ws):
    assert stop(ws, "print('begun', flush=True)\ntime.sleep(600)") == []
    ws.run("px.all_sum(1)")  # in another cell
    assert stop(ws, "print('begun', flush=True)\nwhile True: pass") == []
