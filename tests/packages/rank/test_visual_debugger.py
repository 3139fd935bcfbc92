"""The visual debugger of a rank, and the client's half, without processes."""

from __future__ import annotations

import json
import queue
import sys

import pytest

from phalanx.protocol import MOST_DAP_NBYTES, AskDebugger
from phalanx.rank.debugging.visual_debugger import VisualDebugger
from phalanx.workspace import RankDebuggers

REQUEST = {"type": "request", "seq": 7, "command": "initialize", "arguments": {}}


def test_nothing_is_loaded_for_a_client_that_never_debugged(monkeypatch):
    monkeypatch.setitem(sys.modules, "debugpy.server.api", None)
    said = queue.SimpleQueue()
    VisualDebugger(None, said.put).take(b"")
    assert said.empty()


def test_a_rank_without_debugpy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "debugpy.server.api", None)
    said = queue.SimpleQueue()
    debugger = VisualDebugger(None, said.put)
    for _ in range(2):
        debugger.take(json.dumps(REQUEST).encode())
        answer = json.loads(said.get(timeout=20))
        assert (answer["request_seq"], answer["success"]) == (7, False)
        assert answer["message"].endswith("pip install debugpy")
    debugger.begin()
    assert not debugger.is_stopped
    assert sys.gettrace() is None or "pydev" not in repr(sys.gettrace())


class TestClient:
    """What the client asks ends with an answer, or with the rank."""

    @pytest.fixture
    def sent(self):
        return []

    @pytest.fixture
    def debuggers(self, sent):
        self.lost = set()
        return RankDebuggers(self.lost, lambda rank, order: sent.append((rank, order)))

    def test_an_answer_comes_to_its_question(self, debuggers, sent):
        answers = [debuggers.ask(rank, "threads") for rank in range(2)]
        (_, first), (_, second) = sent
        for rank, order in ((1, second), (0, first), (0, first)):  # a copy is dropped
            number = json.loads(order.message)["seq"]
            said = {"type": "response", "request_seq": number, "success": True, "body": rank}
            debuggers.on_says(rank, json.dumps(said).encode())
        assert [its.result(0)["body"] for its in answers] == [0, 1]

    def test_a_dead_rank_refuses_and_is_no_longer_stopped(self, debuggers, sent):
        events = []
        debuggers.on_event = lambda rank, event: events.append((rank, event["event"]))
        stopped = {"type": "event", "event": "stopped", "body": {"threadId": 1}}
        for rank in range(2):
            debuggers.attached.add(rank)
            debuggers.on_says(rank, json.dumps(stopped).encode())
        answer = debuggers.ask(1, "threads")
        self.lost.add(1)
        debuggers.on_lost(1)
        assert answer.result(0)["message"] == "rank 1 is dead"
        assert debuggers.ask(1, "threads").result(0)["success"] is False
        assert (debuggers.attached, debuggers.stopped) == ({0}, {(0, 1)})
        assert events == [(0, "stopped"), (1, "stopped"), (1, "continued")]
        self.lost.discard(1)
        assert not debuggers.ask(1, "threads").done()

    def test_a_long_request_is_not_sent(self, debuggers, sent):
        answer = debuggers.ask(0, "evaluate", expression="x" * MOST_DAP_NBYTES)
        assert "at most" in answer.result(0)["message"]
        assert sent == []
        debuggers.ask(0, "evaluate", expression="x")
        assert isinstance(sent[0][1], AskDebugger)
