"""What a replaced rank begins with: another rank's names, the cells of every start."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psutil
import pytest
from support.inside import engine_of, engines, has_replaced, is_running, replace_step, root_client
from support.programs.restarting import Notices, assert_sound, kill, pids, values
from support.promise import PATIENCE_S, within
from support.runs.tiers import deep
from support.waiting import wait_until

from phalanx.errors import CellError, RankFailure
from phalanx.supervisor.root.replacement import DEATHS_WITHIN_S, MOST_DEATHS, Deaths
from phalanx.workspace import Workspace
from phalanx.workspace.output.notices import say_died, say_returned


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
    wait_until(lambda: has_replaced(ws), "a new rank has come")


def test_names_are_copied_and_what_cannot_be_is_named(ws, notices):
    view = notices(ws)
    ws.run(COPIED)
    assert ws.restart([1, 2], force=True, copy_from=0) == (1, 2)
    (line,) = [text for text in view.texts if "names of rank 0" in text]
    assert line.startswith("ranks 1-2 have ")
    assert "lock (cannot pickle '_thread.lock' object)" in line
    assert "gen (cannot pickle 'generator' object)" in line
    assert "bad, worse (invalid literal for int() with base 10: 'x')" in line
    assert "leaves (leaves there)" in line
    assert "sealed (leaves here)" in line
    assert values(ws, "'bad' in globals() or 'worse' in globals()", ranks=[1, 2]) == ["False"] * 2
    # What two names share on rank 0 they share on the others.
    code = "alias is shared, holder['big'] is big, holder['shared'] is shared, type(b) is B, kin.f is f, kin.v"
    assert values(ws, code, ranks=[1, 2]) == ["(True, True, True, True, True, 'a/9')"] * 2
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
shared = [1]
alias = shared
holder = {"big": big, "shared": shared}
class Kin:
    def __setstate__(self, state):  # it needs names that come before
        self.__dict__.update(state, v=p.join('a', str(f(4))))
kin = Kin()
kin.f = f
class Bad:
    def __reduce__(self): return int, ("x",)
bad = Bad()
class Leaves:
    def __reduce__(self): return exec, ("raise SystemExit('leaves there')",)
class Sealed:
    def __reduce__(self): raise SystemExit("leaves here")
leaves, sealed = Leaves(), Sealed()
worse = [shared, bad]
"""


@pytest.mark.deep
def test_a_model_and_its_optimizer_stay_together_so_that_the_new_rank_trains(own):
    pytest.importorskip("torch")
    own.run(MODEL, ranks=[0])
    own.restart(1, force=True, copy_from=0)
    own.run(STEP)
    assert values(own, "before != model.weight.tolist()") == ["True", "True"]
    assert own.pull("after")[0] == own.pull("after")[1]


