"""What MLX expects of `mx.distributed`: of ours in its place, and of its own on our ranks.

These are the cases of MLX's own distributed tests (ml-explore/mlx, python/tests: those common to
its backends, and those of ring, MPI and NCCL), written anew. Left out are that its ring cannot split, and
`test_donation`: a result that is there at once cannot take the place of the old one. Each case checks
what its own rank has, and raises where it differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.nn.utils import average_gradients, clip_grad_norm_sharded
from mlx.utils import tree_flatten, tree_map

import phalanx as px

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
# How far a sum may be off, as a part of it: MLX's own numbers.
TOLERANCES = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 1e-1, "complex64": 1e-6}
DTYPES = (*INTEGERS, *TOLERANCES)
WIDTHS = ("uint8", "bfloat16", "float32", "complex64")
SHAPES = ((7,), (10,), (1024,), (1024, 1024))
CLOSE = {"atol": 1e-6, "rtol": 1e-4}
NAMES = (
    "Group", "all_gather", "all_max", "all_min", "all_sum", "init", "is_available", "recv", "recv_like", "send",
    "sum_scatter",
)  # fmt: skip


def take_place() -> None:
    """Put our functions in the place of MLX's."""
    for name in NAMES:
        setattr(mx.distributed, name, getattr(px, name))


def world() -> Any:
    """Join the world by the name that MLX's users know."""
    return mx.distributed.init(strict=True, backend="any")


def halves() -> Any:
    """Split the world into ranks of even and of odd number."""
    return world().split(world().rank() % 2)


