"""How messages between a page and the widgets of ranks are passed on, without any process."""

from __future__ import annotations

import json
from types import SimpleNamespace

import ipywidgets
import pytest

from phalanx.workspace.connection import widget_relay
from phalanx.workspace.connection.widget_relay import MOST_WAITING, WidgetRelay

WIDGET = "jupyter.widget"


class Room:
    """A relay between a page and ranks; what it sends to each is kept."""

    def __init__(self) -> None:
        self.to_page: list[tuple[str, dict, str]] = []  # kind, content, message that it answers
        self.to_ranks: list[tuple[int, str, dict, str]] = []
        self.told: list[str] = []
        self.comms: dict = {}
        self.kernel = SimpleNamespace(
            session=self,
            iopub_socket=None,
            comm_manager=SimpleNamespace(comms=self.comms),
            get_parent=lambda channel: {"header": {"msg_id": "the cell"}},
        )
        self.relay: WidgetRelay

    def send(self, _socket, kind, content, *, parent, metadata, buffers, ident):
        self.to_page.append((kind, content, parent["msg_id"]))

    def open(self, comm_id: str, rank: int = 1, target: str = WIDGET, **state) -> None:
        content = {"comm_id": comm_id, "target_name": target, "data": {"state": state}}
        self.from_rank(rank, "comm_open", content)

    def from_rank(
        self, rank: int, kind: str, content: dict, cause: str = "", buffers: tuple = ()
    ) -> None:
        message = {
            "header": {"msg_type": kind},
            "parent_header": {"msg_id": cause},
            "content": content,
            "buffers": list(buffers),
        }
        self.relay.on_published(rank, "a cell", message)

    def end(self, place: int) -> None:
        """Let the rank end the message that was sent at this place."""
        rank, _, _, cause = self.to_ranks[place]
        self.from_rank(rank, "status", {"execution_state": "idle"}, cause)

    def page(self, comm_id: str, name: str, kind: str = "comm_msg", **data) -> None:
        """Let the page send a message; ``name`` is its id."""
        content = {"comm_id": comm_id, "data": data}
        message = {"header": {"msg_id": name, "msg_type": kind}, "content": content, "buffers": []}
        comm = self.comms[comm_id]
        if kind == "comm_close":
            del self.comms[comm_id]  # as the kernel's comm manager does
            comm.handle_close(message)
        else:
            comm.handle_msg(message)

    def move(self, comm_id: str, name: str, **state) -> None:
        self.page(comm_id, name, method="update", state=state, buffer_paths=[])

    def states(self) -> list[dict]:
        return [content["data"].get("state") for _, _, content, _ in self.to_ranks]

    @property
    def known(self) -> set:
        """The widgets that ipywidgets knows."""
        return set(ipywidgets.widgets.widget._instances)


@pytest.fixture
def room(monkeypatch):
    its = Room()
    monkeypatch.setattr(widget_relay, "notebook_kernel", lambda: its.kernel)
    its.relay = WidgetRelay(
        lambda rank, kind, content, name, buffers: its.to_ranks.append((rank, kind, content, name)),
        lambda rank, cell, text: its.told.append(f"{rank} {cell}: {text}"),
    )
    yield its
    its.relay.close()


def test_moves_that_wait_become_one_and_each_name_is_answered_as_the_page_expects(room):
    room.open("a")
    room.move("a", "m1", value=1)
    room.move("a", "m2", value=2, step=5)
    room.move("a", "m3", value=3)
    room.move("a", "m4", value=4, min=0)
    assert room.states() == [{"value": 1}]
    room.end(0)
    assert room.states()[1:] == [{"value": 4, "step": 5, "min": 0}]
    data = {"method": "echo_update", "state": {"value": 4, "step": 5, "min": 0}, "buffer_paths": []}
    room.from_rank(1, "comm_msg", {"comm_id": "a", "data": data}, room.to_ranks[1][3])
    answers = {name: content["data"]["state"] for _, content, name in room.to_page[1:]}
    assert answers == {"m4": {"value": 4, "min": 0}, "m2": {"step": 5}}


