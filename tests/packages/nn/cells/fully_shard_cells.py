"""What ranks run: modules of MLX that they divide fully, beside the whole ones."""

from __future__ import annotations

from typing import Any

from distributed.cells.texts import text_of

import phalanx as px


def tiny_model(seed: int = 3) -> Any:
    """Return a model with uneven sizes, a scalar, a list of arrays and an embedding."""
    import mlx.core as mx
    from mlx import nn

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 5)
            self.layers = [nn.Linear(5, 9), nn.Linear(9, 5, bias=False)]
            self.norm = nn.RMSNorm(5)
            self.shifts = [mx.zeros((1,)), mx.array(0.5)]

        def __call__(self, x: mx.array) -> mx.array:
            h = self.embed(x)
            h = self.layers[1](nn.silu(self.layers[0](h))) + self.shifts[0]
            return self.embed.as_linear(self.norm(h) * self.shifts[1])

    mx.random.seed(seed)
    model = Tiny()
    mx.eval(model.parameters())
    return model


def divide(model: Any, how: str, **options: Any) -> Any:
    """Divide a tiny model as a whole, its layers, or both."""
    if how != "model":
        for layer in [model.embed, *model.layers]:
            px.nn.fully_shard(layer, **options)
    return model if how == "layers" else px.nn.fully_shard(model, **options)


def whole(tree: Any, like: Any) -> dict[str, Any]:
    """Return the whole arrays of a tree of parts, as numpy's."""
    import numpy as np
    from mlx.utils import tree_flatten

    shapes = {path: array.shape for path, array in tree_flatten(like)}
    found = {}
    for path, part in tree_flatten(tree):
        rows = px.all_gather(np.array(part))
        shape = shapes[path] if px.init().size() > 1 else part.shape
        found[path] = rows.reshape(rows.shape[0] if shape else -1, *shape[1:])[
            : shape[0] if shape else 1
        ].reshape(shape)
    return found


def train(how: str, reshards: bool, n_steps: int, kind: str) -> list[Any]:
    """Train divided, and whole with the samples of all ranks; return the largest differences."""
    import mlx.core as mx
    import numpy as np
    from mlx import nn, optimizers
    from mlx.utils import tree_flatten

    world = px.init()
    rank, size = world.rank(), world.size()
    plain = tiny_model()
    model = tiny_model()
    names = [path for path, _ in tree_flatten(model.parameters())]
    model = divide(model, how, group=world, reshard_after_forward=reshards)
    assert [path for path, _ in tree_flatten(model.parameters())] == names
    make = {"sgd": lambda: optimizers.SGD(0.1), "adamw": lambda: optimizers.AdamW(0.01)}[kind]
    ours, theirs = make(), make()

    def loss(model: Any, x: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(x), (x + 1) % 7).mean()

    for step in range(n_steps):
        mx.random.seed(100 + step)
        batch = mx.random.randint(0, 7, (2 * size, 3))
        mine = batch[2 * rank : 2 * rank + 2]
        _, gradients = nn.value_and_grad(model, lambda x: loss(model, x))(mine)
        if how == "layers":  # the others are whole on all ranks
            averaged = px.nn.average_gradients(
                {"norm": gradients["norm"], "shifts": gradients["shifts"]}, world
            )
            gradients = {**gradients, **averaged}
        parts = dict(tree_flatten(model.parameters()))
        assert all(g.shape == parts[path].shape for path, g in tree_flatten(gradients))
        ours.update(model, gradients)
        _, gradients = nn.value_and_grad(plain, lambda x: loss(plain, x))(batch)
        theirs.update(plain, gradients)
        mx.eval(model.parameters(), plain.parameters())
    like = plain.parameters()
    if how == "layers":
        tree = {"embed": model.embed.parameters(), "layers": [a.parameters() for a in model.layers]}
    else:
        tree = model.parameters()
    found, wanted = whole(tree, like), dict(tree_flatten(like))
    x = mx.array([[1, 2, 3]])
    worst = max(float(np.abs(found[path] - np.array(wanted[path])).max()) for path in found)
    return [worst, float(mx.abs(model(x) - plain(x)).max()), type(model).__name__]


