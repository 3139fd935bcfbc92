"""Questions while typing: answered one after another, beside everything else."""

from __future__ import annotations

import logging
import queue
import threading

from support.promise import PATIENCE_S

from phalanx.rank.kernel_help import AnswerThread


def test_only_the_newest_question_of_a_kind_waits():
    thread, said = AnswerThread(), queue.SimpleQueue()
    has_begun, may_end = threading.Event(), threading.Event()

    def first():
        has_begun.set()
        may_end.wait(PATIENCE_S)
        said.put("first")

    thread.take("complete", first)
    assert has_begun.wait(PATIENCE_S)
    for text in ("old", "older than the last", "last"):
        thread.take("complete", lambda text=text: said.put(text))
    thread.take("inspect", lambda: said.put("another kind"))
    may_end.set()
    assert [said.get(timeout=PATIENCE_S) for _ in range(3)] == ["first", "last", "another kind"]
    assert said.empty()


def test_an_object_that_cannot_be_looked_at_ends_no_help(caplog):
    thread, said = AnswerThread(), queue.SimpleQueue()
    with caplog.at_level(logging.ERROR):
        thread.take("inspect", lambda: 1 / 0)
        thread.take("complete", lambda: said.put("next"))
        assert said.get(timeout=PATIENCE_S) == "next"
    assert "could not be answered" in caplog.text
