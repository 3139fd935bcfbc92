"""What ranks run: trainings in steps, with what goes wrong in them.

A process of the farm stays for the next cell, as the rank of a notebook does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from distributed.cells.texts import text_of

import phalanx as px
from phalanx.nn import training

STATES: dict[str, dict[str, Any]] = {}


def new_state(seed: int | None = None) -> None:
    """Begin a training; ``seed``: with parameters of its own."""
    rank = px.init().rank()
    w = np.zeros(3) if seed is None else np.random.default_rng([seed, rank]).random(3)
    STATES["state"] = {"w": w, "seen": []}
    STATES["own"] = {"random": np.random.default_rng([5, rank])}


def train(stop: int, every: int = 1, lost: int = -1, fail: str = "") -> tuple[list[float], Any]:
    """Train; ``lost``: that rank is a new one; ``fail``: what goes wrong, in step 4."""
    rank = px.init().rank()
    if rank == lost:
        new_state()
        training.TrainingSteps._left = None
    state, own = STATES["state"], STATES["own"]
    try:
        for step in px.nn.steps(state, stop, own=own, every=every):
            with step:
                gradient = own["random"].random(3)
                state["w"] += px.nn.average_gradients(gradient)
                state["seen"].append(step.number)
                if fail and step.number == 4:
                    raise KeyError(fail)  # noqa: TRY301
    except (KeyError, px.DistributedError) as error:
        return state["w"].tolist(), f"{type(error).__name__} {state['step']} {state['seen']}"
    return state["w"].tolist(), state["seen"]


def stopped_after_the_vote(at: int) -> tuple[int, list[float]]:
    """Rank 1 is stopped when all have finished a step, before it knows."""
    gather = training.all_gather_object
    state, own = STATES["state"], STATES["own"]

    def then_stop(obj: Any, **options: Any) -> Any:
        told = gather(obj, **options)
        if type(obj) is tuple and obj[0] == at and px.init().rank() == 1:
            raise KeyboardInterrupt
        return told

    training.all_gather_object = then_stop
    try:
        for step in px.nn.steps(state, at, own=own):
            with step:
                state["w"] += px.nn.average_gradients(own["random"].random(3))
    except KeyboardInterrupt:
        pass
    finally:
        training.all_gather_object = gather
    return state["step"], state["w"].tolist()


def begin_at(numbers: list[int]) -> tuple[int, list[float]]:
    """Each rank begins at a step of its own; the farthest gives its state."""
    rank = px.init().rank()
    state = {"w": np.full(2, float(rank)), "step": numbers[rank]}
    for step in px.nn.steps(state, max(numbers) + 1):
        with step:
            pass
    return state["step"], state["w"].tolist()


def begin_with(framework: str) -> Any:
    """Train a module whose parameters each rank has drawn for itself."""
    rank = px.init().rank()
    if framework == "torch":
        import torch

        torch.manual_seed(rank)
        model: Any = torch.nn.Linear(2, 2)
        optimizer: Any = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in px.nn.steps({"model": model, "optimizer": optimizer}, 2):
            with step:
                optimizer.zero_grad()
                model(torch.ones(1, 2) * rank).sum().backward()
                mean = px.nn.average_gradients([p.grad for p in model.parameters()])
                for parameter, gradient in zip(model.parameters(), mean, strict=True):
                    parameter.grad = gradient
                optimizer.step()
        return model.weight.tolist()
    import mlx.core as mx
    import mlx.optimizers
    from mlx import nn

    mx.random.seed(rank)
    model = nn.Linear(2, 2)
    optimizer = mlx.optimizers.Adam(0.1)
    gradient = nn.value_and_grad(model, lambda x: model(x).sum())
    for step in px.nn.steps({"model": model, "optimizer": optimizer}, 2):
        with step:
            mean = px.nn.average_gradients(gradient(mx.ones((1, 2)) * rank)[1], px.init())
            optimizer.update(model, mean)
    return model.weight.tolist()


def different_steps() -> str:
    """Rank 1 counts a step twice."""
    state: dict[str, Any] = {}

    def train() -> None:
        for step in px.nn.steps(state, 5):
            with step:
                state["step"] += px.init().rank() == 1

    said = text_of(train)
    return f"{state['step']} {said}"


def own_on_some() -> str:
    """Rank 1 forgets what it has for itself."""
    return text_of(lambda: list(px.nn.steps({}, 1, own=None if px.init().rank() == 1 else {})))
