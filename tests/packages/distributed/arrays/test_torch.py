"""Tensors of torch: tensors come back, and nothing of them is lost or goes unseen by autograd.

Alone, where every operation is a copy.
"""

from __future__ import annotations

import numpy as np
import pytest
from distributed.operations.contract import DTYPES, dtype_of
from support.runs.tiers import each_with_first

import phalanx as px
from phalanx.distributed.arrays.arguments import as_source, like_dtype, target_of

OPERATIONS = [px.all_sum, px.all_max, px.all_gather, px.sum_scatter, px.all_to_all, px.broadcast]
FLOAT32_FIRST = sorted(DTYPES, key=lambda name: name != "float32")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("operation", "dtype"), each_with_first({"operation": OPERATIONS, "dtype": FLOAT32_FIRST})
)
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
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(4, dtype=dtype)
        source = as_source("all_sum", x)
        assert source.array.ctypes.data == x.data_ptr()
        assert target_of("all_sum", x, (4,), source).array.ctypes.data == x.data_ptr()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_results_lie_on_the_cpu_whatever_the_default_device_is(torch, dtype):
    x = torch.ones(3, dtype=getattr(torch, dtype))
    torch.set_default_device("meta")
    try:
        results = [px.all_sum(x), px.all_sum(x, async_op=True).wait()]
        like, _ = like_dtype("recv", x.dtype)
        assert like((3,)).give().device == x.device
    finally:
        torch.set_default_device(None)
    assert all(result.device == x.device for result in results)
    assert all(torch.equal(result, x) for result in results)


def test_autograd_sees_that_an_out_was_written_to(torch):
    weight = torch.ones(3, requires_grad=True)
    for is_async in (False, True):
        saved, view = torch.ones(3), torch.ones(1, 3)
        for out in (saved, view[0]):
            loss = (weight * out).sum()
            before = out._version
            result = px.all_sum(torch.zeros(3), out=out, async_op=is_async)
            assert (result.wait() if is_async else result) is out
            assert out._version == before + 1
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    out = torch.ones(3)
    with pytest.raises(ValueError, match="shape"):
        px.all_sum(torch.zeros(2), out=out)
    assert out._version == 0  # it was refused
    with torch.inference_mode():
        out = torch.ones(3)
        assert px.all_sum(torch.zeros(3), out=out) is out


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("cuda:1", r"on cuda:1, .* that is for backend='nccl', which is not .*; pass x\.cpu\(\)"),
        ("mps:0", r"on mps:0, .* that is for backend='jaccl', which is not .*; pass x\.cpu\(\)"),
        ("xpu:0", r"on xpu:0, not in memory of the CPU; pass x\.cpu\(\)"),
    ],
)
def test_a_tensor_on_a_gpu_is_refused_and_not_touched(torch, monkeypatch, device, text):
    x = torch.ones(2)
    monkeypatch.setattr(torch.Tensor, "device", torch.device(device))
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    monkeypatch.setattr(torch.Tensor, "numpy", None)
    for call in (px.all_sum, lambda x: px.all_sum(np.ones(2, np.float32), out=x)):
        with pytest.raises(px.NotSupported, match=text):
            call(x)


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
