"""Parts of a dataset and seeds of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nn.cells import gradient_cells as cells

import phalanx as px
from phalanx.nn import Shard


@pytest.mark.parametrize(
    ("n", "options", "sizes"),
    [
        (9, {}, [3, 3, 3]),
        (10, {}, [4, 4, 4]),
        (10, {"remainder": "drop"}, [3, 3, 3]),
        (10, {"remainder": "keep"}, [4, 3, 3]),
        (1, {}, [1, 1, 1]),
        (1, {"remainder": "keep"}, [1, 0, 0]),
    ],
)
def test_ranks_share_the_samples(rank_pool, n, options, sizes):
    parts = rank_pool(3).run(cells.shards, n, options)
    assert [len(part) for part in parts] == sizes
    seen = sorted(set().union(*parts))
    assert seen == list(range(n)) or options.get("remainder") == "drop"
    if options.get("remainder") != "repeat":
        assert options == {} or sum(sizes) == len(seen)


def test_each_epoch_has_an_order_of_its_own(rank_pool):
    ranks = rank_pool(2)
    by_epoch = [ranks.run(cells.shards, 50, {"epoch": epoch}) for epoch in (0, 1)]
    assert by_epoch[0] != by_epoch[1]
    assert ranks.run(cells.shards, 50, {"epoch": 0}) == by_epoch[0]
    assert ranks.run(cells.shards, 50, {"seed": 1}) != by_epoch[0]
    assert ranks.run(cells.shards, 4, {"shuffle": False}) == [[0, 2], [1, 3]]


@given(n=st.integers(1, 50), begin=st.integers(0, 50), end=st.integers(0, 50))
def test_a_shard_is_a_sequence(n, begin, end):
    part = px.nn.shard(np.arange(n), shuffle=False)
    assert list(part) == list(range(n))
    assert list(part[begin:end]) == list(range(n))[begin:end]
    assert part[-1] == n - 1
    assert isinstance(part[:1], Shard)
    assert repr(part) == f"<phalanx.nn.Shard of {n} of {n} samples>"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "shard: seed and epoch must be 0 or more, not -1 and 0"),
        ({"remainder": "cut"}, "shard: remainder must be one of repeat, drop, keep, not 'cut'"),
    ],
)
def test_mistakes(options, words):
    with pytest.raises(ValueError, match=words):
        px.nn.shard(range(3), **options)
    with pytest.raises(ValueError, match="shard: the dataset is empty"):
        px.nn.shard([])
    with pytest.raises(ValueError, match="seed: the number must be 0 or more, not -1"):
        px.nn.seed(-1)


def test_ranks_draw_numbers_of_their_own_or_the_same(rank_pool):
    own = rank_pool(3).run(cells.seeds, True)
    assert len({number for numbers in own for number in numbers}) == 9
    assert rank_pool(3).run(cells.seeds, True) == own
    same = rank_pool(3).run(cells.seeds, False)
    assert same == [same[0]] * 3
    assert same[0] != own[0]


@pytest.mark.parametrize("framework", ["torch", "mlx.core"])
def test_frameworks_that_are_loaded_are_seeded(framework):
    module = pytest.importorskip(framework)

    def draw() -> float:
        px.nn.seed(5)
        return float((module.rand(1) if framework == "torch" else module.random.uniform()).item())

    assert draw() == draw()


def test_ranks_with_fewer_batches_take_part_to_the_end(rank_pool):
    # 1 and 2 and 3; then 2 and 3; then 3 alone.
    assert rank_pool(3).run(cells.uneven_batches, [1, 2, 4]) == [(4, [10.5, 10.5])] * 3
    assert rank_pool(3).run(cells.uneven_batches, [0, 0, 0]) == [(0, [0, 0])] * 3


def test_an_error_of_the_batches_is_the_users(tmp_path):
    def batches():
        yield 1
        yield {}["mine"]

    with pytest.raises(KeyError, match="mine"):
        list(px.nn.all_batches(batches()))


def test_rank_0_of_the_group_prints(rank_pool):
    assert rank_pool(3).run(cells.printed) == [("loss=0!", "loss=0!"), ("", "loss=1!"), ("", "")]
