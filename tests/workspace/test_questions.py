"""When ranks' needs become one question."""

from __future__ import annotations

from phalanx.workspace._questions import Question, Questions


def test_ranks_that_ask_together_are_asked_once():
    questions = Questions()
    questions.need(0, 0, "who? ", False, now_s=1.0)
    assert questions.due({0, 1}, now_s=1.01) is None
    questions.need(1, 0, "who? ", False, now_s=1.01)
    assert questions.due({0, 1}, now_s=1.01) == Question(0, (0, 1), "who? ", False)


def test_the_grace_ends():
    questions = Questions()
    questions.need(1, 0, "who? ", False, now_s=1.0)
    assert questions.due({0, 1}, now_s=1.031) == Question(0, (1,), "who? ", False)


def test_a_need_for_a_line_that_was_typed_is_no_question():
    questions = Questions()
    questions.need(0, 0, "a", False, now_s=0)
    questions.answered()
    questions.need(1, 0, "a", False, now_s=0)
    assert questions.due({0, 1}, now_s=9) is None
    questions.need(1, 1, "b", True, now_s=9)
    assert questions.due({1}, now_s=9) == Question(1, (1,), "b", True)


def test_a_rank_that_is_gone_asks_no_more():
    questions = Questions()
    questions.need(0, 0, "a", False, now_s=0)
    questions.forget(0)
    assert questions.due(set(), now_s=9) is None


def test_one_secret_hides_the_answer():
    questions = Questions()
    questions.need(0, 0, "name ", False, now_s=0)
    questions.need(1, 0, "password ", True, now_s=0)
    question = questions.due({0, 1}, now_s=9)
    assert question is not None
    assert question.password
