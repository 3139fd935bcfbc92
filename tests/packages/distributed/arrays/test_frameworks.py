"""Arrays of MLX, jax and DLPack: the same kind comes back, whatever it holds; of torch: `test_torch`.

Alone, where every operation is a copy; `test_kinds_through_two_ranks` is not.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from distributed.cells import pair_cells
from distributed.operations.contract import DTYPES
from support.runs.tiers import each_with_first

import phalanx as px
from phalanx.distributed.arrays.arguments import as_source

OPERATIONS = [px.all_sum, px.all_max, px.all_gather, px.sum_scatter, px.all_to_all, px.broadcast]
FLOAT32_FIRST = sorted(DTYPES, key=lambda name: name != "float32")
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


class Foreign:
    """An array of a framework that nobody has heard of, by the array API standard."""

    def __init__(self, array, device=(1, 0)):
        self.array = array
        self.device = device

    def __dlpack__(self, **options):
        assert self.device == (1, 0), "read though it is not there"
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device

    def __array_namespace__(self):
        return SimpleNamespace(from_dlpack=lambda x: Foreign(np.from_dlpack(x)))


@every_operation
def test_any_array_with_dlpack(operation):
    result = operation(Foreign(np.arange(6.0).reshape(2, 3).T))
    assert type(result) is Foreign
    assert result.array.tolist() == [[0, 3], [1, 4], [2, 5]]


@every_operation
@pytest.mark.parametrize(
    ("device", "text"),
    [
        ((2, 1), r"on cuda:1, not in memory of the CPU; that is for backend='nccl'"),
        ((13, 0), r"on cuda:0, .* backend='nccl', which is not in this release"),
        ((8, 0), r"on metal:0, .* backend='jaccl', which is not in this release"),
        ((10, 0), r"on rocm:0, not in memory of the CPU; pass a copy"),
        ((99, 3), r"on device 99 of DLPack:3, not in memory of the CPU; pass a copy"),
    ],
)
def test_an_array_elsewhere_is_refused_and_not_touched(operation, device, text):
    for call in (operation, lambda x: operation(np.ones(2), out=x)):
        with pytest.raises(px.NotSupported, match=text):
            call(Foreign(np.ones(2), device))


def test_an_array_of_a_module_without_from_dlpack_is_refused():
    class Lonely(Foreign):
        __array_namespace__ = property()

    Lonely.__module__ = "nowhere"
    with pytest.raises(px.NotSupported, match="its module has no from_dlpack"):
        px.all_sum(Lonely(np.ones(2)))


def address_of(x):
    """Where the source of a sum of ``x`` is read."""
    return as_source("all_sum", x).array.ctypes.data


def test_an_array_of_dlpack_is_read_where_it_is():
    array = np.arange(6.0)
    assert address_of(Foreign(array)) == array.ctypes.data


def test_no_framework_is_imported():
    code = (
        "import sys, numpy as np, phalanx as px; px.all_sum(np.ones(2)); px.all_sum(2.0)\n"
        "names = 'torch', 'jax', 'mlx', 'mlx.core', 'ml_dtypes'\n"
        "print([name for name in names if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


# MLX


@pytest.fixture(scope="module")
def mx():
    return pytest.importorskip("mlx.core")


@pytest.mark.parametrize(
    ("operation", "dtype"),
    each_with_first({"operation": OPERATIONS, "dtype": FLOAT32_FIRST[:-1]}),  # it has no complex128
)
def test_arrays_of_mlx(mx, operation, dtype):
    kind = getattr(mx, "bool_" if dtype == "bool" else dtype)
    whole = mx.arange(6).reshape(2, 3).astype(kind, stream=mx.cpu) + mx.array(0, kind)
    for x in (whole, whole.T, whole[:0], whole[1, 2], whole[:, ::2]):
        for options in ({}, {"stream": mx.cpu}):
            result = operation(x, **options)
            assert type(result) is mx.array
            assert (result.dtype, result.shape) == (x.dtype, x.shape)
            assert mx.array_equal(result, x).item()
    assert mx.array_equal(operation(whole, async_op=True).wait(), whole).item()


def test_the_arguments_of_mlx_arrays(mx):
    with pytest.raises(TypeError, match="stream"):
        px.all_sum(mx.ones(2), stream=3)
    with pytest.raises(TypeError, match="arrays of MLX are never changed"):
        px.all_sum(mx.ones(2), out=mx.ones(2))
    out = np.empty(2, "float32")
    assert px.all_sum(mx.ones(2), out=out) is out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_an_array_of_mlx_is_read_where_it_is(mx, dtype):
    x = mx.zeros(4, getattr(mx, "bool_" if dtype == "bool" else dtype))
    mx.eval(x)
    held = memoryview(x)
    assert address_of(x) == np.frombuffer(held.cast("B"), np.uint8).ctypes.data


def test_room_of_mlx_is_made_by_the_cpu_whatever_the_default_device_is(mx, monkeypatch):
    made = []

    def zeros(*args, _zeros=mx.zeros, **options):
        made.append(options.get("stream"))
        return _zeros(*args, **options)

    monkeypatch.setattr(mx, "zeros", zeros)  # a GPU has no float64
    assert px.all_sum(mx.ones(2)).tolist() == [1, 1]
    assert made == [mx.cpu]


def test_gradients_of_mlx_are_mlx_s(mx):
    x = mx.array([1.0, 2.0, 3.0])
    ours, theirs = (
        mx.grad(lambda x, f=f: (f(x) * mx.array([1.0, 2.0, 3.0])).sum())(x)
        for f in (px.all_sum, mx.distributed.all_sum)
    )
    assert ours.tolist() == theirs.tolist() == [1, 2, 3]
    assert mx.grad(lambda x: px.all_max(x * 2).sum())(x).tolist() == [2, 2, 2]
    assert mx.grad(lambda x: px.all_gather(x)[1])(x).tolist() == [0, 1, 0]
    assert mx.grad(px.all_gather)(mx.array(2.0)).item() == 1
    assert mx.jvp(px.all_sum, [x], [x])[1][0].tolist() == [1, 2, 3]


def test_gradients_of_mlx_go_through_what_is_waited_for(mx):
    weights = mx.array([1.0, 2.0, 3.0])

    def loss(x):
        return (px.all_sum(x, async_op=True).wait() * weights).sum()

    x = mx.array([3.0, 2.0, 1.0])
    assert mx.grad(loss)(x).tolist() == [1, 2, 3]
    assert mx.jvp(loss, [x], [weights])[1][0].item() == 14


def test_what_mlx_cannot_know_is_refused_rather_than_taken_for_zero(mx):
    x = mx.ones((2, 2))
    for is_async in (False, True):

        def broadcast(x, is_async=is_async):
            result = px.broadcast(x, async_op=is_async)
            return (result.wait() if is_async else result).sum()

        with pytest.raises(px.NotSupported, match="broadcast has no such derivative"):
            mx.grad(broadcast)(x)
    with pytest.raises(px.NotSupported, match="has no such derivative"):
        mx.jvp(px.all_max, [x], [x])
    for transform in (mx.vmap, mx.compile):
        with pytest.raises(px.NotSupported, match=r"inside mx\.vmap and mx\.compile"):
            transform(px.all_sum)(x)


# jax, by DLPack


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64", "int8", "bool"])
def test_arrays_of_jax(jax, dtype):
    with jax.enable_x64(True):
        whole = jax.numpy.arange(6).reshape(2, 3).astype(dtype)
        for x in (whole, whole.T, whole[:0], whole[1, 2]):
            result = px.all_sum(x)
            assert isinstance(result, jax.Array)
            assert (result.dtype, result.shape) == (x.dtype, x.shape)
            assert (result == x).all()


def test_64_bits_of_jax_are_not_made_32_in_silence(jax):
    with jax.enable_x64(True):
        x = jax.numpy.arange(3.0)
    with pytest.raises(px.NotSupported, match="a result of float64 would become float32 there"):
        px.all_sum(x)


def test_what_dlpack_cannot_carry_of_jax_is_refused(jax):
    x = jax.numpy.ones(2)
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(px.NotSupported, match="has no values yet that could be sent"):
            transform(lambda x: px.all_sum(x).sum())(x)
    with pytest.raises(px.NotSupported, match="cannot be read through __dlpack__"):
        px.all_sum(x.astype("bfloat16"))
    with pytest.raises(ValueError, match="out has no permission to be written to"):
        px.all_sum(x, out=x)


# Among ranks


def exchange_kinds(names):
    """Sum, gather and send one array of each framework; what came, as text, by framework."""
    import importlib

    rank, size = px.init().rank(), px.init().size()
    right, left = (rank + 1) % size, (rank - 1) % size
    said = {}
    for name in names:
        module = importlib.import_module(name)
        make = getattr(module, "tensor", None) or module.array
        x = make([1.0, 2.0]) * (rank + 1)
        results = [px.all_sum(x), px.all_gather(x), px.all_sum(x, async_op=True).wait()]
        if rank == 0:
            results += [px.send(x, right), px.recv_like(x, left)]
        else:
            is_numpys = isinstance(x.dtype, np.dtype)  # jax has numpy's
            received = px.recv_like(x, left) if is_numpys else px.recv((2,), x.dtype, left)
            results += [received, px.send(x, right)]
        assert all(type(result) is type(x) for result in results[:4]), results
        said[name] = [np.asarray(result).tolist() for result in results]
    return said


def test_kinds_through_two_ranks(rank_pool):
    import importlib.util

    names = [
        name
        for name in ("torch", "mlx.core", "jax.numpy")
        if importlib.util.find_spec(name.partition(".")[0])
    ]
    one, two = rank_pool(2).run(exchange_kinds, names)
    for name in names:
        both, gathered = [3, 6], [1, 2, 2, 4]
        assert one[name] == [both, gathered, both, [1, 2], [2, 4]]
        assert two[name] == [both, gathered, both, [1, 2], [2, 4]]


def test_tensors_come_into_the_memory_that_is_given(rank_pool):
    pytest.importorskip("torch")
    assert rank_pool(2).run(pair_cells.tensors_that_are_kept) == [[]] * 2
