"""Live widgets as the kernel sees them: when they work, what they send, what they answer."""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import Any

import msgspec
import psutil
import pytest
from support.programs.restarting import wait_for
from support.promise import BOUND_S, PATIENCE_S
from support.ranks.cells import wait_idle
from support.ranks.worlds import NASTY, make_world

from phalanx.errors import CellError, DistributedError
from phalanx.protocol import RankInfo, WorldTopology
from phalanx.widgets import Topology as TopologyWidget
from phalanx.widgets.frames.topology import Timeline, world_of
from phalanx.widgets.text.operations import say_operations
from phalanx.workspace import Workspace

# -- what is sent -----------------------------------------------------------------------------------


def _one(state, detail="", pid=7) -> WorldTopology:
    world = make_world(1, 1)
    return msgspec.structs.replace(world, ranks=(RankInfo(0, 0, pid, state, detail=detail),))


def test_a_rank_is_in_a_collective_since_and_then_was():
    timeline = Timeline()
    timeline.take(_one("idle"), 100.0)
    timeline.take(_one("busy"), 101.0)
    timeline.take(_one("busy", "in all_sum #1"), 102.0)
    (rank,) = timeline.take(_one("busy", "in all_sum #1 at train.py:3"), 103.0).ranks
    assert (rank.state, rank.since, rank.last) == ("collective", 102.0, "")
    (rank,) = timeline.take(_one("busy", "in all_sum #2"), 104.0).ranks
    assert (rank.state, rank.since, rank.last) == ("collective", 104.0, "all_sum #1 at train.py:3")
    (rank,) = timeline.take(_one("idle"), 105.0).ranks
    assert (rank.state, rank.since, rank.last) == ("idle", 105.0, "all_sum #2")
    (rank,) = timeline.take(_one("idle", pid=8), 106.0).ranks
    assert rank.last == ""


def test_a_host_says_its_network_card_and_that_its_ranks_take_turns():
    world = make_world(1, 5)
    host = msgspec.structs.replace(world.hosts[0], address="10.0.0.1", device="eth7", cores=2)
    (said,) = world_of(msgspec.structs.replace(world, hosts=(host,))).hosts
    assert said.where == "10.0.0.1 on eth7"
    assert said.load == "5 ranks on 2 cores: 2.5 to each, they take turns"


def test_the_world_is_sent_in_short():
    world = world_of(make_world(2, 32))
    assert world.arenas == (tuple(range(32)), tuple(range(32, 64)))
    assert world.tcp == ((0, 32),)
    assert len(msgspec.json.encode(world)) < 2000


def test_names_from_outside_can_be_sent():
    world = msgspec.structs.replace(make_world(1, 1, name=NASTY), name=NASTY)
    assert b"\\u001b" not in msgspec.json.encode(world_of(world))
    assert Timeline().take(_one("dead", NASTY), 1.0).ranks[0].detail.isprintable()


# -- a real one -------------------------------------------------------------------------------------


def _frame(widget) -> dict[str, Any]:
    return msgspec.json.decode(widget.frame)


def _looked_at(widget) -> dict[str, Any]:
    """The frame of a page that goes on to look, as pages do: who says so once is forgotten in 6 s."""
    widget._on_message(widget, {"kind": "look", "view": "a"}, [])
    return _frame(widget)


@pytest.fixture(scope="module")
def shared():
    with Workspace.start(n=2, linger=0) as ws:
        widget = TopologyWidget(ws)
        yield widget
        widget.close()


def test_a_page_speaks_for_itself_from_its_first_word(shared):
    shared._repr_mimebundle_()
    shared._on_message(shared, {"kind": "look", "view": "a"}, [])
    assert set(shared._ticker._views) == {"a"}
    shared._on_message(shared, {"kind": "leave", "view": "a"}, [])
    wait_for(lambda: not shared._ticker.is_ticking)


