"""What ranks run: save and load the state of a training."""

from __future__ import annotations

from typing import Any

import numpy as np
from distributed.cells.texts import text_of as said_of

import phalanx as px


def state_of(framework: str, seed: float) -> dict[str, Any]:
    """Return a state with arrays of each dtype; ``seed`` 0: what a new training begins with."""
    plain = {"step": int(seed), "name": "x", "rate": 0.1, "pair": (1, [None, True, 2 + 1j, b"a"])}
    if framework == "torch":
        import torch

        names = ("float32", "bfloat16", "float16", "float64", "int64", "bool", "complex64")
        tensors = {n: torch.full((2, 3), seed).to(getattr(torch, n)) for n in names}
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters())
        if seed:
            model(torch.full((1, 3), seed)).sum().backward()
            optimizer.step()
        return {**plain, "arrays": tensors, "model": model, "optimizer": optimizer}
    if framework == "mlx":
        import mlx.core as mx

        names = ("float32", "bfloat16", "float16", "int32", "bool_", "complex64", "uint64")
        return {**plain, "arrays": {n: mx.full((2, 3), seed).astype(getattr(mx, n)) for n in names}}
    names = ("float32", "float16", "float64", "int8", "uint16", "bool", "complex64", "complex128")
    arrays: dict[str, Any] = {n: np.full((2, 3), seed).astype(n) for n in names}
    big = {"big": np.full(10_000, seed), "none": np.empty((0, 2)), "scalar": np.full((), seed)}
    columns = np.asfortranarray(np.arange(6.0).reshape(2, 3) * seed)
    generator = np.random.default_rng(int(seed))
    return {**plain, "arrays": arrays | big, "columns": columns, "number": np.float32(seed), "random": generator}  # fmt: skip


def text_of(state: Any) -> str:
    """Return a state as text, for comparison."""
    from phalanx.nn.states import capture

    return repr(capture(state))


def save(folder: str, framework: str, seed: float, wait: bool = True, keep: int = 2) -> str:
    """Save a state; return it as text."""
    state = state_of(framework, seed)
    own = {"random": np.random.default_rng([3, px.init().rank()]), "x": np.full(2, seed)}
    saving = px.nn.save(folder, state, own=own, wait=wait, keep=keep)
    if not wait:
        for name, array in state["arrays"].items():
            if name not in ("none", "scalar"):
                array[:1] = 1  # what is written is the copy
        state = state_of(framework, seed)
        saving.wait()
    return text_of((state, own))


def load(folder: str, framework: str, step: int | None = None) -> tuple[int, str]:
    """Load a checkpoint into a new state; return it as text."""
    state = state_of(framework, 0.0)
    own = {"random": np.random.default_rng(99), "x": np.zeros(2)}
    found = px.nn.load(folder, state, own=own, step=step)
    return found, text_of((state, own))


def error_of(folder: str, case: str) -> str:
    """Save or load what is wrong; return the error, after the ranks have met once more."""
    rank = px.init().rank()
    states: dict[str, dict[str, Any]] = {
        "steps": {"step": rank, "w": np.ones(1)},
        "forms": {"w": np.ones(1), **({"b": np.ones(1)} if rank else {})},
        "shapes": {"w": np.ones(1 + rank)},
        "objects": {"w": np.array(["a"])},
        "no folder": {"w": np.ones(1)},
    }
    if case in states:
        said = said_of(px.nn.save, folder, states[case])
    else:
        said = said_of(px.nn.load, folder, {"w": np.zeros(1)})
    px.barrier()
    return said


def save_module(folder: str) -> None:
    """Save a module and its optimizer, alike on all ranks."""
    import torch

    torch.manual_seed(1)
    px.nn.save(folder, state_of("torch", 4.0))


def error_of_load(folder: str) -> str:
    """Load a checkpoint; return the error."""
    said = said_of(load, folder, "numpy")
    px.barrier()
    return said