MODEL = """import torch
torch.manual_seed(1)
model = torch.nn.Linear(3, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.1)
"""
STEP = """import torch
before = model.weight.tolist()
model(torch.ones(4, 3)).sum().backward()
opt.step()
after = model.weight.tolist()
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


def test_a_name_that_a_cell_has_bound_is_in_no_way_of_recovery(ws):
    ws.run("kept = rank + 5; get_ipython = lambda: None")
    try:
        with pytest.raises(CellError):
            ws.run("if rank == 0: raise ValueError\npx.all_sum(1)")
        assert values(ws, "kept") == ["5", "6", "7"]
        assert_sound(ws)
        ws.restart(1, force=True, copy_from=0)
        assert values(ws, "kept") == ["5", "5", "7"]
        assert_sound(ws)
    finally:
        ws.run("del get_ipython", ranks=[0, 2])


def test_deaths_of_a_rank_count_within_their_time():
    deaths = Deaths()
    apart_s = DEATHS_WITHIN_S / (MOST_DEATHS - 1)
    assert [deaths.add(0, now * (apart_s + 1)) for now in range(20)] == [""] * 20
    said = [deaths.add(1, now * apart_s) for now in range(MOST_DEATHS)]
    assert said[:-1] == [""] * (MOST_DEATHS - 1)
    assert said[-1].startswith(f"it has died {MOST_DEATHS} times in {DEATHS_WITHIN_S:.0f} s")
    deaths.forget([1])
    assert deaths.add(1, DEATHS_WITHIN_S) == ""


@deep
def test_a_rank_that_dies_again_and_again_is_left_dead(renewed, notices):
    ws = renewed
    ws.restart([1], force=True)  # the deaths of other tests do not count
    for _ in range(MOST_DEATHS - 1):
        before = engines(ws)[1]
        os.kill(pids(ws)[1], signal.SIGKILL)
        wait_until(lambda before=before: engines(ws)[1] != before, "a new rank")
    kill(ws, 1)
    view = notices(ws)
    assert values(ws, "rank", view=view) == ["0", "2"]
    (text,) = [text for text in view.texts if text.startswith("this cell runs without rank 1")]
    assert f"died {MOST_DEATHS} times in" in text
    assert "`%distributed restart 1` replaces it" in text
    (death,) = root_client(ws).cell_status().deaths
    assert f"died {MOST_DEATHS} times in" in say_died(death)
    root_client(ws).restart((1,), force=False)
    *_, returned = root_client(ws).cell_status().returns  # as who attaches now is told
    assert say_returned(returned).startswith("rank 1 died at ")
    assert "unasked" not in say_returned(returned)
    assert_sound(ws)
    os.kill(pids(ws)[1], signal.SIGKILL)
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


def test_a_stop_ends_the_wait_for_a_new_rank_that_does_not_answer(breakable):
    ws = breakable
    root_client(ws).restart((1,), force=True)
    wait_newcomer(ws)
    new = psutil.Process(pids(ws)[1])
    new.suspend()
    try:

        def stop_when_it_waits():
            wait_until(
                lambda: is_running(ws) and ws.topology().ranks[1].state == "busy",
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


@contextlib.contextmanager
def interrupted_restart(ws, rank):
    """Restart a rank with the names of rank 0, and stop the wait before the new rank is up.

    The new rank is suspended until the end of the block.
    """
    old, new = pids(ws)[rank], []

    def stop_the_wait():
        wait_until(lambda: pids(ws)[rank] != old, "the new rank is there")
        new.append(psutil.Process(pids(ws)[rank]))
        new[0].suspend()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_the_wait)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ws.restart(rank, force=True, copy_from=0)
        thread.join()
        yield
    finally:
        new[0].resume()


def test_a_restart_whose_wait_was_stopped_goes_on_and_copies_names(ws, notices):
    ws.run("kept = rank + 5")
    with interrupted_restart(ws, 1):
        pass
    wait_newcomer(ws)
    view = notices(ws)
    assert values(ws, "kept", view=view) == ["5", "5", "7"]
    assert any(text.startswith("rank 1 has ") for text in view.texts)
    assert not any(text.startswith("rank 1 is new") for text in view.texts)
    assert_sound(ws)


def test_a_restart_goes_on_for_a_client_that_attaches_meanwhile():
    with Workspace.start(n=2, linger=60) as ws:
        ws.run("kept = rank + 5")
        ws.run("every = 1", every_start=True)
        with interrupted_restart(ws, 1):
            second = Workspace.attach(ws.name, take=True)
        try:
            wait_newcomer(second)
            assert values(second, "(kept, every)") == ["(5, 1)"] * 2
            assert_sound(second)
        finally:
            second.stop()


def test_a_client_sends_nothing_to_new_ranks_that_begin_with_nothing(ws, monkeypatch):
    sent = []
    replace_step(
        monkeypatch, ws, "send",
        lambda send: lambda sock, frames: sent.append(frames[0]) or send(sock, frames),
    )  # fmt: skip
    ws.restart(1, force=True)
    assert engine_of(ws, 1) not in sent
    assert values(ws, "rank") == ["0", "1", "2"]