def test_what_a_new_widget_shows(shared):
    frame, world = _frame(shared), msgspec.json.decode(shared.world)
    assert frame["status"] == "live"
    assert [rank["state"] for rank in frame["ranks"]] == ["idle", "idle"]
    assert all(rank["rss"] > 1 << 20 for rank in frame["ranks"])
    assert world["arenas"] == [[0, 1]]


def _ask(widget, **question):
    said: list[dict[str, Any]] = []
    widget.send = said.append
    widget._handle_custom_msg({"kind": "ask", "id": "7", **question}, [])
    wait_for(lambda: len(said) == 2)
    del widget.send
    ack, answer = said
    assert ack == {"kind": "ack", "id": "7"}
    assert answer["id"] == "7"
    return answer["ok"], answer["text"]


def test_questions(shared):
    is_ok, text = _ask(shared, action="stacks", rank=1)
    assert is_ok
    assert text
    assert _ask(shared, action="interrupt") == (True, "no cell runs: there is nothing to interrupt")
    assert _ask(shared, action="stacks", rank=5) == (
        False,
        "there is no rank 5: the ranks are 0 to 1",
    )
    assert _ask(shared, action="restart", rank=1)[0] is False  # it lives
    for question in ({"action": "stacks"}, {"action": "rm", "rank": 1}):
        is_ok, text = _ask(shared, **question)
        assert not is_ok
        assert text.startswith("nothing is known of")
    shared._handle_custom_msg("nonsense", [])


def test_the_last_operations_of_a_rank_are_told(shared):
    assert _ask(shared, action="operations", rank=1) == (
        True,
        "rank 1 has communicated nothing yet",
    )
    shared.workspace.run(
        "px.all_sum(np.ones(1 << 14))\n"
        "px.send(np.ones(2), 1) if rank == 0 else px.recv((2,), np.float64, 0)\n"
        "for _ in range(12): px.all_max(rank)"
    )
    is_ok, text = _ask(shared, action="operations", rank=1)
    lines = text.splitlines()
    assert is_ok
    assert len(lines) == 13
    assert lines[-1].startswith("and 2 before: ")
    text = say_operations(shared.workspace.trace(), 1, most=14)
    assert re.search(r"^all_sum #\d+, 128 KiB of float64 by \S+, \S+ [µm]?s", text, re.MULTILINE)
    assert re.search(r"^recv #1 from rank 0, 16 B of float64 by queue, .* ago$", text, re.MULTILINE)


def test_links_are_measured_when_asked(shared):
    assert msgspec.json.decode(shared.world)["measured"] == []
    is_ok, text = _ask(shared, action="links")
    assert (is_ok, text) == (True, "1 link measured, none slow or broken")
    (link,) = msgspec.json.decode(shared.world)["measured"]
    assert (link["a"], link["b"], link["state"]) == (0, 1, "ok")
    assert re.fullmatch(r"\S+ [µm]s, \S+ GB/s", link["words"])


def test_a_question_that_comes_too_late_is_dropped(shared):
    before = _frame(shared)["ranks"]
    late = {"kind": "ask", "id": "1", "action": "restart", "rank": 1, "force": True}
    shared._handle_custom_msg({**late, "until": time.time() - 1}, [])
    assert _ask(shared, action="stacks", rank=1, until=time.time() + 60)[0]
    shared.tick()
    assert [rank["pid"] for rank in _frame(shared)["ranks"]] == [rank["pid"] for rank in before]


def test_a_cell_runs_and_is_interrupted(shared):
    ws = shared.workspace
    errors: list[BaseException] = []

    def run():
        try:
            ws.run("import time\nwhile True: time.sleep(0.01)")
        except (CellError, KeyboardInterrupt) as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: {rank["state"] for rank in _looked_at(shared)["ranks"]} == {"busy"})
    assert _ask(shared, action="interrupt") == (True, "the ranks were asked to stop")
    thread.join(PATIENCE_S)
    assert len(errors) == 1
    wait_for(lambda: {rank["state"] for rank in _looked_at(shared)["ranks"]} == {"idle"})


