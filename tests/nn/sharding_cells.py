"""What ranks run: layers of MLX that they share, beside the whole ones."""

from __future__ import annotations

from typing import Any

import phalanx as px


def layers(
    sizes: tuple[int, int, int], segments: Any, block: int | None, bits: int, has_bias: bool
) -> list[Any]:
    """Compare two layers that are shared with the whole ones: outputs, and gradients."""
    import mlx.core as mx
    from mlx import nn

    mx.random.seed(4)
    n_in, n_hidden, n_out = sizes
    first, second = nn.Linear(n_in, n_hidden, has_bias), nn.Linear(n_hidden, n_out, has_bias)
    if bits:
        first, second = first.to_quantized(32, bits), second.to_quantized(32, bits)
    x = mx.random.normal((3, n_in))
    world = px.init()
    how = {"segments": segments, "group": world, "block": block}
    a = px.nn.shard_linear(first, "all-to-sharded", **how)
    b = px.nn.shard_linear(second, "sharded-to-all", **how)

    def whole(x: Any) -> Any:
        return (second(first(x)) ** 2).sum()

    def parts(x: Any) -> Any:
        return (b(a(x)) ** 2).sum()

    found = [mx.abs(second(first(x)) - b(a(x))).max().item()]
    found.append(mx.abs(mx.grad(whole)(x) - mx.grad(parts)(x)).max().item())
    found.append(a(x).shape[-1])
    found.append([a.trainable_parameters() == {}, repr(a), repr(b)])
    return found


def inplace(size: int, block: int) -> list[list[float]]:
    """Divide the rows of a layer, and its columns by a function."""
    import mlx.core as mx
    from mlx import nn

    world = px.init()
    rows, columns = nn.Linear(2, size, bias=False), nn.Linear(size, 1)
    rows.weight = mx.arange(2.0 * size).reshape(size, 2)
    columns.weight = mx.arange(float(size)).reshape(1, size)
    px.nn.shard_inplace(rows, "all-to-sharded", group=world, block=block)
    px.nn.shard_inplace(
        columns, lambda path, _: 1 if path == "weight" else None, group=world, block=block
    )
    return [rows.weight[:, 0].tolist(), columns.weight[0].tolist(), list(columns.bias.shape)]


def error_of(case: str) -> str:
    """Divide what cannot be divided; return the error."""
    from mlx import nn

    world = px.init()
    linear = nn.Linear(64, 2)
    calls: dict[str, Any] = {
        "small": lambda: px.nn.shard_linear(linear, "all-to-sharded", group=world),
        "block": lambda: px.nn.shard_linear(linear, "sharded-to-all", group=world, block=7),
        "name": lambda: px.nn.shard_linear(linear, "rows", group=world),
        "kind": lambda: px.nn.shard_linear(nn.LayerNorm(4), "all-to-sharded", group=world),
        "segments": lambda: px.nn.shard_linear(linear, "sharded-to-all", segments=3, group=world),
        "order": lambda: px.nn.shard_linear(linear, "sharded-to-all", segments=[9, 5], group=world),
        "groups": lambda: px.nn.shard_linear(
            linear.to_quantized(32, 4), "sharded-to-all", group=world, block=16
        ),
        "few groups": lambda: px.nn.shard_linear(
            linear.to_quantized(32, 4), "sharded-to-all", group=world
        ),
        "path": lambda: px.nn.shard_inplace(linear, lambda *_: "x", group=world),
        "made": lambda: px.nn.AllToShardedLinear(4, 2, group=world),
    }
    try:
        calls[case]()
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
