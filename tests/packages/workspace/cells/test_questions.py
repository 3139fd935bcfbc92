"""When ranks' needs become one question, and whom an answer is for."""

from __future__ import annotations

import pytest

from phalanx.protocol import LineNeed, TypedLine
from phalanx.workspace.cells.prompting import InputRequests, WrongAddress
from phalanx.workspace.output.front_end import OtherPrompt, Question


def need(prompt="who? ", index=0, *, password=False, is_command=False):
    return LineNeed("cell", index, prompt, password, is_command)


def pdb(index=0, prompt="ipdb> "):
    return need(prompt, index, is_command=True)


def asked(questions, now_s=9):
    question = questions.due((), now_s)
    assert question is not None
    return question


def waiting_at(*needs, ranks=4):
    questions = InputRequests(range(ranks))
    for rank, rank_need in enumerate(needs):
        if rank_need is not None:
            questions.need(rank, rank_need, now_s=0)
    return questions


def test_ranks_that_ask_together_are_asked_once():
    questions = InputRequests(range(2))
    questions.need(0, need(), now_s=1.0)
    assert questions.due({0, 1}, now_s=1.01) is None
    questions.need(1, need(), now_s=1.01)
    assert questions.due({0, 1}, now_s=1.01) == Question((0, 1), "who? ")


def test_the_grace_ends():
    questions = InputRequests(range(2))
    questions.need(1, need(), now_s=1.0)
    assert questions.due({0, 1}, now_s=1.101) == Question((1,), "who? ")


def test_after_an_answer_the_grace_begins_again_though_others_wait():
    questions = waiting_at(pdb(), pdb(), need())
    questions.answer(asked(questions), "n")
    assert questions.due({0, 1, 2}, now_s=20) is None
    questions.need(0, pdb(1), now_s=20.01)
    assert questions.due({0, 1, 2}, now_s=20.01) is None
    questions.need(1, pdb(1), now_s=20.02)
    assert questions.due({0, 1, 2}, now_s=20.02).ranks == (0, 1)


def test_a_need_for_a_line_that_was_typed_is_no_question():
    questions = waiting_at(need())
    assert questions.answer(asked(questions), "ann") == [TypedLine("ann")]
    questions.need(1, need(index=0), now_s=0)
    assert questions.due({0, 1}, now_s=9) is None
    questions.need(1, need("b", index=1, password=True), now_s=9)
    assert questions.due({1}, now_s=9) == Question((1,), "b", password=True)


def test_a_command_is_for_those_who_wait_when_it_is_typed():
    questions = waiting_at(pdb(), pdb())
    question = asked(questions)
    questions.need(2, pdb(), now_s=9)  # came while the prompt was open
    assert questions.answer(question, "n") == [TypedLine("n", (0, 1, 2), is_command=True)]
    questions.need(3, pdb(index=0), now_s=9)  # later: the command is not for it
    assert asked(questions).ranks == (3,)


def test_a_rank_that_is_gone_asks_no_more():
    questions = waiting_at(need())
    questions.forget(0)
    assert questions.due(set(), now_s=9) is None


def test_one_secret_hides_the_answer():
    questions = waiting_at(need("name "), need("password ", password=True))
    assert asked(questions).password
    assert questions.answer(asked(questions), "@9 secret") == [TypedLine("@9 secret")]


def test_the_lowest_rank_is_asked_first_and_the_others_are_named():
    questions = waiting_at(pdb(), need("name? "), pdb(), need("age? "))
    question = asked(questions)
    assert question == Question(
        (0, 2), "ipdb> ", is_command=True,
        others=(OtherPrompt((1,), "name? ", hears=False), OtherPrompt((3,), "age? ", hears=False)),
    )  # fmt: skip
    questions.answer(question, "c")
    assert asked(questions) == Question(
        (1, 3), "name? ", others=(OtherPrompt((3,), "age? ", True),)
    )


@pytest.mark.parametrize(
    ("typed", "entry"),
    [
        ("@2 p x", TypedLine("p x", (2,), is_command=True)),
        ("@0-1 p x", TypedLine("p x", (0, 1), is_command=True)),
        ("@0,2", TypedLine("", (0, 2), is_command=True)),
        ("@3 ann", TypedLine("ann", (3,))),
        ("@@2 p x", TypedLine("@2 p x", (0, 1, 2), is_command=True)),
        ("@ann", TypedLine("@ann", (0, 1, 2), is_command=True)),
        ("@2nd", TypedLine("@2nd", (0, 1, 2), is_command=True)),
        (None, TypedLine(None, (0, 1, 2), is_command=True)),
    ],
)
def test_a_line_may_be_for_some(typed, entry):
    questions = waiting_at(pdb(), pdb(), pdb(), need())
    assert questions.answer(asked(questions), typed) == [entry]
    assert set(questions.waiting) == set(range(4)) - set(entry.ranks)


def test_an_address_may_span_both_kinds():
    questions = waiting_at(pdb(), need())
    assert questions.answer(asked(questions), "@0-1 x") == [
        TypedLine("x", (0,), is_command=True),
        TypedLine("x", (1,)),
    ]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("@9 p x", "@9: there is no rank 9: the ranks are 0 to 3"),
        ("@2 p x", "@2: rank 2 does not wait for a line; ranks 0-1 do"),
        ("@0-3 p x", "@0-3: ranks 2-3 do not wait for a line; ranks 0-1 do"),
        ("@3-2 p x", "@3-2: the ranks '3-2' run backwards; write 2-3"),
    ],
)
def test_a_wrong_address_changes_nothing(typed, message):
    questions = waiting_at(pdb(), pdb())
    question = asked(questions)
    with pytest.raises(WrongAddress) as error:
        questions.answer(question, typed)
    assert str(error.value) == message
    assert asked(questions) == question