def inputs(group: Any, shape: tuple[int, ...], dtypes: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Make the arrays of all ranks of a group, of each type: numbers from 0 to 10, alike everywhere."""
    numbers = mx.random.uniform(0, 10, (group.size(), *shape), key=mx.random.key(len(shape)))
    mx.eval(numbers)
    for dtype in dtypes:
        factor = 1 + 0.5j if dtype == "complex64" else 1
        yield dtype, (numbers * factor).astype(getattr(mx, dtype))


def dtypes_of(group: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return all types; of the largest shape all in pairs only, among more ranks one of each width."""
    return DTYPES if len(shape) == 1 or group.size() == 2 else WIDTHS


def exact(x: mx.array, dtype: str) -> np.ndarray:
    """Return the same numbers in a type in which sums of a few of them are exact enough."""
    if dtype == "complex64":
        return np.array(x).astype(np.complex128)
    return np.array(x.astype(mx.float32)).astype(np.float64)


def is_close(ours: mx.array, theirs: mx.array, **tolerances: float) -> bool:
    return ours.shape == theirs.shape and mx.allclose(ours, theirs, **(CLOSE | tolerances)).item()


# Groups


def groups() -> None:
    """The world is the same at each `init`, and splits have the sizes and ranks that MPI gives."""
    group = world()
    assert 0 <= group.rank() < group.size()
    again = mx.distributed.init()
    assert (again.rank(), again.size()) == (group.rank(), group.size())
    half, pair = halves(), group.split(group.rank() // 2)
    assert half.size() == len(range(group.rank() % 2, group.size(), 2))
    assert half.rank() == group.rank() // 2
    assert pair.size() == min(2, group.size() - group.rank() // 2 * 2)


def side_channels() -> None:
    """What only MLX's jaccl takes is refused as MLX refuses it."""
    world()
    for backend, factory, error in (
        ("ring", lambda rank, size: lambda src, nbytes: b"", ValueError),
        ("jaccl", "no function", TypeError),
    ):
        try:
            mx.distributed.init(backend=backend, all_gather_factory=factory)
        except error:
            continue
        raise AssertionError(backend)


# Collectives and messages


def reductions() -> None:
    """Sum, greatest and least of every type and size, in the world and in a part of it."""
    for group, shapes in ((world(), SHAPES), (halves(), SHAPES[:-1])):
        for shape in shapes:
            for dtype, every in inputs(group, shape, dtypes_of(group, shape)):
                mine = every[group.rank()]
                total = mx.distributed.all_sum(mine, group=group)
                assert (total.dtype, total.shape) == (mine.dtype, shape)
                whole = exact(every, dtype).sum(0)
                off = np.abs(exact(total, dtype) - whole)
                assert (off <= TOLERANCES.get(dtype, 0) * np.abs(whole)).all(), (dtype, shape)
                most = mx.distributed.all_max(mine, group=group)
                least = mx.distributed.all_min(mine, group=group)
                assert mx.array_equal(most, every.max(0)).item(), (dtype, shape)
                assert mx.array_equal(least, every.min(0)).item(), (dtype, shape)


def extremes_of_others() -> None:
    """Truth values, and complex numbers, which MLX compares in another way than numpy."""
    group = world()
    rank, size = group.rank(), group.size()
    mine = mx.array([rank == 0, rank < size, rank > size])
    assert mx.distributed.all_max(mine).tolist() == [True, True, False]
    assert mx.distributed.all_min(mine).tolist() == [False, True, False]
    mine = mx.array([complex(rank, -rank), complex(-rank, 1)])
    assert mx.distributed.all_max(mine).tolist() == [complex(size - 1, 1 - size), 1j]
    assert mx.distributed.all_min(mine).tolist() == [0, complex(1 - size, 1)]


def gathers() -> None:
    """Each rank's part differs, and lies in its place, also where it is cut into odd pieces."""
    group = world()
    for part in (group, halves()):
        for dtype, every in inputs(part, (2, 2, 4), (*DTYPES, "bool_")):
            gathered = mx.distributed.all_gather(every[part.rank()], group=part)
            assert gathered.dtype == every.dtype
            assert mx.array_equal(gathered, every.reshape(-1, 2, 4)).item(), dtype
    for count in (7, 1024, 1_000_003, 4 << 20):
        base = mx.arange(count, dtype=mx.int32) % 100_003
        gathered = mx.distributed.all_gather(base + group.rank())
        assert gathered.shape == (group.size() * count,)
        for rank, part in enumerate(mx.split(gathered, group.size())):
            assert mx.array_equal(part, base + rank).item(), (count, rank)


def scattered_sums() -> None:
    """A share of the sum is that share of the whole sum."""
    group = world()
    for count in (group.size(), 8 * group.size(), 1024 * group.size()):
        for dtype, every in inputs(group, (count, 3), TOLERANCES):
            mine = every[group.rank()]
            share = mx.distributed.sum_scatter(mine)
            whole = mx.distributed.all_sum(mine)
            place = mx.split(whole, group.size())[group.rank()]
            off = np.abs(exact(share, dtype) - exact(place, dtype))
            assert (off <= TOLERANCES[dtype] * np.abs(exact(place, dtype))).all(), (dtype, count)


def messages_around() -> None:
    """Each rank sends to the next; what `send` returns is what was sent."""
    group = world()
    rank, size = group.rank(), group.size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for shape in SHAPES:
        for dtype, every in inputs(group, shape, dtypes_of(group, shape)):
            mine = every[rank]
            if rank % 2 == 0:
                mx.eval(sent := mx.distributed.send(mine, right))
                mx.eval(received := mx.distributed.recv_like(sent, left))
            else:
                mx.eval(received := mx.distributed.recv_like(mine, left))
                mx.eval(sent := mx.distributed.send(mine, right))
            assert mx.array_equal(sent, mine).item(), (dtype, shape)
            assert mx.array_equal(received, every[left]).item(), (dtype, shape)


def messages_to_and_fro() -> None:
    """Two ranks double a number in turns; then one operation is evaluated with another's result."""
    pair = world().split(world().rank() // 2)
    if pair.size() == 1:
        return
    other, sends, x = 1 - pair.rank(), pair.rank() == 0, mx.ones(10)
    for _ in range(10):
        if sends:
            mx.eval(mx.distributed.send(2 * x, other, group=pair))
        else:
            x = mx.distributed.recv_like(x, other, group=pair)
        sends = not sends
    assert mx.all(x == (1024 if pair.rank() == 0 else 512)).item()
    y = mx.ones((5, 5)) + mx.array(2.0)
    doubled = 2 * x
    call = mx.distributed.send if sends else mx.distributed.recv_like
    x = call(doubled, other, group=pair)
    mx.eval(y, x)
    assert mx.all(y == 3).item()
    assert mx.all(x == 2048).item()


def sums_of_pairs_gathered_across() -> None:
    """Results of one group are the input of another."""
    group = world()
    rank, size = group.rank(), group.size()
    pair = group.split(rank // 2)
    total = mx.distributed.all_sum(mx.ones((1, 8)) * rank, group=pair)
    gathered = mx.distributed.all_gather(total, group=halves())
    sums = [sum(r for r in (peer, peer ^ 1) if r < size) for peer in range(rank % 2, size, 2)]
    assert gathered.shape == (len(sums), 8)
    assert mx.array_equal(gathered, mx.array(sums, mx.float32)[:, None] * mx.ones(8)).item()


def gradients_of_operations() -> None:
    """Of a gather only who gave what is looked at has a derivative; a sum's is that of a copy."""
    group = world()
    gradient = mx.grad(lambda x: mx.distributed.all_gather(x)[0])(mx.array(1.0))
    assert gradient.item() == (1.0 if group.rank() == 0 else 0.0)
    slope = mx.grad(lambda x: (mx.distributed.all_sum(x) * x).sum())(mx.array([1.0, 2.0]))
    assert slope.tolist() == [group.size() + 1.0, 2 * group.size() + 2.0]


def compiled_averages() -> None:
    """MLX's own graph, compiled and run several times."""
    rank, size = world().rank(), world().size()
    step = mx.compile(lambda x: average_gradients({"w": x * 2, "b": [x, x + 1]}))
    for _ in range(3):
        mean = step(mx.ones(3) * rank)
        assert mx.array_equal(mean["w"], mx.ones(3) * (size - 1)).item()


# MLX's layers and helpers


def averages_of_gradients() -> None:
    """Gradients are put together up to a size, and each lot is one operation."""
    world()
    usual = mx.distributed.all_sum
    calls: list[mx.Dtype] = []

    def counted(x: mx.array, **options: Any) -> mx.array:
        calls.append(x.dtype)
        return usual(x, **options)

    mx.distributed.all_sum = counted
    try:
        gradients = [mx.ones(10) for _ in range(10)]
        for options, n_calls in (
            ({}, 1),
            ({"all_reduce_size": 200}, 2),
            ({"all_reduce_size": 0}, 10),
        ):
            calls.clear()
            averages = average_gradients(gradients, **options)
            assert [mx.array_equal(x, mx.ones(10)).item() for x in averages] == [True] * 10
            assert calls == [mx.float32] * n_calls
    finally:
        mx.distributed.all_sum = usual


def norms_of_sharded_gradients() -> None:
    """The norm is that of the shards of all ranks, and gradients are scaled to the limit."""
    group = world()
    shard = {"a": mx.full((4, 3), 3.0), "b": mx.full((5,), 3.0)}
    whole_norm = 3.0 * math.sqrt(17 * group.size())
    for limit, scale in ((1e9, 1.0), (1.0, 1.0 / (whole_norm + 1e-6))):
        clipped, norm = clip_grad_norm_sharded(shard, max_norm=limit, group=group)
        assert abs(norm.item() - whole_norm) <= 1e-4 * whole_norm
        assert all(is_close(clipped[name], shard[name] * scale) for name in shard)


def rows_of(count: int) -> slice:
    """Return this rank's share of so many rows."""
    rank, size = world().rank(), world().size()
    return slice(rank * count // size, (rank + 1) * count // size)


def linear_layers() -> None:
    """A layer of which each rank has a part gives what the whole one gives: plain and quantized."""
    width = 256 * world().size()
    mx.random.seed(7)
    x, linear = mx.random.normal((4, width)), nn.Linear(width, width)
    mine = rows_of(width)
    for layer in (
        linear,
        linear.to_quantized(),
        linear.to_quantized(group_size=32, bits=8, mode="mxfp8"),
    ):
        outwards = shard_linear(layer, "all-to-sharded")
        inwards = shard_linear(layer, "sharded-to-all")
        whole = layer(x)
        # Sums of 256 float32 a rank in another order: their rounding errors grow with the ranks.
        assert is_close(outwards(x), whole[:, mine], atol=1e-5), layer
        assert is_close(inwards(x[:, mine]), whole, atol=1e-5), layer
        for part in (outwards, inwards):
            assert getattr(part, "mode", "") == getattr(layer, "mode", "")
            assert (part.get("biases") is None) == (layer.get("biases") is None)


def gradients_of_linear_layers() -> None:
    """Parts of layers one behind the other get their parts of the whole layers' gradients."""
    width = 32 * world().size()
    mx.random.seed(8)
    ways = ("all-to-sharded", "sharded-to-all") * 2
    whole = nn.Sequential(*(nn.Linear(width, width) for _ in ways))
    parts = nn.Sequential(
        *(shard_linear(layer, way) for layer, way in zip(whole.layers, ways, strict=True))
    )
    x, y = mx.random.normal((4, width)), mx.random.normal((4, width))

    def loss(model: nn.Module, x: mx.array, y: mx.array) -> mx.array:
        return (model(x) * y).sum()

    expected_loss, expected = nn.value_and_grad(whole, loss)(whole, x, y)
    found_loss, found = nn.value_and_grad(parts, loss)(parts, x, y)
    assert is_close(found_loss, expected_loss, rtol=1e-3, atol=1e-3)
    mine = rows_of(width)
    for way, want, got in zip(ways, expected["layers"], found["layers"], strict=True):
        outwards = way == "all-to-sharded"
        weight = want["weight"][mine] if outwards else want["weight"][:, mine]
        assert is_close(got["weight"], weight), way
        assert is_close(got["bias"], want["bias"][mine] if outwards else want["bias"]), way


class Convolution(nn.Module):
    """A convolution whose outputs are the sum of those of all ranks, if it is told so."""

    def __init__(self, n_in: int, n_out: int, *, sums: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, kernel_size=3)
        self.sums = sums

    def __call__(self, x: mx.array) -> mx.array:
        x = self.conv(x)
        return mx.distributed.all_sum(x) if self.sums else x


def convolutions() -> None:
    """Layers that a function of their path divides, by outputs and by inputs in turn."""
    width = 32 * world().size()
    mx.random.seed(9)
    channels = [(3, width), (width, width), (width, width), (width, 3)]
    whole = nn.Sequential(*(Convolution(*pair) for pair in channels))
    parts = nn.Sequential(
        *(Convolution(*pair, sums=number % 2 == 1) for number, pair in enumerate(channels))
    )
    parts.update(whole.parameters())

    def axis_of(path: str, _weight: mx.array) -> int | None:
        _, number, *_, name = path.split(".")
        if int(number) % 2 == 0:
            return 0
        return None if name == "bias" else -1

    shard_inplace(parts, axis_of)
    x = mx.random.normal((2, 16, 16, 3))
    # Each rank adds the bias of a layer that sums, as MLX's own case has it: take that away again.
    surplus = world().size() - 1
    for layer in parts.layers[1::2]:
        layer.conv.bias = layer.conv.bias / (surplus + 1)
    assert is_close(parts(x), whole(x))


def fully_sharded_layers() -> None:
    """Weights that are gathered for the way there get their shards of averaged gradients."""
    if not hasattr(nn, "fully_shard"):  # since MLX 0.32
        return
    group = world()
    width = 8 * group.size()
    mine = rows_of(width)

    def loss(model: nn.Module, x: mx.array, y: mx.array) -> mx.array:
        return ((model(x).astype(mx.float32) - y) ** 2).mean()

    for dtype, tolerance in ((mx.float32, 1e-6), (mx.bfloat16, 1e-3)):
        mx.random.seed(10)
        whole, parts = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(2)
        )
        parameters = whole.trainable_parameters()
        parts.update(parameters)
        parts = nn.fully_shard(parts, compute_dtype=dtype)
        whole.update(tree_map(lambda p, dtype=dtype: p.astype(dtype), parameters))
        keys = mx.random.split(mx.random.key(group.rank()))  # each rank has data of its own
        x = mx.random.normal((4, width), dtype=dtype, key=keys[0])
        y = mx.random.normal((4, width), key=keys[1])
        expected_loss, expected = nn.value_and_grad(whole, loss)(whole, x, y)
        found_loss, found = nn.value_and_grad(parts, loss)(parts, x, y)
        assert is_close(found_loss, expected_loss, rtol=1e-4, atol=1e-4)
        averages = dict(tree_flatten(average_gradients(expected, group=group)))
        shards = tree_flatten(found["module"])
        assert len(shards) == 4
        for name, shard in shards:
            assert is_close(shard, averages[name][mine], rtol=tolerance, atol=tolerance), name


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        groups, side_channels, reductions, extremes_of_others, gathers, scattered_sums,
        messages_around, messages_to_and_fro, sums_of_pairs_gathered_across, gradients_of_operations,
        averages_of_gradients, norms_of_sharded_gradients, linear_layers,
        gradients_of_linear_layers, convolutions, fully_sharded_layers, compiled_averages,
    )
}  # fmt: skip
# What MLX's `mpi` does not have (`sum_scatter`), and what our functions refuse (`mx.compile`).
NOT_OF_MLX = ("scattered_sums", "fully_sharded_layers", "side_channels")
NOT_OF_OURS = ("compiled_averages",)


def run(name: str) -> None:
    """Run one of the cases on this rank, with our functions."""
    take_place()
    CASES[name]()


def run_all() -> None:
    """Run all cases on this rank, with MLX's functions on our ranks."""
    for name, case in CASES.items():
        if name not in NOT_OF_MLX:
            case()
