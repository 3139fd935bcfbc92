"""What ranks run: layers of MLX that they share, beside the whole ones."""

from __future__ import annotations

from typing import Any

from distributed.cells.texts import text_of

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


def adapter_of(linear: Any, has_magnitude: bool, observe: Any = None, rank: int = 3) -> Any:
    """Return a layer with an adapter: the attributes and the sums of mlx-lm's."""
    import mlx.core as mx
    from mlx import nn

    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.dropout, self.scale = linear, nn.Dropout(0.0), 2.0
            n_out = linear.weight.shape[0]
            n_in = matrix(linear).shape[1]
            self.lora_a = mx.random.normal((n_in, rank))
            self.lora_b = mx.random.normal((rank, n_out))
            if has_magnitude:
                self.m = mx.random.uniform(0.5, 1.5, (n_out,))

        def __call__(self, x: Any) -> Any:
            if observe is not None:
                observe(self)
            low_rank = self.dropout(x) @ self.lora_a @ self.lora_b
            if not has_magnitude:
                return self.linear(x) + self.scale * low_rank
            w = matrix(self.linear)
            norms = mx.linalg.norm(w + self.scale * (self.lora_a @ self.lora_b).T, axis=1)
            y = self.m / mx.stop_gradient(norms) * (x @ w.T + self.scale * low_rank)
            return y + self.linear.bias if "bias" in self.linear else y

    made = Adapter()
    made.linear.freeze()
    return made


def matrix(linear: Any) -> Any:
    """Return the weights of a layer as a plain matrix."""
    import mlx.core as mx

    if "scales" not in linear:
        return linear.weight
    how = (linear.group_size, linear.bits, linear.mode)
    return mx.dequantize(linear.weight, linear.scales, linear.biases, *how)


def compare(whole: Any, part: Any, x: Any, project: Any) -> list[Any]:
    """Compare a whole layer with one in parts: output, gradients of the input and the parameters.

    ``project(array, name)`` is this rank's part of a whole array.
    """
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten

    weights = mx.random.normal(whole(x).shape)
    is_real = mx.issubdtype(x.dtype, mx.floating)
    own = project(x, "x")
    differences = {"y": (part(own), project(whole(x), "y"))}
    wanted, found = {}, {}
    if tree_flatten(whole.trainable_parameters()):
        _, wanted = nn.value_and_grad(whole, lambda x: (whole(x) * weights).sum())(x)
        _, found = nn.value_and_grad(part, lambda x: (part(x) * project(weights, "y")).sum())(own)
    wanted, found = dict(tree_flatten(wanted)), dict(tree_flatten(found))
    assert wanted.keys() == found.keys(), (wanted.keys(), found.keys())
    differences |= {name: (found[name], project(wanted[name], name)) for name in wanted}
    if is_real:
        of_whole = mx.grad(lambda x: (whole(x) * weights).sum())(x)
        of_part = mx.grad(lambda x: (part(x) * project(weights, "y")).sum())(own)
        differences["x"] = (of_part, project(of_whole, "x"))
    assert all(one.shape == two.shape for one, two in differences.values()), differences
    assert part.training == whole.training
    worst = {name: float(mx.abs(a - b).max()) for name, (a, b) in differences.items()}
    return [worst, sorted(found)]


