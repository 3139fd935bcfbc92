"""The live Bandwidth without a browser: what it sends of a sweep, and what its buttons do."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext

import pytest
from support.programs.restarting import wait_for
from support.ranks.worlds import NASTY, make_sweep, make_world

from phalanx.distributed.bench import unknown_limit
from phalanx.errors import DistributedError
from phalanx.protocol import Limit, SweepProgress, SweepRun
from phalanx.widgets import Bandwidth, SweepRequest

COPY = Limit("memory copy", "arena", 25.0, 1 << 30, 0.2, "one core")


UNKNOWN = unknown_limit("a", "b")  # is said, and not drawn


class Sweep:
    """A workspace's, whose points come when the test says so."""

    def __init__(self, op="all_sum", n=4):
        self.op, self._all = op, make_sweep(op, n)
        self.points = ()
        self.state = "waiting"
        self.go = threading.Semaphore(0)
        self.is_stopped = False
        self.failure = None

    @property
    def progress(self):
        return SweepProgress(self.state, len(self.points), len(self._all), 8, 1.0, 2.0)

    @property
    def run(self):
        return SweepRun(
            self.op, "float32", 4, self.state, "2026-11-21T10:00:00", self.points, (COPY, UNKNOWN)
        )

    def ends_at_ctrl_c(self):
        return nullcontext()

    def __iter__(self):
        self.state = "measuring"
        for m in self._all:
            self.go.acquire()
            if self.failure:
                self.state = "failed"
                raise self.failure
            if self.is_stopped:
                self.state = "stopped"
                return
            self.points = (*self.points, m)
            yield m
        self.state = "done"

    def stop(self):
        self.is_stopped = True
        self.go.release()


class Workspace:
    name, size, sweeps, is_running, was_left = "w", 4, (), True, True

    def __init__(self):
        self.made = []
        self.states = ("idle",) * 4

    def bench(self, op="all_sum", **options):
        if op == "all_som":
            msg = "there is no sweep of 'all_som'; did you mean all_sum?"
            raise ValueError(msg)
        self.asked = options
        self.made.append(Sweep(op))
        return self.made[-1]

    def topology(self):
        if self.is_running:
            return make_world(1, 4, states=self.states)
        msg = "this workspace was stopped"
        raise DistributedError(msg)


@pytest.fixture
def ws():
    return Workspace()


@pytest.fixture
def widget(ws):
    made = Bandwidth(ws)
    yield made
    for sweep in ws.made:
        sweep.stop()
    made.close()


def frame(widget):
    widget.tick()
    return json.loads(widget.frame)


def ask(widget, action, **args):
    return widget.answer(action, args)


def test_nothing_is_measured_yet(widget):
    seen = frame(widget)
    assert (seen["state"], seen["run"], seen["status"]) == ("none", None, "live")
    assert "all_sum" in seen["ops"]
    assert "float32" in seen["dtypes"]
    assert "no measurements yet" in widget.still().svg
    with pytest.raises(ValueError, match="nothing is measured yet"):
        ask(widget, "csv")


FORM = {"op": "all_sum", "begin": "8", "end": "1M", "factor": 4, "dtype": "float32", "iters": 5}


def test_points_appear_as_they_are_measured(widget, ws):
    assert ask(widget, "run", **FORM) == "measuring"
    (sweep,) = ws.made
    assert ws.asked == {
        "begin": 8,
        "end": 1 << 20,
        "factor": 4,
        "dtype": "float32",
        "iterations": 5,
        "wait": False,
    }
    for n in range(1, 5):
        sweep.go.release()
        wait_for(lambda n=n: len(sweep.points) == n)
        seen = frame(widget)
        assert len(seen["run"]["points"]) == seen["n_done"] == n
        assert seen["n_points"] == 4
    wait_for(lambda: sweep.state == "done")
    seen = frame(widget)
    assert seen["state"] == "done"
    assert seen["fit"][0] == pytest.approx([8, 1.5 * 8 / 3001, 3.001], rel=1e-3)
    assert [(its["name"], its["gbs"]) for its in seen["limits"]] == [("memory copy", 25.0)]
    assert "80 timed calls, no wrong element" in seen["words"]
    assert ask(widget, "csv").count("\n") == 5
    assert json.loads(ask(widget, "json"))["state"] == "done"
    assert "wire between hosts not known" in widget.still().text
    assert "all_sum" in widget.still().text


def test_an_unchanged_frame_is_sent_again_only_now_and_then(widget):
    first = frame(widget)
    assert frame(widget) == first
    widget._sent_s -= 3.0
    assert frame(widget)["now"] > first["now"]


