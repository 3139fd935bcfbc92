"""What a replaced rank begins with: another rank's names, the cells of every start."""

from __future__ import annotations

import os
import signal
import threading

import psutil
import pytest
from restarting import Notices, assert_sound, kill, pids, values
from support.promise import PATIENCE_S, within
from support.waiting import wait_until

from phalanx.errors import CellError, RankFailure
from phalanx.workspace import Workspace


@pytest.fixture
def notices(monkeypatch):
    """Collect the notices of a workspace: call it once."""

    def collect(ws):
        view = Notices()
        monkeypatch.setattr(ws, "make_view", lambda: view)
        return view

    return collect


@pytest.fixture(scope="module")
def renewed():
    """Three ranks that are replaced as soon as they die."""
    with Workspace.start(n=3, linger=0, auto_restart=True) as workspace:
        yield workspace


def wait_newcomer(ws):
    wait_until(lambda: ws._runner._newcomers, "a new rank has come")


def test_names_are_copied_and_what_cannot_be_is_named(ws, notices):
    view = notices(ws)
    ws.run(COPIED)
    assert ws.restart([1, 2], force=True, copy_from=0) == (1, 2)
    (line,) = [text for text in view.texts if "names of rank 0" in text]
    assert line.startswith("ranks 1-2 have ")
    assert "lock (cannot pickle '_thread.lock' object)" in line
    assert "gen (cannot pickle 'generator' object)" in line
    code = (
        "' '.join(map(str, (kept, f(1), b.v, B().v, isinstance(b, B), isinstance(b, A), g(3), fac(5), d, D() == D(1),"
        " float(big.sum()), big.flags.writeable, p.join('a', 'b'), f.__globals__ is globals(),"
        " 'lock' in globals(), '_hidden' in globals())))"
    )
    expected = "'5 6 9 9 True True 8 120 D(x=4) True 499999500000.0 True a/b True False False'"
    assert values(ws, code, ranks=[1, 2]) == [expected] * 2
    assert values(ws, "rank") == ["0", "1", "2"]
    assert_sound(ws)


COPIED = """kept = 5
_hidden = 1
import threading, os.path as p
from dataclasses import dataclass
lock = threading.Lock()
gen = (i for i in range(3))
big = np.arange(1_000_000.).reshape(1000, -1)
def f(x): return x + kept
class A:
    def __init__(self): self.v = 3
class B(A):
    def __init__(self):
        super().__init__()
        self.v = f(4)
b = B()
g = lambda q: f(q)
@dataclass
class D:
    x: int = 1
d = D(4)
def outer():
    def inner(k): return 1 if k == 0 else k * inner(k - 1)
    return inner
fac = outer()
"""


def test_cells_of_every_start_run_on_the_new_rank_in_their_order():
    with Workspace.start(n=2) as ws:
        ws.run("order = [1]", every_start=True)
        ws.run("order.append(2)", every_start=True)
        ws.run("only_here = rank", ranks=[0], every_start=True)
        ws.run("order = [1]", every_start=True)  # again: now it is the last
        ws.run("order.append(3)")
        kill(ws, 1)
        with pytest.raises(CellError, match="order"):
            ws.restart()
        assert values(ws, "(order, 'only_here' in globals())", ranks=[1]) == ["([1], False)"]
        kill(ws, 1)
        ws.restart(init=False)
        assert values(ws, "'order' in globals()", ranks=[1]) == ["False"]
        assert_sound(ws)


def test_a_value_that_is_fetched_does_not_swallow_that_a_rank_is_new(renewed, notices):
    view = notices(renewed)
    os.kill(pids(renewed)[1], signal.SIGKILL)
    wait_newcomer(renewed)
    assert renewed.pull("rank") == [0, 1, 2]
    assert [text[:13] for text in view.texts] == ["rank 1 is new"]


def test_auto_restart_replaces_a_rank_and_says_so(renewed, notices):
    ws, view = renewed, Notices()
    ws.run("kept = rank\nevery = 1", every_start=True)
    with pytest.raises(RankFailure):
        ws.run("import os\nif rank == 1: os.kill(os.getpid(), 9)\npx.all_sum(1)", view=view)
    assert "rank 1 was killed by signal 9 (SIGKILL); it is being replaced" in view.texts
    view = notices(ws)
    assert_sound(ws)
    assert any(text.startswith("rank 1 is new, without") for text in view.texts)
    assert values(ws, "kept") == ["0", "1", "2"]
    os.kill(pids(ws)[2], signal.SIGKILL)  # between cells
    wait_newcomer(ws)
    assert_sound(ws)


def test_names_are_not_copied_while_the_world_cannot_stand(breakable, notices):
    ws = breakable
    view = notices(ws)
    ws.run("kept = 1")
    kill(ws, 0, 1)
    ws.restart(1, copy_from=0)
    assert any("rank 1 got nothing of rank 0: rank 0" in text for text in view.texts)
    ws.restart()
    assert_sound(ws)


def test_a_missing_name_is_told_without_frames_of_others(ws):
    with pytest.raises(NameError, match="name 'nowhere' is not defined") as caught:
        ws.pull("nowhere")
    assert caught.value._render_traceback_() == [
        "ranks 0-2:",
        "NameError: name 'nowhere' is not defined",
    ]


def test_a_stop_ends_the_wait_for_a_new_rank_that_does_not_answer(breakable):
    ws = breakable
    ws._root.restart((1,), force=True)
    wait_newcomer(ws)
    new = psutil.Process(pids(ws)[1])
    new.suspend()
    try:

        def stop_when_it_waits():
            wait_until(
                lambda: ws._runner.is_running and ws.topology().ranks[1].state == "busy",
                "the cell waits for rank 1",
            )
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=stop_when_it_waits)
        thread.start()
        with within(PATIENCE_S), pytest.raises(KeyboardInterrupt):
            ws.run("1")
        thread.join()
    finally:
        new.resume()
    assert_sound(ws)
