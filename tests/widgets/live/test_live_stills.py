"""The still pictures of live widgets: what moves is of now, and what is gone does not look alive."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import msgspec
import psutil
import pytest
from support.programs.restarting import wait_for
from support.promise import PATIENCE_S
from support.ranks.made_up import MadeUp, sample
from support.ranks.worlds import NASTY, make_trace, make_world

from phalanx.protocol import WorldTopology
from phalanx.widgets import Bandwidth, Monitor, StillPicture
from phalanx.widgets import Topology as TopologyWidget
from phalanx.widgets.live import topology as _live_topology
from phalanx.widgets.stills.svg import with_alarm
from phalanx.workspace import Workspace

_SVG = "{http://www.w3.org/2000/svg}"
_MOVES = "moves over tcp: rank 0 to rank 1 1 MB/s, rank 1 to rank 0 1 MB/s"
_GONE = "the supervisor of this workspace is gone, and its ranks with it; start anew"


def _world(*states: str) -> WorldTopology:
    return make_world(1, 2, tcp=True, states=states)


@pytest.fixture
def clock(monkeypatch):
    """What `time` is to the widget."""
    clock = SimpleNamespace(now_s=1000.0)
    clock.monotonic = lambda: clock.now_s
    clock.time = lambda: 1.7e9 + clock.now_s
    monkeypatch.setattr(_live_topology, "time", clock)
    return clock


@pytest.fixture
def made_up():
    return MadeUp(_world("busy"), make_trace(2))


@pytest.fixture
def widget(clock, made_up):
    made = TopologyWidget(made_up)
    yield made
    made.close()


def _move(widget, clock):
    """Have the ranks send each other 1 MB/s, and look on."""
    for number in range(1, 6):
        clock.now_s += 0.25
        moved = number * 250_000
        widget.workspace.new = (sample(number, at_s=number / 4, moved=moved),)
        widget.tick()
    return msgspec.json.decode(widget.frame)


def test_what_moves_is_on_the_still_while_somebody_watches_ranks_at_work(widget, clock):
    assert [link[:2] for link in _move(widget, clock)["links"]] == [[0, 1], [1, 0]]
    said = widget.still().text.splitlines()
    assert f"  {_MOVES}" in said
    assert "  in use: all_sum of 1 MiB: staged" in said


def test_nothing_moves_between_ranks_that_are_idle(widget, clock, made_up):
    _move(widget, clock)
    made_up.world = _world("idle")
    assert "moves" not in widget.still().text


def test_what_was_seen_minutes_ago_is_not_said_to_be_of_now(widget, clock, made_up):
    _move(widget, clock)
    clock.now_s += 3.0
    assert "moves" not in widget.still().text
    # Nor is what was left to be read of that time, at the first look after it.
    made_up.new = (sample(9, at_s=2.25, moved=9_000_000),)
    widget.tick()
    frame = msgspec.json.decode(widget.frame)
    assert (frame["links"], frame["arena"]) == ([], [0.0, 0.0])
    assert "moves" not in widget.still().text


def test_what_a_dead_rank_did_last_does_not_move(widget, clock, made_up):
    made_up.world = _world("busy", "dead")
    frame = _move(widget, clock)
    assert (frame["links"], frame["ranks"][1]["state"]) == ([], "dead")
    assert "moves" not in widget.still().text


# -- what is gone -----------------------------------------------------------------------------------


@pytest.fixture(params=[TopologyWidget, Monitor])
def either(request, made_up):
    made = request.param(made_up)
    yield made
    made.close()


def _alarms(picture: StillPicture) -> str:
    root = ET.fromstring(picture.svg)
    return " ".join(
        its.text or "" for its in root.iter(f"{_SVG}text") if its.get("class") == "px-alarm"
    )


def test_a_workspace_that_is_gone_or_silent_is_said_to_be(either, made_up):
    before = either.still()
    made_up.why = "waited 5 s for an answer of the supervisor"
    silent = either.still()
    assert silent.text == f"{before.text}\n  the workspace is silent: {made_up.why}"
    assert _alarms(silent) == f"the workspace is silent: {made_up.why}"
    made_up.why = ""
    assert either.still() == before
    made_up.why, made_up.is_running = _GONE, False
    gone = either.still()
    assert gone.text == f"{before.text}\n  the workspace has gone: {_GONE}"
    assert _alarms(gone) == f"the workspace has gone: {_GONE}"
    # Who clears away what has died does not end it.
    made_up.why, made_up.was_left = "this workspace was stopped", True
    assert either.still() == gone


def test_a_silent_workspace_that_is_to_be_shown_blocks_no_other_thread(either, made_up):
    is_asked, may_answer = threading.Event(), threading.Event()

    class Silent(MadeUp):
        def topology(self) -> WorldTopology:
            is_asked.set()
            assert may_answer.wait(PATIENCE_S)
            return super().topology()

    silent = Silent(_world("idle"), make_trace(2))
    showing = threading.Thread(target=setattr, args=(either, "workspace", silent))
    showing.start()
    try:
        assert is_asked.wait(PATIENCE_S)
        assert not either._looking.locked()
        either.tick()
        assert either.workspace is made_up
    finally:
        may_answer.set()
        showing.join()
    assert either.workspace is silent


def test_of_what_a_person_has_ended_the_last_picture_stays(either, made_up):
    before = either.still()
    made_up.why, made_up.is_running, made_up.was_left = "this workspace was stopped", False, True
    either.tick()
    assert msgspec.json.decode(either.frame)["status"] == "gone"
    assert either.still() == before
    either.workspace = MadeUp(_world("idle"), make_trace(2))
    either.workspace.why, either.workspace.is_running = _GONE, False
    assert either.still().text.endswith(f"the workspace has gone: {_GONE}")


def test_a_workspace_that_was_taken_over_has_not_gone(either, made_up):
    either.still()
    made_up.why = made_up.why_lost = "the workspace 'x' was taken over by process 7"
    made_up.is_running = False
    assert either.still().text.splitlines()[-1] == f"  {made_up.why}"


def test_the_file_hears_once_more_as_the_ranks_are_idle(either, made_up, monkeypatch):
    """The end of a cell is heard of here before its supervisor knows of all ranks."""
    kept: list[int] = []

    def show(number, state):
        made_up.world = _world(state)
        made_up.new = (sample(number, at_s=float(number), state=state),)
        either.tick()

    show(1, "busy")
    monkeypatch.setattr(either, "keep_still", lambda: kept.append(1))
    for number, state in enumerate(("busy", "idle", "idle", "busy"), start=2):
        show(number, state)
    assert len(kept) == 1


def test_the_file_hears_of_the_end_of_a_workspace(either, made_up, monkeypatch):
    made_up.new = (sample(1, at_s=1.0),)
    either.tick()
    kept: list[dict[str, float]] = []
    monkeypatch.setattr(either, "keep_still", lambda **how: kept.append(how))
    either.tick()
    assert kept == []
    made_up.why, made_up.is_running = _GONE, False
    for _ in range(3):
        either.tick()
    assert len(kept) == 1


def test_an_alarm_is_written_whole_and_within_the_card(made_up):
    picture = TopologyWidget(made_up).still()
    longer = with_alarm(picture, f"{NASTY} " + "why it has gone, " * 20)
    root = ET.fromstring(longer.svg)
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    texts = [its for its in root.iter(f"{_SVG}text") if its.get("class") == "px-alarm"]
    assert " ".join(its.text for its in texts).count("why it has gone,") == 20
    assert all(float(its.get("y")) < height - 6 for its in texts)
    assert len({its.get("y") for its in texts}) == len(texts) > 1
    assert max(len(its.text) for its in texts) * 12 * 0.56 <= width - 36
    (card,) = root.iterfind(f"{_SVG}rect[@class='px-card']")
    assert float(card.get("height")) == height - 1
    assert float(root.get("height")) / float(root.get("width")) == pytest.approx(height / width)
    assert "<script" not in longer.svg
    assert longer.svg.count("xmlns") == 1


@pytest.mark.slow
def test_a_supervisor_that_was_killed_is_named_live_and_on_the_stills():
    with Workspace.start(n=1, linger=0) as ws:
        made = [TopologyWidget(ws), Monitor(ws), Bandwidth(ws)]
        assert all("gone" not in widget.still().text for widget in made[:2])
        psutil.Process(psutil.Process(ws.topology().ranks[0].pid).ppid()).kill()
        wait_for(lambda: not ws.is_running)
        assert not ws.was_left
        for widget in made:
            widget.tick()
        for widget in made[:2]:
            assert f"  the workspace has gone: {_GONE}" in widget.still().text.splitlines()
    assert not ws.was_left  # nor does the process that clears it away
    for widget in made:  # what was said first stays
        widget.tick()
        frame = msgspec.json.decode(widget.frame)
        assert frame["status"] == "gone"
        assert "the supervisor of this workspace is gone" in frame["why"]
    with Workspace.start(n=1, linger=0) as ws:
        made.append(TopologyWidget(ws))
        before = made[-1].still()
    assert ws.was_left
    assert made[-1].still() == before
    for widget in made:
        widget.close()