def test_what_moves_is_told_by_link_while_it_does(tmp_path):
    is_seen = tmp_path / "seen"
    with Workspace.start(n=2, linger=0, transport="tcp") as ws:
        widget = TopologyWidget(ws)
        assert (_frame(widget)["links"], _frame(widget)["arena"]) == ([], [])
        code = (
            f"import os\nwhile not px.all_max(os.path.exists({str(is_seen)!r})):\n"
            "    px.all_sum(np.ones(1 << 16))"
        )
        cell = threading.Thread(target=ws.run, args=(code,))
        cell.start()

        def moves():
            widget.tick()
            return {tuple(link[:2]): link[2] > 1e5 for link in _frame(widget)["links"]}

        wait_for(lambda: moves() == {(0, 1): True, (1, 0): True})
        is_seen.touch()
        cell.join()
        wait_for(lambda: not moves())
        widget.close()


@pytest.fixture
def patient():
    """A widget of ranks that may be frozen for long."""
    with Workspace.start(n=2, linger=0, silence=60) as ws:
        made = TopologyWidget(ws)
        yield made
        made.close()


def test_a_measurement_tells_how_far_it_is_and_is_stopped(patient):
    widget = patient

    def measuring():
        widget.tick()
        return _frame(widget)["measuring"]

    assert widget.answer("stop_links", {}) == "no link is measured now"
    frozen = psutil.Process(widget.workspace.topology().ranks[1].pid)
    frozen.send_signal(signal.SIGSTOP)  # or it would be over before anybody could stop it
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(widget.answer("links", {})))
    thread.start()
    try:
        wait_for(lambda: measuring() == "0 of 1 link")
        assert widget.answer("stop_links", {}) == "the measurement was asked to stop"
        wait_idle(widget.workspace, 0)  # it was stopped: the other one cannot end the measurement
    finally:
        frozen.send_signal(signal.SIGCONT)
    thread.join(PATIENCE_S)
    assert said == ["stopped; what was measured until then is not kept"]
    assert measuring() == ""
    assert widget.answer("links", {}) == "1 link measured, none slow or broken"
    # On the still it is told as well, and forgotten with the process that it was measured of.
    assert "1 link measured, none slow or broken" in widget.still().text
    widget.workspace.restart(1, force=True)
    widget.tick()
    assert msgspec.json.decode(widget.world)["measured"] == []
    assert "measured" not in widget.still().text


@pytest.mark.promise
def test_a_dead_rank_is_named_and_replaced(shared, tmp_path):
    is_dead = tmp_path / "dead"
    # Rank 0 comes once rank 1 is known to be dead, which waits for it until then; both are asked,
    # or nobody would come.
    code = (
        "import os, time\n"
        f"while rank == 0 and not os.path.exists({str(is_dead)!r}): time.sleep(0.01)\n"
        "px.all_gather(rank)"
    )

    def run():
        with pytest.raises(DistributedError):
            shared.workspace.run(code, ranks=[0, 1])

    thread = threading.Thread(target=run)
    thread.start()
    operations = {"action": "operations", "rank": 1}
    wait_for(lambda: _ask(shared, **operations)[1].startswith("all_gather"))
    assert ", runs for " in _ask(shared, **operations)[1]
    psutil.Process(_frame(shared)["ranks"][1]["pid"]).kill()
    wait_for(lambda: _looked_at(shared)["ranks"][1]["state"] == "dead", BOUND_S)
    is_dead.touch()
    last, *_ = _ask(shared, **operations)[1].splitlines()
    assert last.endswith(", had not ended when the rank died: the last rank had not come")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert "SIGKILL" in _frame(shared)["ranks"][1]["detail"]
    assert _ask(shared, action="restart", rank=1) == (True, "rank 1 is new; rank 0 has all it had")
    wait_for(lambda: _looked_at(shared)["ranks"][1]["state"] == "idle")
