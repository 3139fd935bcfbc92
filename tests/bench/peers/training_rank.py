"""One rank of `training_steps`: trains a small model, and prints the median time of its steps.

    training_rank.py KIND WIDTH STEPS WARM FOLDER

All kinds begin with the same parameters, and rank r always has the same samples. At its end a rank
writes its parameters to FOLDER/r.npy. Ranks of a peer import no phalanx.

Before each step the rank makes the same step without averaging, and takes it back. The median of
the differences is the time that averaging adds. A machine that is slower for some seconds slows
both.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

N_LAYERS, N_SAMPLES, RATE = 4, 8, 0.01


class Training(NamedTuple):
    """A model that trains."""

    step: Callable[[bool], None]  # with or without averaging
    take_back: Callable[[], Callable[[], None]]  # notes the parameters; the result restores them
    parameters: Callable[[], list[Any]]
    rank: int
    size: int


def first_weights(width: int) -> list[Any]:
    """Return the first weights: what all ranks of all peers begin with."""
    random = np.random.default_rng(0)
    return [
        (random.uniform(-1, 1, (width, width)) / width**0.5).astype(np.float32)
        for _ in range(N_LAYERS)
    ]


def samples(width: int, rank: int) -> Any:
    """Return the samples of a rank."""
    return np.random.default_rng([1, rank]).standard_normal((N_SAMPLES, width), np.float32)


def train_mlx(kind: str, width: int) -> Training:
    """Train in MLX with its own `average_gradients`, or with px.nn."""
    import mlx.core as mx
    import mlx.optimizers
    from mlx import nn

    world: Any = mx.distributed.init(strict=True)
    average: Any = nn.average_gradients
    if kind != "mlx":
        import phalanx as px

        group = px.init() if kind == "mlx-group" else None

        def average(gradients: Any) -> Any:
            return px.nn.average_gradients(gradients, group)

    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(N_LAYERS)))
    for layer, weight in zip(model.layers, first_weights(width), strict=True):
        layer.weight = mx.array(weight)
    optimizer = mlx.optimizers.SGD(RATE)
    x = mx.array(samples(width, world.rank()))
    gradient = nn.value_and_grad(model, lambda x: (model(x) ** 2).sum() / N_SAMPLES)

    def step(averages: bool) -> None:
        _, gradients = gradient(x)
        optimizer.update(model, average(gradients) if averages else gradients)
        mx.eval(model.parameters(), optimizer.state)

    def take_back() -> Callable[[], None]:
        return partial(model.update, model.parameters())

    def parameters() -> list[Any]:
        return [layer.weight for layer in model.layers]

    return Training(step, take_back, parameters, world.rank(), world.size())


def train_torch(kind: str, width: int) -> Training:
    """Train in torch with DistributedDataParallel, or with px.nn."""
    import torch
    import torch.distributed as dist

    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(N_LAYERS)]
    for layer, weight in zip(layers, first_weights(width), strict=True):
        layer.weight.data = torch.from_numpy(weight)
    model: Any = torch.nn.Sequential(*layers)
    if kind == "ddp":
        dist.init_process_group("phalanx" if "PHALANX_RANK" in os.environ else "gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        import phalanx as px

        rank, size = px.init().rank(), px.init().size()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    x = torch.from_numpy(samples(width, rank))

    def step(averages: bool) -> None:
        optimizer.zero_grad()
        with model.no_sync() if kind == "ddp" and not averages else nullcontext():
            ((model(x) ** 2).sum() / N_SAMPLES).backward()
        if kind != "ddp" and averages:
            means = px.nn.average_gradients([layer.weight.grad for layer in layers])
            for layer, mean in zip(layers, means, strict=True):
                layer.weight.grad = mean
        optimizer.step()

    def parameters() -> list[Any]:
        return [layer.weight.detach() for layer in layers]

    def take_back() -> Callable[[], None]:
        before = [weight.clone() for weight in parameters()]

        def restore() -> None:
            for weight, its in zip(parameters(), before, strict=True):
                weight.copy_(its)

        return restore

    return Training(step, take_back, parameters, rank, size)


def timed(step: Callable[[bool], None], averages: bool) -> float:
    """Return the seconds of a step."""
    begun = time.perf_counter()
    step(averages)
    return time.perf_counter() - begun


def main() -> None:
    """Train, write the parameters, and print the time of a step on rank 0."""
    kind, folder = sys.argv[1], sys.argv[5]
    width, n_steps, n_warm = map(int, sys.argv[2:5])
    training = (train_mlx if kind.startswith("mlx") else train_torch)(kind, width)
    times, added = [], []
    for _ in range(n_warm + n_steps):
        restore = training.take_back()
        alone = timed(training.step, False)
        restore()
        times.append(timed(training.step, True))
        added.append(times[-1] - alone)
    np.save(f"{folder}/{training.rank}.npy", np.array([np.array(p) for p in training.parameters()]))
    if training.rank == 0:
        found = {
            "step_ms": statistics.median(times[n_warm:]) * 1e3,
            "added_ms": statistics.median(added[n_warm:]) * 1e3,
            "size": training.size,
        }
        print(json.dumps(found), flush=True)
    if kind == "ddp":
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main()
