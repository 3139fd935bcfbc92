"""What ranks run: average, sum and clip trees of gradients."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
from distributed.cells.texts import text_of

import phalanx as px

DTYPES = {
    "numpy": ("float16", "float32", "float64", "complex64", "int32"),
    "torch": ("float16", "bfloat16", "float32", "float64", "complex128", "int64"),
    "mlx": ("float16", "bfloat16", "float32", "complex64", "int32"),
}


def tree_of(
    framework: str, rank: int, shapes: list[tuple[int, ...]], seed: int = 0
) -> dict[str, Any]:
    """Return a rank's gradients: small whole numbers, whose sums are exact in every dtype."""
    random = np.random.default_rng([seed, rank])
    leaves = [
        _as(framework, random.integers(-8, 9, shape), dtype)
        for dtype in DTYPES[framework]
        for shape in shapes
    ]
    return {"first": leaves[0], "none": None, "rest": [tuple(leaves[1:3]), *leaves[3:]]}


def _as(framework: str, values: Any, dtype: str) -> Any:
    if framework == "numpy":
        return values.astype(dtype)
    if framework == "torch":
        import torch

        return torch.from_numpy(values).to(getattr(torch, dtype))
    import mlx.core as mx

    return mx.array(values).astype(getattr(mx, dtype))


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves as numpy arrays, with the dtype's name, in order."""
    from phalanx.nn.trees import flatten

    return [
        (str(leaf.array.dtype).rpartition(".")[2], _numpy(leaf.array))
        for leaf in flatten("test", tree)
        if leaf.array is not None
    ]


def _numpy(x: Any) -> Any:
    kind = type(x).__module__
    if kind.startswith("torch"):
        import torch

        return (x.to(torch.float32) if x.dtype is torch.bfloat16 else x).numpy()
    if kind.startswith("mlx"):
        import mlx.core as mx

        x = x.astype(mx.float32) if x.dtype == mx.bfloat16 else x
    return np.array(x)


def averages(
    framework: str,
    shapes: list[tuple[int, ...]],
    options: dict[str, Any],
    weights: list[float] | None = None,
    seed: int = 0,
) -> list[Any]:
    """Average a tree; ``weights`` are those of all ranks."""
    rank = px.init().rank()
    tree = tree_of(framework, rank, shapes, seed)
    weight = None if weights is None else weights[rank]
    return leaves_of(px.nn.average_gradients(tree, weights=weight, **options))


def averages_of_uneven(weights: list[float]) -> tuple[Any, Any]:
    """Average what a mean over unequal batches gives, and over all samples at once."""
    rank = px.init().rank()
    samples = [np.random.default_rng([r]).random((int(n), 3)) for r, n in enumerate(weights)]
    mine = samples[rank]
    mean = px.nn.average_gradients(
        mine.mean(axis=0) if len(mine) else np.full(3, np.nan), weights=len(mine)
    )
    return mean, np.concatenate(samples).mean(axis=0)


def operations(sizes: list[int], options: dict[str, Any]) -> list[str]:
    """Return the operations that averaging arrays of float32 calls, with their bytes."""
    tree = [np.ones(n, np.float32) for n in sizes]
    before = int(px.trace()["number"].max(initial=-1))
    px.nn.average_gradients(tree, **options)
    records = px.trace()
    return [str(op) for op in records["op"][records["number"] > before]]


def overflowing() -> list[Any]:
    """Average values whose sum is more than the largest float16."""
    mean = px.nn.average_gradients([np.full(3, 40_000, np.float16)])
    return list(mean[0])


def third_in(communication_type: str | None) -> Any:
    """Average thirds."""
    third = np.full(1, 1 / 3, np.float32)
    return px.nn.average_gradients(third, communication_type=communication_type)[0]


def weightless(bad_rank: int) -> Any:
    """One rank has no samples, and NaN for gradients."""
    rank = px.init().rank()
    gradient = np.full(2, np.nan if rank == bad_rank else rank + 1.0)
    return px.nn.average_gradients(gradient, weights=0 if rank == bad_rank else 2)