def test_arrays_deep_in_a_state_are_sent_as_buffers_and_kept_in_the_state(room):
    """A plot of plotly has its arrays so."""
    state = {"traces": [{"x": {"dtype": "int8"}}]}
    data = {"state": state, "buffer_paths": [["traces", 0, "x", "value"]]}
    content = {"comm_id": "a", "target_name": WIDGET, "data": data}
    room.from_rank(1, "comm_open", content, buffers=(memoryview(b"abc"),))
    assert json.loads(json.dumps(room.to_page[0][1])) == content
    assert bytes(room.comms["a"].get_state()["traces"][0]["x"]["value"]) == b"abc"


def test_clicks_keep_their_order_and_too_many_are_dropped_with_a_line(room):
    room.open("a")
    room.move("a", "m", value=1)
    room.move("a", "m", value=2)
    for number in range(MOST_WAITING + 9):
        room.page("a", f"c{number}", method="custom", content=number)
    room.move("a", "m", value=3)
    for place in range(MOST_WAITING + 1):
        room.end(place)
    clicks = [content["data"]["content"] for _, _, content, _ in room.to_ranks[2:-1]]
    assert clicks == list(range(11, MOST_WAITING + 9))
    assert [room.states()[place] for place in (1, -1)] == [{"value": 2}, {"value": 3}]
    (line,) = room.told
    assert line.startswith("1 a cell: phalanx: rank 1 is busy: more than 256 messages wait")


def test_moves_between_dropped_clicks_become_one(room):
    room.open("a")
    room.move("a", "m", value=-1)
    for number in range(2 * MOST_WAITING):
        room.move("a", "m", value=number)
        room.page("a", "c", method="custom", content=number)
    room.end(0)
    assert room.states()[1]["value"] == 2 * MOST_WAITING - MOST_WAITING // 2
    assert len(room.told) == 1


def test_a_comm_that_the_page_closes_is_freed_and_the_rank_told_after_what_waits(room):
    before = room.known
    room.open("a")
    room.move("a", "m1", value=1)
    room.move("a", "m2", value=2)
    room.page("a", "m3", "comm_close")
    assert (room.comms, room.known) == ({}, before)
    room.end(0)
    room.end(1)
    assert [kind for _, kind, _, _ in room.to_ranks] == ["comm_msg", "comm_msg", "comm_close"]
    room.end(2)
    assert room.relay.running() == {}
    n_sent = len(room.to_page)
    room.from_rank(1, "comm_msg", {"comm_id": "a", "data": {"method": "update", "state": {}}})
    assert len(room.to_page) == n_sent


def test_a_later_end_of_the_same_rank_frees_a_widget_whose_end_was_lost(room):
    for name, rank in (("a", 1), ("b", 1), ("c", 0)):
        room.open(name, rank)
        room.move(name, "m1", value=1)
        room.move(name, "m2", value=2)
    assert len(room.to_ranks) == 3
    room.end(1)
    assert room.states()[3:] == [{"value": 2}, {"value": 2}]
    room.relay.on_passed(0, room.relay.newest)
    assert len(room.to_ranks) == 6


def test_the_oldest_callback_of_each_rank_is_the_one_to_stop(room):
    for name, rank in (("a", 1), ("b", 1), ("c", 0)):
        room.open(name, rank)
        room.move(name, "m", value=1)
    first, second, third = (name for _, _, _, name in room.to_ranks)
    assert room.relay.running() == {1: first, 0: third}
    room.end(0)
    assert room.relay.running() == {1: second, 0: third}


def test_widgets_of_a_dead_rank_stay_on_the_page_disabled(room):
    before = room.known
    room.open("slider", disabled=False, value=5)
    room.open("plot", data=[1])
    room.open("other", target="mine")
    room.open("alive", rank=0, disabled=False)
    room.move("slider", "m", value=6)
    room.move("slider", "m", value=7)
    kept, n_sent = room.comms["slider"], len(room.to_page)
    room.relay.on_lost(1)
    closing = [(kind, content["comm_id"]) for kind, content, _ in room.to_page[n_sent:]]
    assert closing == [("comm_msg", "slider"), ("comm_close", "other")]
    assert room.to_page[n_sent][1]["data"]["state"] == {"disabled": True}
    assert (set(room.comms), room.known - before) == ({"alive"}, {"alive"})
    room.end(0)
    kept.handle_msg({"header": {"msg_type": "comm_msg", "msg_id": "m"}, "content": {}})
    assert len(room.to_ranks) == 1
