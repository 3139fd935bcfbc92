"""Trainings in steps: all ranks finish a step, or none does."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from nn.cells import step_cells as cells

import phalanx as px


def weights(size, stop):
    """Return the parameters of a training that nothing disturbs."""
    randoms = [np.random.default_rng([5, rank]) for rank in range(size)]
    w = np.zeros(3)
    for _ in range(stop):
        total = randoms[0].random(3)
        for each in randoms[1:]:
            total = total + each.random(3)
        w += total / size
    return w.tolist()


@pytest.fixture
def ranks(rank_pool):
    ranks = rank_pool(3)
    ranks.run(cells.new_state)
    return ranks


@pytest.mark.parametrize("every", [1, 3])
def test_a_new_rank_gets_what_the_others_have_and_the_lost_one_had(ranks, every):
    for w, seen in ranks.run(cells.train, 6, every):
        assert (w, seen) == (weights(3, 6), list(range(6)))
    for w, seen in ranks.run(cells.train, 10, every, 1):
        assert (w, seen) == (weights(3, 10), list(range(10)))


@pytest.mark.parametrize(("every", "step"), [(1, 4), (3, 3), (10, 0)])
def test_an_exception_in_a_step_puts_the_last_commit_back(ranks, every, step):
    for w, said in ranks.run(cells.train, 10, every, -1, "a mistake"):
        assert w == weights(3, step)
        assert said == f"KeyError {step} {list(range(step))}"
    for w, seen in ranks.run(cells.train, 10, every):
        assert (w, seen) == (weights(3, 10), list(range(10)))


def test_a_stop_after_the_vote_loses_no_step(ranks):
    outcomes = ranks.run(cells.stopped_after_the_vote, 4)
    assert [step for step, _ in outcomes] == [4, 3, 4]
    for w, _ in ranks.run(cells.train, 6):
        assert w == weights(3, 6)


def test_at_the_start_the_farthest_rank_gives_its_state(rank_pool):
    assert rank_pool(3).run(cells.begin_at, [0, 4, 2]) == [(5, [1, 1])] * 3
    assert rank_pool(3).run(cells.begin_at, [0, 0, 0]) == [(1, [0, 0])] * 3


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_modules_begin_alike_and_stay_alike(rank_pool, framework):
    pytest.importorskip({"mlx": "mlx.core"}.get(framework, framework))
    first, *others = rank_pool(2).run(cells.begin_with, framework)
    assert others == [first]


def test_ranks_that_count_differently_are_told(rank_pool):
    for text in rank_pool(3).run(cells.different_steps):
        assert text == (
            "0 CollectiveMismatch: steps: the ranks have finished different steps (rank 0: 1, rank 1: 2, rank 2: 1)"
        )


def test_own_is_for_all_or_none(rank_pool):
    for text in rank_pool(3).run(cells.own_on_some):
        assert text == "CollectiveMismatch: steps: some ranks pass own=, and others do not"


def test_what_is_changed_between_two_loops_stays():
    state, own = {"w": np.zeros(1), "rate": 1.0}, {"n": 0}

    def train(stop):
        for step in px.nn.steps(state, stop, own=own):
            with step:
                state["w"] += state["rate"]
                own["n"] += 1

    train(2)
    state["rate"], own["n"] = 10.0, 5
    state["w"] += 100
    train(4)
    assert state["w"].tolist() == [122]
    assert own["n"] == 7
    state["step"] = 0  # begins anew, with what it has
    train(1)
    assert state["w"].tolist() == [132]


def test_a_training_that_has_ended_holds_nothing_large():
    state = {"w": np.zeros(3)}
    watched = weakref.ref(state["w"])
    for step in px.nn.steps(state, 2):
        with step:
            state["w"] += 1
    del state, step
    gc.collect()
    assert watched() is None


def test_a_step_must_be_done_in_its_context():
    with pytest.raises(TypeError, match="do the step in its context"):
        list(px.nn.steps({}, 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([],), "steps: the state must be a dict, not list"),
        (({"step": -1},), r'steps: state\["step"\] must be the number of finished steps, not -1'),
        (({}, 0), "steps: every and stop must be 1 or more, not 1 and 0"),
        (({"x": object()},), "the state x is of type object"),
    ],
)
def test_mistakes(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        px.nn.steps(*arguments)


def test_it_says_what_it_is():
    for step in px.nn.steps({}, 1):
        with step:
            assert repr(step) == "<phalanx.nn.TrainingStep 0>"