def _sum_of(model: Any, x: Any) -> Any:
    return (model(x) ** 2).sum()


def any_tree(shapes: list[Any], dtypes: list[str], reshards: bool, seed: int) -> list[Any]:
    """Compare the gradients of a module of arrays with those of all ranks' whole modules."""
    import mlx.core as mx
    import numpy as np
    from mlx import nn
    from mlx.utils import tree_flatten

    world = px.init()

    class Arrays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = [
                (mx.random.normal(shape, key=mx.random.key(seed + i)) * 8).astype(getattr(mx, kind))
                for i, (shape, kind) in enumerate(zip(shapes, dtypes, strict=True))
            ]
            self.first, self.others = made[0], {"few": made[1:]}

        def __call__(self, factor: mx.array) -> dict[str, Any]:
            arrays = [self.first, *self.others["few"]]
            real = [(a.astype(mx.float32) * factor).sum() for a in arrays if a.dtype != mx.uint32]
            kinds = [(str(a.dtype), a.shape, a.tolist() if a.ndim < 1 else None) for a in arrays]
            return {"sum": sum(real, mx.array(0.0)), "kinds": kinds, "last": [arrays[-1] + 0]}

    plain, model = Arrays(), Arrays()
    names = [path for path, _ in tree_flatten(model.parameters())]
    assert px.nn.fully_shard(model, group=world, reshard_after_forward=reshards) is model
    assert [path for path, _ in tree_flatten(model.parameters())] == names
    factor = mx.array(float(world.rank() + 1))
    ours, theirs = model(factor), plain(factor)
    assert ours["kinds"] == theirs["kinds"], (ours["kinds"], theirs["kinds"])
    assert mx.array_equal(ours["last"][0], theirs["last"][0])
    assert mx.allclose(ours["sum"], theirs["sum"], 1e-5, 1e-4)
    _, found = nn.value_and_grad(model, lambda: model(factor)["sum"])()
    _, wanted = nn.value_and_grad(plain, lambda: plain(factor)["sum"])()
    parts = dict(tree_flatten(model.parameters()))
    for path, gradient in tree_flatten(found):
        assert gradient.shape == parts[path].shape
        assert gradient.dtype == parts[path].dtype
    gathered = {
        path: np.array(gradient.astype(mx.float32))
        for path, gradient in tree_flatten(wanted)
        if gradient.dtype != mx.uint32
    }
    mean = {path: px.all_sum(gradient) / world.size() for path, gradient in gathered.items()}
    found = [(path, g.astype(mx.float32)) for path, g in tree_flatten(found) if path in mean]
    merged = {}
    for path, gradient in found:
        merged |= whole({path: gradient}, {path: wanted_of(plain, path)})
    return [float(np.abs(merged[path] - mean[path]).max(initial=0)) for path in mean]


def wanted_of(module: Any, path: str) -> Any:
    """Return a parameter by its path."""
    from mlx.utils import tree_flatten

    return dict(tree_flatten(module.parameters()))[path]


def counted(how: str, reshards: bool) -> tuple[int, int]:
    """Return how many gathers and reductions a step with two divided layers of two dtypes has."""
    import mlx.core as mx
    from mlx import nn

    world = px.init()
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    model.layers[0].bias = model.layers[0].bias.astype(mx.float16)
    for layer in model.layers if how == "layers" else [model]:
        px.nn.fully_shard(layer, group=world, reshard_after_forward=reshards)
    before = px.trace()["number"].max(initial=-1)
    value, gradients = nn.value_and_grad(model, lambda x: _sum_of(model, x))(mx.ones((2, 4)))
    mx.eval(value, gradients)
    names = [str(row["op"]) for row in px.trace() if row["number"] > before]
    return names.count("all_gather"), names.count("sum_scatter")


