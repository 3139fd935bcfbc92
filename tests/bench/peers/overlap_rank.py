"""One rank of the overlap section of `training_steps`: steps without, with and beside sums.

    overlap_rank.py COMPUTE WIDTH STEPS WARM

A step computes the gradients of N_LAYERS layers of WIDTH x WIDTH float32, the last layer first, and
sums each over the ranks. It does so in three ways, in turns:

- alone: without sums;
- serial: all layers are computed, then all sums are begun, and waited for;
- overlapped: a sum begins when its layer is computed, and all are waited for at the end.

COMPUTE is `real` (the backward pass of torch on this rank's core; a hook of each parameter begins
its sum) or `wait` (the rank sleeps until a device would have computed the layer: WAIT_S each). A
step's time is that of the slowest rank, from a barrier on. Rank 0 prints the medians.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import phalanx as px

N_LAYERS = 24
N_SAMPLES = 64
WAIT_S = 2e-3
WAYS = ("alone", "serial", "overlapped")
_Ready = Callable[[Any], None]


def waiting(width: int) -> Callable[[_Ready], None]:
    """Return a backward pass of a device: each gradient is ready at a time of its own."""
    gradients = [np.empty((width, width), np.float32) for _ in range(N_LAYERS)]

    def backward(ready: _Ready) -> None:
        begun = time.perf_counter()
        for i, gradient in enumerate(gradients):
            gradient.fill(i + 1)
            time.sleep(max(0.0, begun + (i + 1) * WAIT_S - time.perf_counter()))
            ready(gradient)

    return backward


def computing(width: int) -> Callable[[_Ready], None]:
    """Return the backward pass of a model of torch."""
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(N_LAYERS)]
    model = torch.nn.Sequential(*layers)
    random = torch.Generator().manual_seed(px.init().rank())
    x = torch.randn(N_SAMPLES, width, generator=random)
    receivers: list[_Ready] = []
    for layer in layers:
        layer.weight.register_post_accumulate_grad_hook(lambda p: receivers[0](p.grad))

    def backward(ready: _Ready) -> None:
        receivers[:] = [ready]
        model.zero_grad()
        (model(x) ** 2).sum().backward()

    return backward


def step(way: str, backward: Callable[[_Ready], None]) -> tuple[float, list[Any]]:
    """Make a step; return its seconds and the gradients."""
    gradients: list[Any] = []
    works: list[Any] = []

    def begin_sum(gradient: Any) -> None:
        works.append(px.all_sum(gradient, out=gradient, async_op=True))

    def ready(gradient: Any) -> None:
        gradients.append(gradient)
        if way == "overlapped":
            begin_sum(gradient)

    px.barrier()
    begun = time.perf_counter()
    backward(ready)
    if way == "serial":
        for gradient in gradients:
            begin_sum(gradient)
    for work in works:
        work.wait()
    return time.perf_counter() - begun, gradients


def check(backward: Callable[[_Ready], None]) -> None:
    """Raise an error if a way to sum gives other gradients."""
    own, serial, overlapped = (
        [np.array(gradient) for gradient in step(way, backward)[1]] for way in WAYS
    )
    for one, other, mine in zip(serial, overlapped, own, strict=True):
        want = px.all_sum(mine)
        for found in (one, other):
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def main() -> None:
    """Make steps in all ways, in turns."""
    width, n_steps, n_warm = map(int, sys.argv[2:])
    backward = {"wait": waiting, "real": computing}[sys.argv[1]](width)
    check(backward)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(n_warm + n_steps):
        for way in WAYS:
            times[way].append(step(way, backward)[0])
    slowest = {way: px.all_max(np.array(its))[n_warm:] for way, its in times.items()}
    found = {f"{way}_ms": median(its.tolist()) * 1e3 for way, its in slowest.items()}
    px.print0(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
