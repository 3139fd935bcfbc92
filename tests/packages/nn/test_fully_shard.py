"""Modules of MLX that are divided fully: as whole ones with the samples of all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.cells import fully_shard_cells as cells
from support.runs.tiers import examples, pairwise

pytest.importorskip("mlx.core")


@pytest.mark.parametrize(
    ("n_ranks", "how", "reshards", "kind"),
    pairwise(
        {
            "n_ranks": [1, 2, 3],
            "how": ["model", "layers", "both"],
            "reshards": [True, False],
            "kind": ["sgd", "adamw"],
        }
    ),
)
def test_training_is_that_of_one_rank_with_all_samples(rank_pool, n_ranks, how, reshards, kind):
    results = rank_pool(n_ranks).run(cells.train, how, reshards, 5, kind)
    for of_parameters, of_outputs, name in results:
        # Five steps of parameters below 4, each rounded by 2**-24 and averaged in another order.
        assert of_parameters < 2e-6
        assert of_outputs < 1e-5
        assert name == ("Tiny" if how == "layers" or n_ranks == 1 else "FullyShardedTiny")


DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "uint32"])


@settings(max_examples=examples(15), deadline=None)
@given(
    leaves=st.lists(
        st.tuples(st.lists(st.integers(0, 7), max_size=3).map(tuple), DTYPES),
        min_size=2,
        max_size=6,
    ),
    reshards=st.booleans(),
    n_ranks=st.integers(2, 3),
    seed=st.integers(0, 1000),
)
def test_any_parameters(farm, leaves, reshards, n_ranks, seed):
    shapes, dtypes = zip(*leaves, strict=True)
    for worst in farm.world(n_ranks).run(cells.any_tree, shapes, dtypes, reshards, seed):
        # The gradients are the numbers of the ranks; their mean is rounded to 8 bits or more.
        assert all(difference <= 2**-8 for difference in worst)


@pytest.mark.parametrize(
    ("how", "reshards", "wanted"),
    [
        # Two dtypes in the first layer, one in the second.
        ("layers", True, (6, 3)),
        ("layers", False, (3, 3)),
        ("model", True, (4, 2)),
        ("model", False, (2, 2)),
    ],
)
def test_one_buffer_for_each_dtype(rank_pool, how, reshards, wanted):
    assert rank_pool(2).run(cells.counted, how, reshards) == [wanted] * 2


@pytest.mark.parametrize(
    ("n_ranks", "bits", "reshards", "compute_dtype"),
    pairwise(
        {
            "n_ranks": [2, 3],
            "bits": [0, 4, 8],
            "reshards": [True, False],
            "compute_dtype": [None, "bfloat16"],
        }
    ),
)
def test_frozen_and_quantized_layers(rank_pool, n_ranks, bits, reshards, compute_dtype):
    results = rank_pool(n_ranks).run(cells.adapters, bits, reshards, compute_dtype)
    for worst, seen, parts, is_same in results:
        assert worst < (1e-5 if compute_dtype is None else 2e-2)  # bfloat16 has 8 bits
        assert is_same
        assert seen["lora_a"] == (f"mlx.core.{compute_dtype or 'float32'}", (64, 3))
        assert parts["lora_a"] == "mlx.core.float32"
        assert seen["linear.weight"][0] == f"mlx.core.{'uint32' if bits else 'float32'}"
        if bits:
            assert seen["linear.scales"] == ("mlx.core.float16", (70, 2))


def test_random_numbers_are_the_same_in_the_backward_pass(rank_pool):
    again, kept = (rank_pool(2).run(cells.random_numbers, reshards) for reshards in (True, False))
    assert again == kept
    assert again[0][1] != again[1][1]


@pytest.mark.parametrize("reshards", [True, False])
def test_changed_parameters_are_kept(rank_pool, reshards):
    for differences in rank_pool(2).run(cells.statistics, reshards):
        assert max(differences) < 1e-6


def test_whole_parameters_are_dropped_between(rank_pool):
    again, kept = (max(rank_pool(2).run(cells.peak, reshards)) for reshards in (True, False))
    # Eight gradients of half a layer; and a whole layer, its gradient, and copies of both to send.
    assert again <= 10
    assert kept >= 20


@pytest.mark.parametrize(
    ("n_ranks", "how", "compute_dtype"),
    pairwise(
        {
            "n_ranks": [1, 2, 3],
            "how": ["model", "layers", "both"],
            "compute_dtype": [None, "float16"],
        }
    ),
)
def test_whole_parameters_are_given_back(rank_pool, n_ranks, how, compute_dtype):
    for same, stays in rank_pool(n_ranks).run(cells.gathered, how, compute_dtype):
        assert all(same)
        assert stays


def test_what_stays_as_it_is(rank_pool):
    (alone,) = rank_pool(1).run(cells.same_or_unchanged)
    assert alone == [
        *(True, True, 6, "ReLU", "Sequential"),
        "Linear(input_dims=4, output_dims=6, bias=True)",
    ]
    for found in rank_pool(4).run(cells.same_or_unchanged):
        assert found[:5] == [True, True, 2, "ReLU", "Sequential"]
        assert found[5].startswith("FullyShardedLinear(")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no module", "TypeError: whole_parameters takes a module of MLX, not list"),
        ("changed", "FullyShardedLinear: weight has shape (4, 3), and not (2, 3), the part of (4,"),
        ("kind", "TypeError: fully_shard takes a module of MLX, not list"),
        ("dtype", "ValueError: fully_shard: compute_dtype must be a floating-point dtype, not mlx"),
        ("no dtype", "compute_dtype must be a floating-point dtype, not 'float16'"),
        (
            "trees",
            "CollectiveMismatch: fully_shard: the trees of the ranks differ: only rank 1 has",
        ),
        ("rows", "only rank 0 has weight: mlx.core.float32(5, 3)"),
        ("options", "fully_shard: rank 0 passes compute_dtype=None, reshard_after_forward=False"),
        ("inner", "ValueError: fully_shard: Linear: Linear is divided already, with a module"),
        (
            "twice",
            "Sequential: AllToShardedLinear is divided by shard_linear among the same 3 ranks",
        ),
        (
            "shape",
            "FullyShardedLinear: weight has shape (4, 3), and not (2, 3), the part of (4, 3)",
        ),
        ("added", "FullyShardedLinear: extra has shape (3,), and not None"),
        ("second", "NotSupported: fully_shard: with a phalanx.Group only reshard_after_forward=Fa"),
        ("forward", "NotSupported: fully_shard: with a phalanx.Group only reshard_after_forward=F"),
        ("compiled", "NotSupported: a fully sharded module with a phalanx.Group cannot be called"),
    ],
)
def test_errors_are_the_same_on_all_ranks(rank_pool, case, words):
    first, *others = rank_pool(3).run(cells.error_of, case)
    assert words in first
    assert others == [first] * 2