def adapters(bits: int, reshards: bool, compute_dtype: str | None) -> list[Any]:
    """Divide a model with frozen quantized layers and adapters, and compare it with the whole."""
    import mlx.core as mx
    import numpy as np
    from mlx import nn
    from mlx.utils import tree_flatten
    from nn.cells.sharding_cells import adapter_of

    world = px.init()
    kind = None if compute_dtype is None else getattr(mx, compute_dtype)

    seen = {}

    def observe(module: Any) -> None:
        seen.update({p: (str(a.dtype), a.shape) for p, a in tree_flatten(module.parameters())})

    def make() -> Any:
        mx.random.seed(8)
        linear = nn.Linear(64, 70)
        linear = linear.to_quantized(32, bits) if bits else linear
        if bits:
            linear.scales = linear.scales.astype(mx.float16)
            linear.biases = linear.biases.astype(mx.float16)
        return adapter_of(linear, has_magnitude=False, observe=observe)

    plain, model = make(), make()
    px.nn.fully_shard(model, group=world, compute_dtype=kind, reshard_after_forward=reshards)
    seen.clear()
    x = mx.random.normal((3, 64), key=mx.random.key(world.rank()))
    _, found = nn.value_and_grad(model, lambda x: (model(x) ** 2).mean())(x)
    mx.eval(found)
    observed = dict(seen)
    _, wanted = nn.value_and_grad(plain, lambda x: (plain(x) ** 2).mean())(x)
    found, wanted = dict(tree_flatten(found)), dict(tree_flatten(wanted))
    assert found.keys() == wanted.keys()
    merged = whole(found, plain.parameters())
    mean = {path: px.all_sum(np.array(g)) / world.size() for path, g in wanted.items()}
    worst = max(
        float(np.abs(merged[path] - mean[path]).max() / np.abs(mean[path]).max()) for path in mean
    )
    parts = {path: str(array.dtype) for path, array in tree_flatten(model.parameters())}
    raw = whole(model.linear.parameters(), plain.linear.parameters())
    is_same = all(np.array_equal(raw[k], np.array(v)) for k, v in plain.linear.parameters().items())
    return [worst, observed, parts, is_same]


def random_numbers(reshards: bool) -> list[Any]:
    """Draw dropout in a divided module; return a gradient, the sum, and the next number."""
    import mlx.core as mx
    import numpy as np
    from mlx import nn

    world = px.init()
    mx.random.seed(21)
    model = nn.Sequential(nn.Linear(4, 50, bias=False), nn.Dropout(0.5))
    px.nn.fully_shard(model, group=world, reshard_after_forward=reshards)
    mx.random.seed(22 + world.rank())
    value, gradients = nn.value_and_grad(model, lambda x: model(x).sum())(mx.ones((1, 4)))
    gradient = px.all_gather(np.array(gradients["layers"][0]["weight"]))
    return [gradient.tolist(), float(value), float(mx.random.uniform())]


def statistics(reshards: bool) -> list[Any]:
    """Train a module that changes frozen parameters in its forward pass."""
    import mlx.core as mx
    from mlx import nn

    world = px.init()
    plain, model = nn.BatchNorm(5), nn.BatchNorm(5)
    px.nn.fully_shard(model, group=world, reshard_after_forward=reshards)
    x = mx.random.normal((8, 5), key=mx.random.key(1))
    for _ in range(2):
        _, gradients = nn.value_and_grad(model, lambda x: _sum_of(model, x))(x)
        mx.eval(gradients, model.parameters())
        plain(x)
    found = whole(model.parameters(), plain.parameters())
    assert sorted(gradients) == ["bias", "weight"]
    return [float(abs(found[name] - plain[name]).max()) for name in ("running_mean", "running_var")]


def peak(reshards: bool) -> int:
    """Return the most memory of a step with eight layers, in whole layers."""
    import mlx.core as mx
    from mlx import nn

    world = px.init()
    size = 512
    model = nn.Sequential(*[nn.Linear(size, size, bias=False) for _ in range(8)])
    for layer in model.layers:
        px.nn.fully_shard(layer, group=world, reshard_after_forward=reshards)
    x = mx.ones((1, size))
    mx.eval(x, model.parameters())
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    value, gradients = nn.value_and_grad(model, lambda x: _sum_of(model, x))(x)
    mx.eval(value, gradients)
    return int(mx.get_peak_memory() - before) // (4 * size * size)


