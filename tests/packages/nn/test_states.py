"""Copies of states: later changes do not reach them, and they are put back in place."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.nn.states import capture, pack, restore, unpack


def test_arrays_and_numbers_are_put_back_in_place():
    w, inner = np.arange(3.0), [np.ones(2), 7]
    state = {"w": w, "inner": inner, "name": "a", "pair": (1, np.zeros(1)), "none": None}
    saved = capture(state)
    w += 1
    inner[0] *= 5
    inner[1] = 8
    state["pair"] = 3
    state["more"] = 1
    del state["name"]
    for _ in range(2):  # a copy can be put back again
        restore(state, saved)
        assert state["w"] is w
        assert w.tolist() == [0, 1, 2]
        assert state["inner"] is inner
        assert inner[0].tolist() == [1, 1]
        assert inner[1] == 7
        assert state["pair"][0] == 1
        assert state["name"] == "a"
        assert "more" not in state
        w -= 1


class Moments(NamedTuple):
    mean: np.ndarray
    n: int


def test_a_named_tuple_keeps_its_type_and_its_arrays():
    state = {"moments": Moments(np.zeros(2), 1)}
    mean, saved = state["moments"].mean, capture(state)
    mean += 1
    state["moments"] = Moments(mean, 2)
    restore(state, saved)
    assert type(state["moments"]) is Moments
    assert state["moments"].n == 1
    assert state["moments"].mean is mean
    assert mean.tolist() == [0, 0]


def test_the_memory_of_an_old_copy_is_used_again():
    state = {"w": np.ones(3), "x": [np.ones(2)]}
    old = capture(state)
    state["w"] += 1
    new = capture(state, old)
    assert new["w"] is old["w"]
    assert new["w"].tolist() == [2, 2, 2]
    state["x"] = [np.ones(4), np.ones(1)]  # of another form: memory of its own
    assert [part.shape for part in capture(state, new)["x"]] == [(4,), (1,)]


def test_random_generators():
    state = {"numpy": np.random.default_rng(1), "random": random.Random(2), "module": random}
    saved = capture(state)
    drawn = [(state["numpy"].random(), state["random"].random(), random.random()) for _ in range(2)]
    restore(state, saved)
    again = [(state["numpy"].random(), state["random"].random(), random.random()) for _ in range(2)]
    assert drawn == again


def trains_on_from_any_copy(state, train):
    """Put back copies of two steps; the training repeats itself."""
    begin = capture(state)  # before the optimizer has a state
    first = train()
    middle = capture(state)
    second = train()
    restore(state, middle)
    assert train() == second
    restore(state, begin)
    assert [train(), train()] == [first, second]


def test_modules_and_optimizers_of_torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state = {"model": model, "optimizer": optimizer, "random": torch.default_generator}

    def train() -> list[float]:
        optimizer.zero_grad()
        model(torch.rand(4, 3)).sum().backward()
        optimizer.step()
        return model.weight.flatten().tolist()

    trains_on_from_any_copy(state, train)


def test_modules_and_optimizers_of_mlx():
    mx = pytest.importorskip("mlx.core")
    import mlx.optimizers
    from mlx import nn

    model = nn.Linear(3, 2)
    optimizer = mlx.optimizers.Adam(0.1)
    state = {"model": model, "optimizer": optimizer, "random": mx.random.state}
    gradient = nn.value_and_grad(model, lambda x: model(x).sum())

    def train() -> list[float]:
        optimizer.update(model, gradient(mx.random.uniform(shape=(4, 3)))[1])
        return model.weight.flatten().tolist()

    trains_on_from_any_copy(state, train)


def test_an_array_of_mlx_that_is_changed_in_place():
    mx = pytest.importorskip("mlx.core")
    state = {"w": mx.ones(2)}
    saved = capture(state)
    state["w"] += 1
    state["w"][0] = 9
    restore(state, saved)
    assert state["w"].tolist() == [1, 1]
    state["w"] += 1
    assert saved["w"].tolist() == [1, 1]


def test_what_cannot_be_copied_is_named():
    with pytest.raises(TypeError, match="the state m is of type MaskedArray"):
        capture({"m": np.ma.masked_array([1, 2], [True, False])})
    with pytest.raises(
        TypeError, match=r"the state a\.1 is of type object, which cannot be copied"
    ):
        capture({"a": [1, object()]})


LEAVES = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.lists(st.floats(allow_nan=False), max_size=3).map(np.array),
)
TREES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.tuples(children, children),
        st.dictionaries(st.text(max_size=2), children, max_size=3),
    ),
)


@given(TREES)
def test_taken_apart_and_put_together_it_is_the_same(tree):
    form, arrays = pack(tree)
    assert repr(unpack(form, arrays)) == repr(tree)
    assert repr(capture(tree)) == repr(tree)
