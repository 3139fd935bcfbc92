"""Arrays of torch, MLX, jax and DLPack: the same kind comes back, whatever it holds.

Alone, where every operation is a copy; `test_kinds_through_two_ranks` is not.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from distributed.contract import DTYPES, dtype_of

import phalanx as px

OPERATIONS = [px.all_sum, px.all_max, px.all_gather, px.sum_scatter, px.all_to_all, px.broadcast]
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


def test_no_framework_is_imported():
    code = (
        "import sys, numpy as np, phalanx as px; px.all_sum(np.ones(2)); px.all_sum(2.0)\n"
        "names = 'torch', 'jax', 'mlx', 'mlx.core', 'ml_dtypes'\n"
        "print([name for name in names if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


# torch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@every_operation
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors(torch, operation, dtype):
    whole = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    for x in (
        whole,
        whole.T,
        whole[:0],
        whole[1, 2],
        whole[:, ::2],
        torch.nn.Parameter(whole, False),
    ):
        result = operation(x)
        assert type(result) is torch.Tensor
        assert (result.dtype, result.shape) == (x.dtype, x.shape)
        assert torch.equal(result, x.detach())
        assert result.data_ptr() != x.data_ptr() or not x.numel()
        out = torch.empty(x.shape, dtype=x.dtype)
        assert operation(x, out=out) is out
        assert torch.equal(out, x.detach())


def test_a_tensor_is_read_where_it_is(torch):
    from phalanx.distributed._arrays import as_source, target_of

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(4, dtype=dtype)
        source = as_source("all_sum", x)
        assert source.array.ctypes.data == x.data_ptr()
        assert target_of("all_sum", x, (4,), source).array.ctypes.data == x.data_ptr()


def test_tensors_and_arrays_mix_by_out(torch):
    assert px.all_sum(torch.ones(2), out=(out := np.empty(2, "float32"))) is out
    bits = np.empty(2, dtype_of("bfloat16"))
    px.all_sum(torch.full((2,), 1.5, dtype=torch.bfloat16), out=bits)
    assert bits.tolist() == [1.5, 1.5]
    x = torch.arange(8.0)
    assert px.all_sum(x, out=x) is x
    with pytest.raises(ValueError, match="memory in common"):
        px.all_sum(x[:4], out=x[2:6])
    with pytest.raises(ValueError, match="C-contiguous"):
        px.all_sum(x[:4], out=torch.empty(8)[::2])
    conjugated = torch.zeros(3, dtype=torch.complex64).conj()
    with pytest.raises(ValueError, match=r"pass out\.resolve_conj\(\)"):
        px.all_sum(torch.ones(3, dtype=torch.complex64), out=conjugated)


def test_tensors_that_require_grad(torch):
    x = torch.ones(3, requires_grad=True)
    for refused in (x, x * 2, torch.nn.Parameter(torch.ones(2))):
        with pytest.raises(px.NotSupported, match=r"cut off from the graph.*pass x\.detach\(\)"):
            px.all_sum(refused)
        with pytest.raises(px.NotSupported, match="requires grad"):
            px.all_sum(torch.ones(3), out=refused)
    with torch.no_grad():
        assert px.broadcast(x, out=x) is x
        assert not px.all_sum(x).requires_grad
    assert px.all_sum(x.detach()).tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
def test_derivatives_of_torch_are_refused_rather_than_dropped(torch):
    from torch.autograd import forward_ad

    x = torch.ones(3)
    with forward_ad.dual_level():
        both = forward_ad.make_dual(x, x)
        for call in (px.all_sum, lambda both: px.all_sum(x, out=both)):
            with pytest.raises(px.NotSupported, match=r"would be lost; pass .*unpack_dual\(x\)"):
                call(both)
        assert px.all_sum(forward_ad.unpack_dual(both).primal).tolist() == [1, 1, 1]
    for transform in (
        lambda f: torch.func.jvp(f, (x,), (x,)),
        lambda f: torch.func.vmap(f)(x),
        lambda f: torch.func.grad(lambda x: f(x).sum())(x),
    ):
        with pytest.raises(
            px.NotSupported, match=r"would be lost|inside torch\.func|requires grad"
        ):
            transform(px.all_sum)


def test_tensors_that_are_more_than_memory(torch):
    conjugate = (1j * torch.ones(2)).conj()
    assert px.all_sum(conjugate).tolist() == [-1j, -1j]
    negative = conjugate.imag
    assert negative.is_neg()
    assert px.all_sum(negative).tolist() == [-1, -1]
    refused = [
        (torch.ones(2, device="meta"), "on meta, not in memory of the CPU; it has no values"),
        (torch.ones(2).to_sparse(), r"layout torch\.sparse_coo .*to_dense"),
        (torch.ones(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn is not supported"),
        (torch.ones(2).as_subclass(type("Mine", (torch.Tensor,), {})), "Mine would lose"),
    ]
    for x, text in refused:
        with pytest.raises(px.NotSupported, match=text):
            px.all_sum(x)


# MLX


@pytest.fixture(scope="module")
def mx():
    return pytest.importorskip("mlx.core")


@every_operation
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "complex128"])
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


# jax


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax")


@every_operation
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_jax(jax, operation, dtype):
    with jax.enable_x64(True):
        whole = jax.numpy.arange(6).reshape(2, 3).astype(dtype)
        for x in (whole, whole.T, whole[:0], whole[1, 2]):
            result = operation(x)
            assert isinstance(result, jax.Array)
            assert (result.dtype, result.shape) == (x.dtype, x.shape)
            assert (result == x).all()


def test_64_bits_of_jax_stay_64_where_it_would_make_32(jax):
    with jax.enable_x64(True):
        x = jax.numpy.arange(3.0)
    assert px.all_sum(x).dtype == x.dtype == "float64"


def test_what_jax_traces_is_refused(jax):
    x = jax.numpy.ones(2)
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(px.NotSupported, match=r"inside jax\.jit, grad and vmap"):
            transform(lambda x: px.all_sum(x).sum())(x)
    with pytest.raises(TypeError, match="arrays of jax are never changed"):
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
            is_numpys = isinstance(x.dtype, np.dtype)  # jax has no dtypes of its own
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
