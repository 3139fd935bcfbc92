"""Averages of trees on all ranks, against the sums of what each rank has."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.cells import gradient_cells as cells
from support.runs.tiers import examples, pairwise

import phalanx as px

SHAPES = [(3,), (2, 5), (), (0,), (1000,)]
WORLDS = {"2 arena": (2, (0, 0)), "3 arena": (3, (0, 0, 0)), "2+1 hosts": (3, (0, 0, 1))}


def expected(framework, size, weights, shapes, seed):
    """Return dtype and mean of each leaf, from the gradients of all ranks."""
    trees = [cells.leaves_of(cells.tree_of(framework, r, shapes, seed)) for r in range(size)]
    means = []
    for leaves in zip(*trees, strict=True):
        name = leaves[0][0]
        wide = np.complex128 if name.startswith("complex") else np.float64
        total = sum(x.astype(wide) * w for (_, x), w in zip(leaves, weights, strict=True))
        if name.startswith("int"):
            name = "float64" if framework == "numpy" else "float32"
        means.append((name, total / sum(weights)))
    return means


# Sums of small whole numbers are exact; what is left is one division and one rounding.
STEPS = {"float16": 2**-11, "bfloat16": 2**-8, "float64": 1e-15, "complex128": 1e-15}


def check(framework, results, weights, shapes=SHAPES, seed=0):
    wanted = expected(framework, len(results), weights, shapes, seed)
    for leaves in results:
        assert [name for name, _ in leaves] == [name for name, _ in wanted]
        for (name, got), (_, first), (_, want) in zip(leaves, results[0], wanted, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=STEPS.get(name, 2**-22))
            np.testing.assert_array_equal(got, first)  # alike on all ranks


@pytest.mark.parametrize(
    ("framework", "world", "size"),
    pairwise(
        {
            "framework": ["numpy", "torch", "mlx"],
            "world": list(WORLDS),
            "size": [32 << 20, 64, 0],
        }
    ),
)
def test_averages_are_those_of_one_process(rank_pool, framework, world, size):
    pytest.importorskip({"mlx": "mlx.core"}.get(framework, framework))
    ranks = rank_pool(*WORLDS[world])
    options = {"all_reduce_size": size}
    check(framework, ranks.run(cells.averages, framework, SHAPES, options), [1] * ranks.size)
    weights = [3, 0.5, 7][: ranks.size]
    results = ranks.run(cells.averages, framework, SHAPES, options, weights)
    check(framework, results, weights)


@settings(max_examples=examples(15), deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=4, max_size=7),
    size=st.integers(-1, 400),
    weights=st.lists(st.integers(0, 100), min_size=3, max_size=3).filter(any),
    seed=st.integers(0, 1 << 30),
)
def test_any_tree_any_bucket_and_any_weights(farm, shapes, size, weights, seed):
    ranks = farm.world(3, (0, 0, 1))
    options = {"all_reduce_size": size}
    results = ranks.run(cells.averages, "numpy", shapes, options, weights, seed)
    check("numpy", results, weights, shapes, seed)


def test_batches_of_unequal_size_count_by_their_samples(rank_pool):
    for mean, whole in rank_pool(3).run(cells.averages_of_uneven, [5, 0, 31]):
        np.testing.assert_allclose(mean, whole, rtol=1e-14)


@pytest.mark.parametrize(
    ("sizes", "options", "n_sums"),
    [
        ([10] * 10, {}, 1),
        ([10] * 10, {"all_reduce_size": 200}, 2),
        ([10] * 10, {"all_reduce_size": 0}, 10),
        ([10] * 10, {"all_reduce_size": -1}, 10),
        ([100, 1, 1], {"all_reduce_size": 200}, 2),
        ([], {}, 0),
    ],
)
def test_as_many_sums_as_buckets_and_one_small_check(rank_pool, sizes, options, n_sums):
    for called in rank_pool(2).run(cells.operations, sizes, options):
        assert called == ["all_gather"] + ["all_sum"] * n_sums


def test_16_bits_are_summed_in_32(rank_pool):
    assert rank_pool(4).run(cells.overflowing) == [[40_000] * 3] * 4


def test_a_communication_type_is_what_is_sent(rank_pool):
    options = {"communication_type": "float16"}
    for leaves in rank_pool(2).run(cells.averages, "numpy", SHAPES, options):
        assert [name for name, _ in leaves[:5]] == ["float16"] * 5
    coarse = rank_pool(2).run(cells.third_in, "float16")[0]
    fine = rank_pool(2).run(cells.third_in, None)[0]
    assert fine == np.float32(1 / 3)
    assert coarse == np.float16(1 / 3)


def test_a_rank_without_weight_adds_nothing(rank_pool):
    for mean in rank_pool(3).run(cells.weightless, 1):
        assert mean.tolist() == [2, 2]  # of 1 and 3


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("name", "CollectiveMismatch: average_gradients: the trees of the ranks differ: only rank 0 has b: "),
        ("name", "has b: numpy float64[2]; only rank 1 has c: numpy float64[2]"),
        ("missing", "only rank 0 has b: numpy float64[2]; only rank 1 has b: None"),
        ("shape", "only rank 0 has a: numpy float64[2]; only rank 1 has a: numpy float64[3]"),
        ("order", "differ: rank 1 has the leaves of rank 0 in another order"),
        ("options", "rank 0 passes all_reduce_size=16, "),
        ("no weight", "ValueError: average_gradients: the weights of all ranks are 0"),
        ("negative", "ValueError: average_gradients: a weight must be 0 or more and finite, not -1"),
        ("leaf", "TypeError: average_gradients: layers.0.w.0 is of type float, not an array of "),
        ("type", "ValueError: communication_type must be one of float16, bfloat16, float32, float64"),
        ("stream", "TypeError: average_gradients: communication_stream is for trees of MLX arrays"),
        ("group", "TypeError: group must be a phalanx.Group or None, not str"),
        ("one device", "only rank 0 has b: torch float32[2]; only rank 1 has b: torch float32[2] on meta"),
        ("device", "NotSupported: average_gradients: b is on meta, not in memory of the CPU; pass its .cpu()"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_error_on_all_ranks(rank_pool, case, words):
    if "device" in case:
        pytest.importorskip("torch")
    for text in rank_pool(3).run(cells.error_of, case):
        assert words in text, text


def test_alone_the_gradients_come_back_as_they_are():
    tree = {"a": np.ones(2)}
    assert px.nn.average_gradients(tree) is tree
    assert px.nn.average_gradients(tree, weights=3) is tree


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any = None
    n_rows: int = field(init=False, default=1)


def test_containers_keep_their_type():
    tree = Pair([np.ones(1)], OrderedDict(a=(None,)))
    got, _ = px.nn.clip_grad_norm_sharded(tree, 0.5)
    assert type(got) is Pair
    assert type(got.y) is OrderedDict
    assert got.y == {"a": (None,)}
    (layer,), _ = px.nn.clip_grad_norm_sharded([Layer(np.ones(1), (np.zeros(2),))], 2.0)
    assert type(layer) is Layer
    assert layer.weight.tolist() == [1]
    assert layer.bias[0].tolist() == [0, 0]
    with pytest.raises(TypeError, match="0.bias is of type str, not an array"):
        px.nn.clip_grad_norm_sharded([Layer(np.ones(1), "zero")], 1.0)


def test_the_norm_of_a_leaf_on_a_device_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(
        px.NotSupported, match="clip_grad_norm_sharded: w is on meta, not in memory"
    ):
        px.nn.clip_grad_norm_sharded({"w": torch.ones(2, device="meta")}, 1.0)


def test_replicated_leaves_count_once(rank_pool):
    norm = np.sqrt(9 + 36 + 81 + 4)
    for tree, got in rank_pool(3).run(cells.clipped, 1e9):
        assert got == pytest.approx(norm)
        assert tree["whole"].tolist() == [2]
    for rank, (tree, got) in enumerate(rank_pool(3).run(cells.clipped, 1.0)):
        assert got == pytest.approx(norm)
        assert tree["part"].dtype == np.float32
        assert tree["whole"].dtype == np.float16
        assert tree["part"][0] == pytest.approx(3 * (rank + 1) / norm, rel=1e-5)


def test_a_limit_must_be_positive():
    with pytest.raises(ValueError, match="max_norm must be more than 0, not 0"):
        px.nn.clip_grad_norm_sharded([np.ones(1)], 0)


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_a_gradient_is_summed_on_its_way_back(rank_pool, framework):
    pytest.importorskip({"mlx": "mlx.core"}.get(framework, framework))
    assert rank_pool(3).run(getattr(cells, f"backward_of_{framework}")) == [[6, 6]] * 3