def error_of(case: str) -> str:
    """Average something wrong; return the error, after the ranks have met once more."""
    rank = px.init().rank()
    ones = np.ones(2)
    trees: dict[str, Any] = {
        "name": {"a": ones, "b": ones} if rank != 1 else {"a": ones, "c": ones},
        "missing": {"a": ones, "b": None if rank == 1 else ones},
        "shape": {"a": ones if rank != 1 else np.ones(3)},
        "order": {"a": ones, "b": ones} if rank != 1 else {"b": ones, "a": ones},
        "options": [ones],
        "no weight": [ones],
        "negative": [ones],
        "leaf": {"layers": [{"w": [1.5]}]},
        "type": [ones],
        "stream": [ones],
        "group": [ones],
    }
    options: dict[str, Any] = {
        "options": {"all_reduce_size": 8 if rank == 1 else 16},
        "no weight": {"weights": 0},
        "negative": {"weights": -1},
        "type": {"communication_type": "int8"},
        "stream": {"communication_stream": 1},
        "group": {"group": "all"},
    }.get(case, {})
    if "device" in case:
        import torch

        is_there = case == "device" or rank == 1
        other = torch.ones(2, device="meta" if is_there else "cpu")
        trees[case] = {"a": torch.ones(2), "b": other}
    said = text_of(px.nn.average_gradients, trees[case], **options)
    px.barrier()
    return said


def clipped(limit: float) -> tuple[Any, float]:
    """Clip parts of this rank, and a leaf that all ranks have."""
    rank = px.init().rank()
    tree = {"part": np.array([3.0 * (rank + 1)], np.float32), "whole": np.array([2.0], np.float16)}
    return px.nn.clip_grad_norm_sharded(tree, limit, is_replicated=lambda path, _: path == "whole")


def backward_of_torch() -> list[float]:
    """Each rank weighs the input by its own number and one."""
    import torch

    x = torch.ones(2, requires_grad=True)
    (px.nn.sum_gradients()(x) * (px.init().rank() + 1)).sum().backward()
    return list(x.grad.tolist())


def backward_of_mlx() -> list[float]:
    """Each rank weighs the input by its own number and one."""
    import mlx.core as mx

    world = px.init()
    f = px.nn.sum_gradients(world)
    gradient: Any = mx.grad(lambda x: (f(x) * (world.rank() + 1)).sum())(mx.ones(2))
    return list(gradient.tolist())


def shards(n: int, options: dict[str, Any]) -> list[int]:
    """Return the samples of this rank."""
    return list(px.nn.shard(range(n), **options))


def seeds(per_rank: bool) -> tuple[float, float, float]:
    """Return the first numbers of each generator."""
    import random

    generator = px.nn.seed(3, per_rank=per_rank)
    return generator.random(), random.random(), float(np.random.random())  # noqa: NPY002


def uneven_batches(numbers: list[int]) -> tuple[int, list[float]]:
    """Sum the weighted means of batches, of which each rank has another number."""
    rank = px.init().rank()
    n_items, total = 0, np.zeros(2)
    for batch in px.nn.all_batches(iter([rank + 1.0] * numbers[rank])):
        gradient = np.full(2, np.nan if batch is None else batch)
        total += px.nn.average_gradients(gradient, weights=0 if batch is None else 1)
        n_items += 1
    return n_items, total.tolist()


def printed() -> tuple[str, str]:
    """Print on rank 0 of the world, and on rank 0 of a split of ranks 1 and 2."""
    world = px.init()
    part = world.split(0 if world.rank() == 0 else 1)
    texts = []
    for group in (None, part):
        with redirect_stdout(StringIO()) as out:
            px.print0("loss", world.rank(), sep="=", end="!", group=group)
        texts.append(out.getvalue())
    return texts[0], texts[1]