def gathered(how: str, compute_dtype: str | None) -> list[Any]:
    """Return differences of the parameters given back, whether all stay in parts, and dtypes."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    def shapes() -> list[Any]:
        return [array.shape for _, array in tree_flatten(model.parameters())]

    kind = None if compute_dtype is None else getattr(mx, compute_dtype)
    plain, model = tiny_model(), tiny_model()
    for one in (plain, model):
        one.layers[0].freeze()
        one.layers[1].weight = one.layers[1].weight.astype(mx.bfloat16)
    divide(model, how, group=px.init(), compute_dtype=kind)
    before = shapes()
    found = px.nn.whole_parameters(model)
    names = [path for path, _ in tree_flatten(plain.parameters())]
    assert sorted(path for path, _ in tree_flatten(found)) == sorted(names)
    loaded = tiny_model(seed=4)
    loaded.update(found)
    pairs = zip(tree_flatten(loaded.parameters()), tree_flatten(plain.parameters()), strict=True)
    same = [bool(mx.array_equal(a, b)) and a.dtype == b.dtype for (_, a), (_, b) in pairs]
    return [same, shapes() == before]


def same_or_unchanged() -> list[Any]:
    """Divide again, and with nothing to divide."""
    from mlx import nn

    world = px.init()
    linear, empty, outer = nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(2, 2))
    one = px.nn.fully_shard(linear, group=world)
    two = px.nn.fully_shard(one, group=world)
    px.nn.fully_shard(outer.layers[0], group=world)
    return [
        one is two is linear,
        isinstance(linear, nn.Linear),
        linear.weight.shape[0],
        type(px.nn.fully_shard(empty, group=world)).__name__,
        type(px.nn.fully_shard(outer, group=world)).__name__,
        repr(linear),
    ]


def error_of(case: str) -> str:
    """Divide, or call, what cannot be; return the error."""
    import mlx.core as mx
    from mlx import nn

    world = px.init()
    rank = world.rank()

    def divided(**options: Any) -> Any:
        return px.nn.fully_shard(nn.Linear(3, 4), group=world, **options)

    def inner_after_outer() -> Any:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
        px.nn.fully_shard(model, group=world)
        return px.nn.fully_shard(model.layers[0], group=world)

    def twice() -> Any:
        layer = px.nn.shard_linear(nn.Linear(3, 4), "all-to-sharded", group=world)
        return px.nn.fully_shard(nn.Sequential(layer), group=world)

    def shape() -> Any:
        layer = divided()
        layer.weight = mx.zeros((4, 3))
        return layer(mx.ones((1, 3)))

    def added() -> Any:
        layer = divided()
        layer.extra = mx.zeros(3)
        return layer(mx.ones((1, 3)))

    def second() -> Any:
        layer = divided()
        return mx.grad(lambda x: mx.grad(lambda x: _sum_of(layer, x))(x).sum())(mx.ones((1, 3)))

    def forward() -> Any:
        return mx.jvp(divided(), [mx.ones((1, 3))], [mx.ones((1, 3))])

    def compiled() -> Any:
        layer = divided()
        return mx.compile(layer, inputs=layer.state)(mx.ones((1, 3)))

    def changed() -> Any:
        layer = divided()
        layer.weight = mx.zeros((4, 3))
        return px.nn.whole_parameters(layer)

    calls: dict[str, Any] = {
        "no module": lambda: px.nn.whole_parameters([divided()]),
        "changed": changed,
        "kind": lambda: px.nn.fully_shard([nn.Linear(3, 4)], group=world),
        "dtype": lambda: divided(compute_dtype=mx.int32),
        "no dtype": lambda: divided(compute_dtype="float16"),
        "trees": lambda: px.nn.fully_shard(nn.Linear(3, 4, bias=rank > 0), group=world),
        "rows": lambda: px.nn.fully_shard(nn.Linear(3, 5 + rank % 2), group=world),
        "options": lambda: divided(reshard_after_forward=rank > 0),
        "inner": inner_after_outer,
        "twice": twice,
        "shape": shape,
        "added": added,
        "second": second,
        "forward": forward,
        "compiled": compiled,
    }
    return text_of(calls[case])
