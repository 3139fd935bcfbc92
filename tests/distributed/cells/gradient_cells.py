"""What ranks with MLX differentiate: operations whose derivative moves bytes as well."""

from __future__ import annotations

from typing import Any

import phalanx as px


def scattered() -> list[float]:
    """Each rank weighs its share of the sum by its own number and one."""
    import mlx.core as mx

    world = px.init()
    x = mx.ones(2 * world.size())
    gradient: Any = mx.grad(lambda x: (px.sum_scatter(x) * (world.rank() + 1)).sum())(x)
    return list(gradient.tolist())


def exchanged() -> list[float]:
    """Each rank weighs what it got from rank i by ten times its own number and i."""
    import mlx.core as mx

    world = px.init()
    weights = mx.array([10.0 * world.rank() + i for i in range(world.size())])
    gradient: Any = mx.grad(lambda x: (px.all_to_all(x) * weights).sum())(mx.ones(world.size()))
    return list(gradient.tolist())


def sent() -> str:
    """Rank 0 differentiates what it has sent to rank 1."""
    import mlx.core as mx

    x = mx.ones(2)
    if px.init().rank() == 1:
        return str(px.recv_like(x, 0).tolist())
    if px.init().rank() > 1:
        return ""
    try:
        mx.grad(lambda x: px.send(x, 1).sum())(x)
    except px.NotSupported as error:
        return str(error)
    return "no error"
