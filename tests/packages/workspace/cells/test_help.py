"""Help while typing from ranks: who is asked, what is taken, how long it is waited for."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from support.inside import stopped_workspace
from support.promise import within
from support.ranks.cells import BackgroundCell, wait_busy, wait_in
from support.waiting import wait_until

from phalanx.errors import DistributedError
from phalanx.protocol import Completed
from phalanx.workspace import Help, NoHelp


class Ranks:
    """Stands in for the root: keeps the questions, and answers by rank."""

    def __init__(self, size, **answers):
        self.answers = answers
        self.asked = []
        self.lost = set()
        self.help = Help(size, self.lost, self._send)

    def lose(self, rank):
        self.lost.add(rank)
        self.help.on_lost(rank)

    def _send(self, rank, question):
        self.asked.append((rank, question.id))
        for answer in self.answers.get(f"rank{rank}", ()):
            answer(self, question.id)


def reply(*matches, is_draft=False):
    def send(ranks, id_):
        ranks.help.on_answer(Completed(id_, is_draft, matches, 0, 1, ("",), ("",)))

    return send


def dies(rank):
    return lambda ranks, id_: ranks.lose(rank)


@pytest.fixture
def no_patience(monkeypatch):
    """Time is over soon where nobody answers."""
    monkeypatch.setattr("phalanx.workspace.cells.rank_help.COMPLETE_S", 0.05)


@pytest.fixture
def patience(monkeypatch):
    """Ranks share the machine with others: what they answer is tested, not how soon."""
    monkeypatch.setattr("phalanx.workspace.cells.rank_help.COMPLETE_S", 20.0)
    monkeypatch.setattr("phalanx.workspace.cells.rank_help.INSPECT_S", 20.0)


def test_the_first_rank_that_lives_is_asked():
    ranks = Ranks(4, rank1=[reply("one")], rank2=[reply("two")])
    ranks.lose(0)
    assert ranks.help.complete("o", 1).matches == ("one",)
    assert ranks.help.complete("t", 1, ranks=[3, 0, 2]).matches == ("two",)
    assert [rank for rank, _ in ranks.asked] == [1, 2]


def test_a_rank_that_dies_meanwhile_hands_on_to_the_next():
    ranks = Ranks(2, rank0=[dies(0)], rank1=[reply("there")])
    assert ranks.help.complete("t", 1).matches == ("there",)


def test_a_draft_is_taken_only_where_nothing_better_comes(no_patience):
    both = Ranks(1, rank0=[reply("draft", is_draft=True), reply("final")])
    assert both.help.complete("f", 1).matches == ("final",)
    only = Ranks(1, rank0=[reply("draft", is_draft=True)])
    assert only.help.complete("f", 1).matches == ("draft",)


def test_silence_is_named_and_a_late_answer_is_dropped(no_patience):
    ranks = Ranks(2)
    with pytest.raises(NoHelp, match="rank 0 did not answer in 0.05 s"):
        ranks.help.complete("x", 1)
    reply("late")(ranks, ranks.asked[0][1])
    assert ranks.help._pending == {}


def test_without_a_living_rank_nobody_is_asked():
    ranks = Ranks(2)
    ranks.lose(0)
    ranks.lose(1)
    with pytest.raises(NoHelp, match="no such rank is alive"):
        ranks.help.complete("x", 1)
    assert ranks.asked == []


@pytest.mark.slow
def test_a_rank_that_computes_waits_or_listens_answers(ws, patience, tmp_path):
    over = tmp_path / "over"
    ws.run(
        "import os, time\nthing = {'apple': 1}\nthing_of = [rank]\n"
        f"def is_over(): return os.path.exists({str(over)!r})"
    )
    for busy in (
        "while not is_over(): pass",
        "while not is_over(): time.sleep(0.05)",
        "while rank and not is_over(): time.sleep(0.05)\npx.all_sum(1)",
    ):
        with BackgroundCell(ws, busy) as running:
            wait_busy(ws)
            if "all_sum" in busy:
                wait_in(ws, "all_sum", 0)
            assert ws.help.complete("thing_", 6).matches == ("thing_of",)
            described = ws.help.inspect("thing_of", 3, ranks=[2])
            assert described.rank == 2
            assert "[2]" in described.text
            assert not running.is_over
            over.touch()
        assert running.error is None
        over.unlink()


# jedi reads a library for the first time: for as long as is wanted.
SLOW_JEDI = """
import jedi, threading
thing, plain, may_end = [rank], jedi.Interpreter, threading.Event()
def slow(*args, **options):
    may_end.wait(60)
    return plain(*args, **options)
jedi.Interpreter = slow
"""


@pytest.mark.slow
def test_an_attribute_completes_while_jedi_still_reads_for_the_question_before(
    ws, patience, monkeypatch
):
    ws.run(SLOW_JEDI, ranks=[0])
    came, take = [], ws.help.on_answer

    def on_answer(answer):
        came.append(answer.is_draft)
        take(answer)

    monkeypatch.setattr(ws.help, "on_answer", on_answer)
    asked = []
    with ThreadPoolExecutor(2) as pool:
        for n in (1, 2):
            asked.append(pool.submit(ws.help.complete, "thing.app", 9, ranks=[0]))
            wait_until(lambda n=n: came == [True] * n, "there is a draft")
        ws.run("may_end.set()\njedi.Interpreter = plain", ranks=[0])
    assert ["append" in one.result().matches for one in asked] == [True, True]
    assert came == [True, True, False, False]


@pytest.mark.slow
def test_a_name_that_only_the_text_has_completes_too(ws, patience):
    assert "append" in ws.help.complete("later = [1]\nlater.app", 21).matches


@pytest.mark.slow
@pytest.mark.promise
def test_a_frozen_rank_costs_no_more_than_the_limit(breakable):
    ws = breakable
    pid = ws.topology().ranks[0].pid
    os.kill(pid, signal.SIGSTOP)
    stopped = psutil.STATUS_STOPPED  # until then its threads run on
    wait_until(lambda: psutil.Process(pid).status() == stopped, "the rank is frozen")
    try:
        with within(), pytest.raises(NoHelp, match="rank 0 did not answer in 0.5 s"):
            ws.help.complete("p", 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    ws.run("pass")
    assert ws.help._pending == {}


def test_a_stopped_workspace_has_no_help():
    with pytest.raises(DistributedError, match="was stopped"):
        _ = stopped_workspace().help
