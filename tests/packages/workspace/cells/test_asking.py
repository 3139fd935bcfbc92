"""Asking with a fake front end: notices, addresses, ends."""

from __future__ import annotations

import pytest

from phalanx.protocol import LineNeed, TypedLine, TypeLine
from phalanx.workspace import View
from phalanx.workspace.cells.prompting import PromptController


class FakePrompt:
    def __init__(self):
        self.line = None
        self.is_open = True

    def poll(self, timeout_s):
        return self.line

    def close(self):
        self.is_open = False


class FakeView(View):
    def __init__(self):
        self.shown = []
        self.prompts = []

    def ask(self, question):
        self.shown.append(f"{question.ranks} {question.prompt}")
        self.prompts.append(FakePrompt())
        return self.prompts[-1]

    def notice(self, text):
        self.shown.append(text)


class FakeRanks:
    def __init__(self):
        self.sent = []

    def send(self, order):
        self.sent.append(order.entry if isinstance(order, TypeLine) else order.message)


class Room:
    """An `PromptController` of four ranks, a person who types, a clock."""

    def __init__(self):
        self.view = FakeView()
        self.ranks = FakeRanks()
        self.now_s = 0.0
        self.asking = PromptController("cell", range(4), self.view, self.ranks.send, lambda: None)

    def need(self, rank, prompt="ipdb> ", index=0, is_command=True):
        need = LineNeed("cell", index, prompt, False, is_command)
        self.asking.need(rank, need, self.now_s)

    def step(self):
        self.now_s += 1
        self.asking.step(range(4), self.now_s)

    def type(self, line):
        self.view.prompts[-1].line = (line,)
        self.step()


@pytest.fixture
def room():
    return Room()


def command(line, *ranks):
    return TypedLine(line, ranks, is_command=True)


def test_who_comes_to_an_open_prompt_is_named_and_driven(room):
    room.need(0)
    room.step()
    room.step()
    room.need(2)
    room.need(3)
    room.step()
    room.type("n")
    assert room.view.shown == ["(0,) ipdb> ", "ranks 2-3 wait at this prompt as well"]
    assert room.ranks.sent == [command("n", 0, 2, 3)]
    assert not room.view.prompts[0].is_open


def test_who_waits_elsewhere_is_said_once(room):
    room.need(0)
    room.need(1, "name? ", is_command=False)
    room.step()
    room.step()
    room.type("n")
    room.need(0, index=1)
    room.step()
    room.step()
    assert room.view.shown == [
        "also waiting: rank 1 at 'name?'; @1 … answers there alone",
        "(0,) ipdb> ",
        "(0,) ipdb> ",
    ]


def test_one_line_for_two_different_questions_is_announced(room):
    room.need(0, "name? ", is_command=False)
    room.need(1, "age? ", is_command=False)
    room.step()
    room.step()
    assert room.view.shown == [
        "also waiting: rank 1 at 'age?' (hears the same line); @1 … answers there alone",
        "(0, 1) name? ",
    ]


def test_a_prompt_goes_with_the_last_rank_it_was_for(room):
    room.need(0)
    room.need(1, "name? ", is_command=False)
    room.step()
    room.step()
    room.asking.forget(0)
    assert not room.view.prompts[0].is_open
    room.step()
    assert room.view.shown[-1] == "(1,) name? "
    room.asking.forget(1)
    assert not room.view.prompts[1].is_open
    assert not room.asking.waiting


def test_after_a_stop_nobody_is_asked(room):
    room.need(0)
    room.step()
    room.step()
    room.asking.stop()
    assert not room.view.prompts[0].is_open
    room.need(0, index=0)
    room.step()
    assert len(room.view.prompts) == 1
    assert room.ranks.sent == ["the cell was stopped: nobody is asked any more"]


def test_a_need_that_is_over_takes_its_question_back(room):
    room.need(0, "who? ", is_command=False)
    room.need(1, "who? ", is_command=False)
    room.need(2)
    room.step()
    (prompt,) = room.view.prompts
    room.asking.forget(0, commands=False)
    room.asking.forget(2, commands=False)  # which waits for a command
    assert prompt.is_open
    room.asking.forget(1, commands=False)
    assert not prompt.is_open
    assert room.asking.waiting == (2,)
