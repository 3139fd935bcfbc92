"""Trees of MLX in its own graph: lazily, compiled, and through MLX's group of our ranks."""

from __future__ import annotations

import pytest
from support.programs.launching import of_each, printed

pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow

SCRIPT = """
import mlx.core as mx, mlx.nn as nn, numpy as np
import phalanx as px

world = mx.distributed.init(strict=True)
rank, size = world.rank(), world.size()
called = []
original = mx.distributed.all_sum
def counted(x, *, group=None, stream=None):
    called.append(x.dtype)
    return original(x, group=group, stream=stream)
mx.distributed.all_sum = counted

# As many calls as MLX's own, and its results to the bit.
tree = {"w": mx.random.normal((3, 4), key=mx.random.key(rank)), "b": [mx.ones(2) * rank, None]}
for limit in (32 << 20, 8, 0):
    called.clear()
    ours = px.nn.average_gradients(tree, None, limit)
    n_ours = len(called)
    theirs = nn.average_gradients({"w": tree["w"], "b": tree["b"][:1]}, None, limit)
    assert n_ours == len(called) - n_ours, (limit, called)
    assert mx.array_equal(ours["w"], theirs["w"]).item()
    assert mx.array_equal(ours["b"][0], theirs["b"][0]).item()
    assert ours["b"][1] is None

# 16 bits are sent in 32, or as the caller says; dtypes have buckets of their own.
called.clear()
mixed = [mx.full((2,), 40_000, mx.float16), mx.ones(2), mx.ones(2, mx.bfloat16), mx.ones(2, mx.int32)]
means = px.nn.average_gradients(mixed)
assert called == [mx.float32], called
assert [m.dtype for m in means] == [mx.float16, mx.float32, mx.bfloat16, mx.float32]
assert means[0].tolist() == [40_000] * 2
called.clear()
px.nn.average_gradients(mixed, communication_type=mx.bfloat16)
assert called == [mx.bfloat16], called

# Compiled, with weights and a stream of its own; a rank without tokens has NaN.
stream = mx.new_stream(mx.cpu)
@mx.compile
def step(x, tokens):
    return px.nn.average_gradients({"x": x}, weights=tokens, communication_stream=stream)

for _ in range(3):
    x = mx.array([float("nan") if rank == 1 else rank + 1.0] * 3)
    mean = step(x, mx.array(0 if rank == 1 else 10 * (rank + 1)))
    weights = [10 * (r + 1) for r in range(size) if r != 1]
    want = sum(w * w / 10 for w in weights) / sum(weights)
    assert np.allclose(mean["x"].tolist(), want), (mean, want)

def mean_of_two(dtype):
    # The weighted mean of ranks 0 and 1, divided in 32 bits.
    its = [(mx.arange(6).reshape(2, 3) * n - 3).astype(dtype) for n in (1, 2)]
    wide = mx.complex64 if dtype == mx.complex64 else mx.float32
    mean = (its[0].astype(wide) + 2 * its[1].astype(wide)) / 3
    return mean if dtype == mx.int32 else mean.astype(dtype)

# A group of Phalanx: at once, with the check of the trees.
mean = px.nn.average_gradients({"x": mx.ones(3) * rank}, px.init())
assert mean["x"].tolist() == [(size - 1) / 2] * 3
try:
    px.nn.average_gradients({"x" if rank else "y": mx.ones(3)}, px.init())
except px.CollectiveMismatch as error:
    assert "only rank 0 has y: MLX float32[3]" in str(error), error
else:
    raise AssertionError("no error")

# The same numbers as in MLX's graph, and the caller's arrays stay as they are: one array alone in
# its bucket, with gaps, with one value for all elements, or beside others.
whole = mx.arange(6).reshape(2, 3) * (rank + 1) - 3
part = px.init().split(rank // 2)
for dtype in (mx.float32, mx.bfloat16, mx.float16, mx.int32, mx.complex64):
    x = whole.astype(dtype)
    one = mx.array(rank + 1).astype(dtype)
    tree = [x, x.T, x[:, ::2], x.reshape(-1)[::2], mx.broadcast_to(one, (5,)), x[:0], one]
    before = [leaf.tolist() for leaf in tree]
    for limit in (32 << 20, 30, 0):
        for options in ({}, {"weights": rank + 1}, {"communication_type": "bfloat16"}):
            case = dtype, limit, options
            lazy = px.nn.average_gradients(tree, None, limit, **options)
            now = px.nn.average_gradients(tree, px.init(), limit, **options)
            assert [m.dtype for m in now] == [m.dtype for m in lazy], case
            assert [m.tolist() for m in now] == [m.tolist() for m in lazy], case
            assert [leaf.tolist() for leaf in tree] == before, case
            its = px.nn.average_gradients(tree, part, limit, weights=rank + 1)
            assert its[0].tolist() == (x if part.size() == 1 else mean_of_two(dtype)).tolist(), case
            assert [leaf.tolist() for leaf in tree] == before, case

# Its derivatives, too.
def loss(x, group):
    return (px.nn.average_gradients([x, 2 * x], group)[1] * (rank + 1)).sum()

for group in (None, px.init()):
    slopes = mx.grad(lambda x: loss(x, group))(mx.ones(2))
    assert np.allclose(slopes.tolist(), [2 * (rank + 1) / size] * 2), (group, slopes)
    _, (slope,) = mx.jvp(lambda x: loss(x, group), [mx.ones(2)], [mx.ones(2) * rank])
    assert abs(slope.item() - 2 * (size - 1) * (rank + 1)) < 1e-5, (group, slope)

# The sum takes no memory beside the bucket's.
tree = [mx.ones(1 << 16), mx.ones(1 << 16)]
mx.eval(tree)
mx.reset_peak_memory()
before = mx.get_active_memory()
means = px.nn.average_gradients(tree, px.init())
taken = mx.get_peak_memory() - before
assert 2 << 18 <= taken < 3 << 18, taken

clipped, norm = px.nn.clip_grad_norm_sharded({"x": mx.ones(4, mx.float16) * 300}, 1.0)
assert abs(norm.item() - 600 * size ** 0.5) < 0.1, norm
assert clipped["x"].dtype == mx.float16
theirs, their_norm = nn.utils.clip_grad_norm_sharded({"x": mx.ones(4)}, 1.0)
clipped, norm = px.nn.clip_grad_norm_sharded({"x": mx.ones(4)}, 1.0)
assert np.allclose(clipped["x"].tolist(), theirs["x"].tolist()) and abs(norm.item() - their_norm.item()) < 1e-6

slope = mx.grad(lambda x: (px.nn.sum_gradients()(x) * (rank + 1)).sum())(mx.ones(2))
assert slope.tolist() == [sum(range(1, size + 1))] * 2

# Layers that the ranks share, compiled, on MLX's group; two blocks on three ranks are uneven.
mx.random.seed(2)
first, second = nn.Linear(4, 8), nn.Linear(8, 4)
a = px.nn.shard_linear(first, "all-to-sharded")
b = px.nn.shard_linear(second, "sharded-to-all")
x = mx.ones((2, 4))
loss = lambda x: (b(a(x)) ** 2).sum()
whole = lambda x: (second(first(x)) ** 2).sum()
assert np.allclose(mx.compile(mx.grad(loss))(x).tolist(), mx.grad(whole)(x).tolist(), atol=1e-5)

# Parameters that the ranks share, on MLX's group: lazily, compiled, with dropout, in 16 bits.
from functools import partial
from mlx.utils import tree_flatten
from phalanx import all_gather

def make():
    mx.random.seed(4)
    return nn.Sequential(nn.Linear(4, 7), nn.Sequential(nn.Linear(7, 5), nn.Dropout(0.5)), nn.Linear(5, 1))

def slopes_of(model, x):
    return nn.value_and_grad(model, lambda x: (model(x) ** 2).mean())(x)

x = mx.random.normal((3, 4), key=mx.random.key(rank))
for reshards in (True, False):
    for is_compiled in (False, True):
        plain, model = make(), make()
        for layer in model.layers:
            px.nn.fully_shard(layer, reshard_after_forward=reshards)
        both = []
        for one in (plain, model):
            step = partial(slopes_of, one)
            if is_compiled:
                step = mx.compile(step, inputs=[one.state, mx.random.state], outputs=mx.random.state)
            mx.random.seed(rank)
            loss, slopes = step(x)
            both.append((loss.item(), dict(tree_flatten(slopes)), mx.random.uniform().item()))
        assert abs(both[0][0] - both[1][0]) < 1e-6 and both[0][2] == both[1][2], both
        for path, slope in both[0][1].items():
            mean = px.nn.average_gradients(slope)
            own = all_gather(np.array(both[1][1][path]))[: len(mean)]
            assert np.allclose(own, mean.tolist(), atol=1e-5), (reshards, is_compiled, path)

model = px.nn.fully_shard(make(), compute_dtype=mx.bfloat16)
loss, slopes = slopes_of(model, x)
assert all(slope.dtype == mx.float32 for _, slope in tree_flatten(slopes))
assert model(x).dtype == mx.float32  # of the input
second = mx.grad(lambda x: mx.grad(lambda x: (model(x) ** 2).sum())(x).sum())(x)
print("right")
"""


def test_trees_of_mlx(tmp_path):
    assert printed(tmp_path, 3, SCRIPT) == of_each(3, "right")