def test_stop_keeps_what_came(widget, ws):
    ask(widget, "run", **FORM)
    (sweep,) = ws.made
    sweep.go.release()
    wait_for(lambda: sweep.points)
    assert ask(widget, "stop") == "stopped"
    wait_for(lambda: frame(widget)["state"] == "stopped")
    assert len(frame(widget)["run"]["points"]) == 1


def test_one_at_a_time(widget, ws):
    ask(widget, "run", **FORM)
    with pytest.raises(DistributedError, match="not over yet; stop it first"):
        ask(widget, "run", **FORM)


def test_the_sweep_before_is_laid_over_the_next(widget, ws):
    for op in ("all_sum", "all_sum", "all_max"):
        ask(widget, "run", **{**FORM, "op": op})
        sweep = ws.made[-1]
        sweep.go.release(4)
        wait_for(lambda sweep=sweep: sweep.state == "done")
        seen = frame(widget)
        assert len(seen["earlier"]) == (len(ws.made) == 2)
    assert len(widget._runs) == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"op": "all_som"}, "did you mean all_sum"), ({"begin": "1Q"}, "is not a size"),
     ({"factor": None}, "this is no sweep: Expected `int`"), ({"iters": "many"}, "this is no sweep"),
     ({"op": ["x"]}, "this is no sweep")],
)  # fmt: skip
def test_a_form_that_makes_no_sense_is_told(widget, ws, wrong, words):
    with pytest.raises(ValueError, match=words):
        ask(widget, "run", **{**FORM, **wrong})
    assert frame(widget)["state"] == "none"


def fail(widget, ws, words):
    """Run a sweep that is refused, until the page is told."""
    ask(widget, "run", **FORM)
    ws.made[-1].failure = DistributedError(words)
    ws.made[-1].go.release()
    wait_for(lambda: words in frame(widget)["error"])


def test_a_failure_is_shown_and_another_sweep_takes_it_away(widget, ws):
    fail(widget, ws, "a cell runs already on ranks 0-3: `x`; wait for it")
    ask(widget, "run", **FORM)
    assert frame(widget)["error"] == ""


def test_that_ranks_were_busy_is_not_told_once_they_are_free(widget, ws):
    ws.states = ("busy",) * 4
    fail(widget, ws, "a cell runs already on ranks 0-3")
    assert frame(widget)["error"]
    ws.states = ("idle",) * 4
    assert frame(widget)["error"] == ""
    fail(widget, ws, "no shared memory is left")  # what is no matter of being free stays
    assert "no shared memory" in frame(widget)["error"]


def test_ranks_that_are_gone_and_come_back(widget, ws):
    ws.is_running = False
    assert frame(widget)["why"] == "this workspace was stopped"
    assert frame(widget)["status"] == "gone"
    widget.workspace = Workspace()
    assert frame(widget)["status"] == "live"


GUARDED = {
    "_sweep", "_workspace", "_runs", "_form", "_error", "_why_gone", "_waits_for_ranks", "_sent_s",
}  # fmt: skip


class WatchedBandwidth(Bandwidth):
    """Records the fields that change while nobody holds the lock."""

    changed_without_lock: set[str] | None = None

    def __setattr__(self, name, value):
        if self.changed_without_lock is not None and name in GUARDED and not self._looking.locked():
            self.changed_without_lock.add(name)
        super().__setattr__(name, value)


def test_fields_change_under_the_lock_only(ws):
    widget = WatchedBandwidth(ws)
    widget.changed_without_lock = set()
    with pytest.raises(ValueError, match="did you mean"):
        ask(widget, "run", **{**FORM, "op": "all_som"})
    fail(widget, ws, "a cell runs already")
    widget.workspace = Workspace()
    assert widget.changed_without_lock == set()
    widget.close()


def test_what_ranks_say_is_cleaned(ws):
    run = SweepRun(NASTY, "float32", 4, "failed", NASTY, tuple(make_sweep(NASTY, 2)), (COPY,))
    widget = Bandwidth(ws, earlier=[run])
    assert "\x1b" not in frame(widget)["title"]
    assert frame(widget)["state"] == "failed"
    widget.close()


def test_closed_it_stops_its_sweep(ws):
    widget = Bandwidth(ws)
    ask(widget, "run", **FORM)
    wait_for(lambda: ws.made[0].state == "measuring")
    widget.close()
    wait_for(lambda: ws.made[0].state == "stopped")


def test_asked_for_in_a_cell(widget, ws):
    sweep = widget.begin(SweepRequest(end="1K"))
    sweep.go.release(4)
    assert widget.follow(sweep).state == "done"
    assert "image/svg+xml" in widget._repr_mimebundle_()[0]
