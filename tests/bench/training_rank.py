"""One rank of `training_steps`: trains a small model, and prints the median of its steps.

Ranks of a peer know nothing of phalanx. Inputs are small whole numbers and the model is linear in
few steps, so that the order of a sum changes no bit of the checksum, which is rounded.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def mlx_step(kind: str, width: int) -> tuple[Callable[[], Any], Callable[[], float], int]:
    """Return a step, the sum of the parameters, and the rank."""
    import mlx.core as mx
    import mlx.optimizers
    from mlx import nn

    if kind == "mlx":
        world = mx.distributed.init(strict=True)
        average, rank = nn.average_gradients, world.rank()
    else:
        import phalanx as px

        average, rank = px.nn.average_gradients, px.init().rank()
        mx.distributed.init(strict=True)
    mx.random.seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    optimizer = mlx.optimizers.SGD(0.01)
    x = mx.random.normal((8, width), key=mx.random.key(rank))
    gradient = nn.value_and_grad(model, lambda x: (model(x) ** 2).mean())

    def step() -> None:
        _, gradients = gradient(x)
        optimizer.update(model, average(gradients))
        mx.eval(model.parameters(), optimizer.state)

    def checksum() -> float:
        return float(sum(layer.weight.abs().sum().item() for layer in model.layers))

    return step, checksum, rank


def torch_step(kind: str, width: int) -> tuple[Callable[[], Any], Callable[[], float], int]:
    """Return a step, the sum of the parameters, and the rank."""
    import os

    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    if kind == "ddp":
        dist.init_process_group("phalanx" if "PHALANX_RANK" in os.environ else "gloo")
        rank = dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        import phalanx as px

        rank = px.init().rank()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(8, width, generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        if kind != "ddp":
            means = px.nn.average_gradients([p.grad for p in model.parameters()])
            for parameter, mean in zip(model.parameters(), means, strict=True):
                parameter.grad = mean
        optimizer.step()

    def checksum() -> float:
        return float(sum(p.detach().abs().sum() for p in model.parameters() if p.ndim == 2))

    return step, checksum, rank


def main() -> None:
    """Train, and print the time of a step on rank 0."""
    kind, width, n_steps, n_warm = sys.argv[1], *map(int, sys.argv[2:])
    step, checksum, rank = (mlx_step if kind.startswith("mlx") else torch_step)(kind, width)
    times = []
    for _ in range(n_warm + n_steps):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    found = {
        "step_ms": statistics.median(times[n_warm:]) * 1e3,
        "checksum": f"{checksum():.4g}",
    }
    if rank == 0:
        print(json.dumps(found), flush=True)
    if "torch.distributed" in sys.modules and kind == "ddp":
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main()
