"""Layers of MLX in parts: as the whole ones, for even and uneven numbers of ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.cells import sharding_cells as cells
from support.runs.tiers import examples, pairwise

pytest.importorskip("mlx.core")

from phalanx.nn.sharded.linear import partition


@given(n_blocks=st.integers(1, 60), block=st.integers(1, 9), n_ranks=st.integers(1, 12))
def test_a_partition_covers_all_in_whole_blocks(n_blocks, block, n_ranks):
    if n_blocks < n_ranks:
        with pytest.raises(ValueError, match=f"too small for {n_ranks} ranks"):
            partition(n_blocks * block, n_ranks, block)
        return
    parts = partition(n_blocks * block, n_ranks, block)
    sizes = [end - begin for begin, end in parts]
    assert [begin for begin, _ in parts] == [sum(sizes[:rank]) for rank in range(n_ranks)]
    assert sum(sizes) == n_blocks * block
    assert all(size % block == 0 and size for size in sizes)
    assert max(sizes) - min(sizes) in (0, block)


@pytest.mark.parametrize(
    ("n_ranks", "segments", "has_bias"),
    pairwise(
        {"n_ranks": [1, 2, 3], "segments": [1, 2, [20], [0.25, 0.5]], "has_bias": [True, False]}
    ),
)
def test_layers_in_parts_are_as_whole_ones(rank_pool, n_ranks, segments, has_bias):
    results = rank_pool(n_ranks).run(cells.layers, (5, 40, 7), segments, None, 0, has_bias)
    for difference, of_gradients, _, (_, first, second) in results:
        assert difference < 1e-5
        assert of_gradients < 1e-4
        assert first == f"AllToShardedLinear(input_dims=5, output_dims=40, bias={has_bias})"
        assert second == f"ShardedToAllLinear(input_dims=40, output_dims=7, bias={has_bias})"
    assert sum(size for _, _, size, _ in results) == 40


@pytest.mark.parametrize(("n_ranks", "sizes"), [(2, [128, 96]), (3, [96, 64, 64])])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_quantized_layers_are_divided_by_groups(rank_pool, n_ranks, sizes, bits):
    results = rank_pool(n_ranks).run(cells.layers, (64, 224, 32), 1, None, bits, True)
    for difference, of_gradients, _, (is_frozen, first, _) in results:
        assert difference < 1e-4
        assert of_gradients < 1e-3
        assert is_frozen
        assert first == "QuantizedAllToShardedLinear(input_dims=64, output_dims=224, bias=True)"
    assert [size for _, _, size, _ in results] == sizes


def test_heads_stay_together(rank_pool):
    # Queries, keys and values of three heads of four in one layer, on two ranks.
    results = rank_pool(2).run(cells.layers, (5, 36, 7), 3, 4, 0, True)
    assert [size for _, _, size, _ in results] == [24, 12]
    assert max(difference for difference, *_ in results) < 1e-5


BOTH = ["all-to-sharded", "sharded-to-all"]


@pytest.mark.parametrize(
    ("n_ranks", "sharding", "bits", "has_magnitude"),
    pairwise(
        {
            "n_ranks": [1, 2, 3],
            "sharding": BOTH,
            "bits": [0, 4, 8],
            "has_magnitude": [False, True],
        }
    ),
)
def test_layers_with_adapters(rank_pool, n_ranks, sharding, bits, has_magnitude):
    for worst, names, text in rank_pool(n_ranks).run(cells.adapters, sharding, bits, has_magnitude):
        assert max(worst.values()) < 2e-3, worst  # sums of up to 160 products of about 10
        assert names == ["lora_a", "lora_b", *(["m"] if has_magnitude else [])]
        assert text.startswith("ShardedLoRALinear(")


@settings(max_examples=examples(20), deadline=None)
@given(
    sizes=st.tuples(st.integers(3, 20), st.integers(3, 20)),
    sharding=st.sampled_from(BOTH),
    has_magnitude=st.booleans(),
)
def test_adapters_of_any_size(farm, sizes, sharding, has_magnitude):
    for worst, *_ in farm.world(3).run(cells.adapters, sharding, 0, has_magnitude, sizes):
        assert max(worst.values()) < 2e-3, worst


@pytest.mark.parametrize(
    ("n_ranks", "sharding", "bits", "sizes"),
    pairwise(
        {
            "n_ranks": [1, 2, 3],
            "sharding": BOTH,
            "bits": [0, 4, 8],
            "sizes": [(9, 96), (7, 128)],
        }
    ),
)
def test_embeddings(rank_pool, n_ranks, sharding, bits, sizes):
    results = rank_pool(n_ranks).run(cells.embeddings, sharding, bits, *sizes)
    for of_rows, names, of_linear, linear_names, text in results:
        assert max(of_rows.values()) < 1e-5, of_rows
        assert max(of_linear.values()) < 1e-4, of_linear
        assert names == ([] if bits else ["weight"])
        assert linear_names == ([] if bits else ["embedding.weight"])
        what = "features" if sharding == "all-to-sharded" else "rows"
        assert text == f"ShardedEmbedding({sizes[0]} rows, divided by {what})"


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_constructors_of_mlx(rank_pool, n_ranks, bits):
    results = rank_pool(n_ranks).run(cells.constructors, bits)
    # Two groups of outputs are too few for three ranks: they are divided singly.
    wanted = {1: [64], 2: [32, 32], 3: [22, 21, 21]}[n_ranks]
    assert [rows for _, rows, _ in results] == wanted
    kind = "QuantizedLinear" if bits else "Linear"
    for difference, _, text in results:
        assert difference == 0
        assert text.endswith(f"AllToShardedLinear divides a {kind}, not a LayerNorm")


def test_frozen_parameters_stay_frozen(rank_pool):
    assert rank_pool(2).run(cells.frozen_stays_frozen) == [[["bias"], False]] * 2


def test_parameters_in_place(rank_pool):
    assert rank_pool(3).run(cells.inplace, 8, 2) == [
        [[0, 2, 4, 6], [0, 1, 2, 3], [1]],
        [[8, 10], [4, 5], [1]],
        [[12, 14], [6, 7], [1]],
    ]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("small", "ValueError: shard_linear: Linear: a size of 2 is too small for 3 ranks"),
        ("block", "ValueError: shard_linear: Linear: a size of 64 does not consist of blocks of 7"),
        ("name", "Sharding type sharding='rows' not supported, choose one of 'all-to-sharded' or "),
        (
            "kind",
            "or an embedding, not LayerNorm; for other modules there is shard_inplace",
        ),
        ("segments", "Linear: a size of 64 does not consist of 3 equal segments"),
        ("order", "the segments [9, 5] are not in order within a size of 64"),
        ("groups", "QuantizedLinear: blocks of 16 do not consist of groups of 32"),
        ("few groups", "QuantizedLinear: a size of 64 in blocks of 32 is too small for 3 ranks"),
        ("path", "The sharding function should return int or tuple[int, list]"),
        ("rows", "Embedding: the rows of an embedding have no segments"),
        ("vocabulary", "Embedding: a size of 2 is too small for 3 ranks"),
        ("features", "QuantizedEmbedding: a size of 64 in blocks of 32 is too small for 3 ranks"),
        ("adapter", "shard_linear: Linear: a size of 2 is too small for 3 ranks"),
        (
            "made quantized",
            "QuantizedShardedToAllLinear: a size of 64 in blocks of 64 is too small",
        ),
        ("made", "AllToShardedLinear: a size of 2 is too small for 3 ranks"),
    ],
)
def test_what_cannot_be_divided(rank_pool, case, words):
    for text in rank_pool(3).run(cells.error_of, case):
        assert words in text