def adapters(
    sharding: str, bits: int, has_magnitude: bool, sizes: tuple[int, int] = (96, 160)
) -> list[Any]:
    """Compare a layer with an adapter with its parts."""
    import mlx.core as mx
    from mlx import nn

    mx.random.seed(5)
    world = px.init()
    n_in, n_out = sizes
    linear = nn.Linear(n_in, n_out)
    whole = adapter_of(linear.to_quantized(32, bits) if bits else linear, has_magnitude)
    part = px.nn.shard_linear(whole, sharding, group=world)
    is_output = sharding == "all-to-sharded"
    size = 32 if bits and not (is_output and n_out // 32 < world.size()) else 1
    from phalanx.nn.sharded.linear import partition

    low, high = partition(n_out if is_output else n_in, world.size(), size)[world.rank()]
    axes = {"y": -1, "lora_b": 1, "m": 0} if is_output else {"x": -1, "lora_a": 0}

    def project(array: Any, name: str) -> Any:
        if name not in axes:
            return array
        return mx.take(array, mx.arange(low, high), axis=axes[name])

    return [*compare(whole, part, mx.random.normal((2, 3, n_in)), project), repr(part)]


def embeddings(sharding: str, bits: int, n_rows: int, n_features: int) -> list[Any]:
    """Compare an embedding with its parts: look-ups, the last row by -1, and as_linear."""
    import mlx.core as mx
    from mlx import nn

    from phalanx.nn.sharded.linear import partition

    mx.random.seed(6)
    world = px.init()
    whole = nn.Embedding(n_rows, n_features)
    whole = whole.to_quantized(32, bits) if bits else whole
    part = px.nn.shard_linear(whole, sharding, group=world)
    is_output = sharding == "all-to-sharded"
    size = 32 if bits and is_output else 1
    low, high = partition(n_features if is_output else n_rows, world.size(), size)[world.rank()]
    axes = {"y": -1, "weight": 1} if is_output else {"weight": 0}

    def project(array: Any, name: str) -> Any:
        if name not in axes:
            return array
        return mx.take(array, mx.arange(low, high), axis=axes[name])

    numbers = mx.array([[0, n_rows - 1, 3], [3, 5, -1]])
    found = compare(whole, part, numbers, project)

    class AsLinear(nn.Module):
        def __init__(self, embedding: Any) -> None:
            super().__init__()
            self.embedding = embedding

        def __call__(self, x: Any) -> Any:
            return self.embedding.as_linear(x)

    axes = {"x": -1, "embedding.weight": 1} if is_output else {"y": -1, "embedding.weight": 0}
    x = mx.random.normal((4, n_features))
    return [*found, *compare(AsLinear(whole), AsLinear(part), x, project), repr(part)]


def constructors(bits: int) -> list[Any]:
    """Make layers in parts of nothing and of whole ones; return their shapes."""
    import mlx.core as mx
    from mlx import nn

    world = px.init()
    linear = nn.Linear(128, 64)
    if not bits:
        kinds = (px.nn.AllToShardedLinear, px.nn.ShardedToAllLinear)
        new = [kind(128, 64, group=world) for kind in kinds]
        made = [kind.from_linear(linear, group=world) for kind in kinds]
    else:
        linear = linear.to_quantized(32, bits)
        kinds = (px.nn.QuantizedAllToShardedLinear, px.nn.QuantizedShardedToAllLinear)
        new = [kind(128, 64, True, 32, bits, "affine", world) for kind in kinds]
        made = [kind.from_quantized_linear(linear, group=world) for kind in kinds]
    for one, two in zip(new, made, strict=True):
        assert {k: v.shape for k, v in one.parameters().items()} == {
            k: v.shape for k, v in two.parameters().items()
        }
        assert repr(one) == repr(two) == repr(one).replace(type(two).__name__, type(one).__name__)
        assert (one.trainable_parameters() == {}) is bool(bits)
    difference = made[0](mx.ones((1, 128))) - px.nn.shard_linear(
        linear, "all-to-sharded", group=world
    )(mx.ones((1, 128)))
    wrong = nn.LayerNorm(4)
    try:
        (kinds[0].from_quantized_linear if bits else kinds[0].from_linear)(wrong, group=world)
    except TypeError as error:
        return [float(mx.abs(difference).max()), made[0].weight.shape[0], str(error)]
    return ["no error"]


def frozen_stays_frozen() -> list[Any]:
    """Divide a layer of which the weight is frozen and which is in evaluation mode."""
    from mlx import nn

    linear = nn.Linear(4, 6)
    linear.freeze(keys="weight").eval()
    part = px.nn.shard_linear(linear, "all-to-sharded", group=px.init())
    return [list(part.trainable_parameters()), part.training]


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
        "rows": lambda: px.nn.shard_linear(
            nn.Embedding(8, 4), "sharded-to-all", segments=2, group=world
        ),
        "vocabulary": lambda: px.nn.shard_linear(nn.Embedding(2, 4), "sharded-to-all", group=world),
        "features": lambda: px.nn.shard_linear(
            nn.Embedding(8, 64).to_quantized(32, 4), "all-to-sharded", group=world
        ),
        "adapter": lambda: px.nn.shard_linear(
            adapter_of(linear, False), "all-to-sharded", group=world
        ),
        "made quantized": lambda: px.nn.QuantizedShardedToAllLinear(64, 8, group=world),
        "made": lambda: px.nn.AllToShardedLinear(4, 2, group=world),
    }
    return text_of(calls[case])
