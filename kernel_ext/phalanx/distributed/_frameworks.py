"""Arrays of other frameworks, seen as numpy sees memory, and results of their kind.

Nothing is imported here: whoever has an array of a framework has loaded it. Of operations it knows
their names, for its errors. An adapter is one class and one line of ``_ADAPTERS``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import NotSupported

__all__ = [
    "DTYPE_NAMES",
    "Like",
    "Target",
    "View",
    "adapter_of",
    "adapter_of_dtype",
    "check_name",
    "is_mlx",
    "is_mlx_dtype",
    "on_stream",
]

DTYPE_NAMES = _native.supported_dtypes()
# numpy has no bfloat16 of its own: the engine is given the bits and this name.
BITS = np.dtype(np.uint16)

# DLPack's device types whose memory the CPU reads: CPU, and pinned memory of CUDA and ROCm.
_ON_CPU = (1, 3, 11)
_DEVICES = {2: "cuda", 8: "metal", 10: "rocm", 13: "cuda"}
# Which backend moves arrays of a device; none of them is in this release.
_BACKENDS = {"cuda": "nccl", "metal": "jaccl", "mps": "jaccl"}


class View(NamedTuple):
    """Memory of an array, and the name of its dtype where numpy has none."""

    array: NDArray[Any]
    dtype: str = ""


class Target(NamedTuple):
    """Memory for a result, and how it becomes what the caller gets."""

    array: NDArray[Any]
    give: Callable[[], Any]


class Like(Protocol):
    """Makes room for results like a certain array."""

    def __call__(self, shape: tuple[int, ...]) -> Target: ...


class Adapter(Protocol):
    """What one framework's arrays need."""

    def view(self, op: str, x: Any) -> View:
        """See what an array holds, without a copy where numpy can describe its layout."""

    def out(self, op: str, x: Any) -> View:
        """See an array that is to be written to."""

    def like(self, x: Any) -> Like:
        """Make results of the dtype of ``x`` and where ``x`` is."""

    def like_dtype(self, dtype: Any) -> Like | None:
        """Make results of this dtype, if it is one of the framework's."""


def check_name(op: str, name: str) -> str:
    """Return what the engine must be told of a dtype beyond its bytes.

    Raises
    ------
    NotSupported
        It is none of those that ranks can exchange.
    """
    if name not in DTYPE_NAMES:
        msg = f"{op}: dtype {name} is not supported; {', '.join(DTYPE_NAMES)} are; convert it first"
        raise NotSupported(msg)
    return name if name == "bfloat16" else ""


def _refuse_device(op: str, device: str, hint: str) -> NoReturn:
    backend = _BACKENDS.get(device.partition(":")[0])
    other = f"that is for backend='{backend}', which is not in this release; " if backend else ""
    msg = f"{op}: the array is on {device}, not in memory of the CPU; {other}{hint}"
    raise NotSupported(msg)


def _refuse_out(op: str, framework: str) -> NoReturn:
    msg = f"{op}: arrays of {framework} are never changed; out must be a numpy array or a tensor"
    raise TypeError(msg)


class _Torch:
    def out(self, op: str, x: Any) -> View:
        if x.is_conj() or x.is_neg():
            msg = (
                f"{op}: out is a view that conjugates or negates what is put into it; "
                "pass out.resolve_conj().resolve_neg()"
            )
            raise ValueError(msg)
        return self.view(op, x)

    def view(self, op: str, x: Any) -> View:
        torch = sys.modules["torch"]
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            msg = f"{op}: {type(x).__name__} would lose what it has beyond a plain tensor"
            raise NotSupported(msg)
        if x.device.type != "cpu":
            hint = "it has no values" if x.is_meta else "pass x.cpu()"
            _refuse_device(op, str(x.device), hint)
        if x.layout is not torch.strided:
            msg = f"{op}: a tensor of layout {x.layout} is not supported; pass x.to_dense()"
            raise NotSupported(msg)
        if x.requires_grad and torch.is_grad_enabled():
            msg = (
                f"{op}: the result would be cut off from the graph of x, which requires grad; "
                "pass x.detach(), or call it under torch.no_grad()"
            )
            raise NotSupported(msg)
        if torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            msg = (
                f"{op}: the forward derivative that x carries would be lost; "
                "pass torch.autograd.forward_ad.unpack_dual(x).primal"
            )
            raise NotSupported(msg)
        dtype = check_name(op, str(x.dtype).removeprefix("torch."))
        x = x.detach().resolve_conj().resolve_neg()
        try:
            return View((x.view(torch.uint16) if dtype else x).numpy(), dtype)
        except RuntimeError as error:
            if "storage" not in str(error):
                raise
            msg = (
                f"{op}: inside torch.func.jvp, grad and vmap a tensor has no values yet that could "
                "be sent; call it outside"
            )
            raise NotSupported(msg) from None

    def like(self, x: Any) -> Like:
        return self._like(x.dtype)

    def _like(self, dtype: Any) -> Like:
        torch = sys.modules["torch"]

        def make(shape: tuple[int, ...]) -> Target:
            result = torch.empty(shape, dtype=dtype)
            bits = result.view(torch.uint16) if dtype is torch.bfloat16 else result
            return Target(bits.numpy(), lambda: result)

        return make

    def like_dtype(self, dtype: Any) -> Like | None:
        if not isinstance(dtype, sys.modules["torch"].dtype):
            return None
        check_name("recv", str(dtype).removeprefix("torch."))
        return self._like(dtype)


class _Mlx:
    def view(self, op: str, x: Any) -> View:
        mx = sys.modules["mlx.core"]
        dtype = check_name(op, str(x.dtype).rpartition(".")[2])
        try:
            mx.eval(x)
        except ValueError as error:
            if "transformations" not in str(error):
                raise
            msg = (
                f"{op}: inside mx.vmap and mx.compile an array has no values yet that could be "
                "sent; call it outside (inside mx.grad it works)"
            )
            raise NotSupported(msg) from None
        return View(np.asarray(x.view(mx.uint16) if dtype else x), dtype)

    def out(self, op: str, x: Any) -> View:
        _refuse_out(op, "MLX")

    def like(self, x: Any) -> Like:
        return self._like(x.dtype)

    def _like(self, dtype: Any) -> Like:
        mx = sys.modules["mlx.core"]

        def make(shape: tuple[int, ...]) -> Target:
            # MLX has no empty(): its memory is filled once for nothing, which is cheaper than
            # copying a result into it.
            result = mx.zeros(shape, mx.uint16 if dtype == mx.bfloat16 else dtype)
            mx.eval(result)
            array = np.array(result, copy=False)
            if dtype == mx.bfloat16:
                return Target(array, lambda: result.view(mx.bfloat16))
            return Target(array, lambda: result)

        return make

    def like_dtype(self, dtype: Any) -> Like | None:
        if not isinstance(dtype, sys.modules["mlx.core"].Dtype):
            return None
        check_name("recv", str(dtype).rpartition(".")[2])
        return self._like(dtype)


class _Jax:
    def view(self, op: str, x: Any) -> View:
        jax = sys.modules["jax"]
        if isinstance(x, jax.core.Tracer):
            msg = (
                f"{op}: inside jax.jit, grad and vmap an array has no values yet that could be "
                "sent; call it outside"
            )
            raise NotSupported(msg)
        for device in x.devices():
            if device.platform != "cpu":
                name = "cuda" if device.platform == "gpu" else device.platform
                _refuse_device(op, f"{name}:{device.id}", "pass np.asarray(x)")
        dtype = check_name(op, x.dtype.name)
        array = np.asarray(x)  # read-only, and no copy unless x lies on several devices
        return View(array.view(BITS) if dtype else array, dtype)

    def out(self, op: str, x: Any) -> View:
        _refuse_out(op, "jax")

    def like(self, x: Any) -> Like:
        def make(shape: tuple[int, ...]) -> Target:
            result = np.empty(shape, x.dtype)
            bits = result.view(BITS) if x.dtype.name == "bfloat16" else result
            return Target(bits, lambda: _as_jax(result))

        return make

    def like_dtype(self, dtype: Any) -> Like | None:
        return None  # they are numpy's


def _as_jax(result: NDArray[Any]) -> Any:
    """Make it jax's, as it is: without this jax makes 32 bits of 64 where x64 is off just now."""
    jax = sys.modules["jax"]
    if result.dtype.itemsize < 8 or jax.config.jax_enable_x64:
        return jax.numpy.asarray(result)
    with jax.enable_x64(True):
        return jax.numpy.asarray(result)


class _DLPack:
    """Any other framework that speaks DLPack."""

    def view(self, op: str, x: Any) -> View:
        device, number = x.__dlpack_device__()
        if int(device) not in _ON_CPU:
            name = _DEVICES.get(int(device), f"device {int(device)} of DLPack")
            _refuse_device(op, f"{name}:{number}", "pass a copy on the CPU")
        try:
            array = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            msg = f"{op}: this {type(x).__name__} cannot be read through __dlpack__ ({error})"
            raise NotSupported(msg) from error
        return View(array)

    def out(self, op: str, x: Any) -> View:
        return self.view(op, x)

    def like(self, x: Any) -> Like:
        from_dlpack = _from_dlpack(x)
        dtype = np.from_dlpack(x).dtype

        def make(shape: tuple[int, ...]) -> Target:
            result = np.empty(shape, dtype)
            return Target(result, lambda: from_dlpack(result))

        return make

    def like_dtype(self, dtype: Any) -> Like | None:
        return None


def _from_dlpack(x: Any) -> Callable[[Any], Any]:
    """Find the function that makes arrays of this kind from numpy's."""
    if hasattr(x, "__array_namespace__"):
        namespace = x.__array_namespace__()
    else:
        namespace = sys.modules.get(type(x).__module__.partition(".")[0])
    if not hasattr(namespace, "from_dlpack"):
        msg = (
            f"a result cannot be made a {type(x).__name__} again: its module has no from_dlpack; "
            "pass np.from_dlpack(x)"
        )
        raise NotSupported(msg)
    return namespace.from_dlpack  # type: ignore[no-any-return]


_TORCH, _MLX, _JAX, _ANY = _Torch(), _Mlx(), _Jax(), _DLPack()
# By the first part of the name of the module that a type, or a type it derives from, is from.
_ADAPTERS: dict[str, Adapter] = {"torch": _TORCH, "mlx": _MLX, "jax": _JAX, "jaxlib": _JAX}


def is_mlx(x: object) -> bool:
    """Whether it is an array of MLX."""
    return type(x).__module__ == "mlx.core" and type(x).__name__ == "array"


def is_mlx_dtype(dtype: object) -> bool:
    """Whether it is a dtype of MLX."""
    return adapter_of_dtype(dtype) is _MLX


def on_stream(stream: object) -> AbstractContextManager[Any]:
    """Have MLX compute on a stream or device for a while; None: on the one it has."""
    if stream is None:
        return nullcontext()
    return sys.modules["mlx.core"].stream(stream)  # type: ignore[no-any-return]


def adapter_of(x: object) -> Adapter | None:
    """Return what its framework's arrays need, None if it is no array of a framework."""
    if not hasattr(x, "__dlpack__"):
        return None
    for kind in type(x).__mro__:
        adapter = _ADAPTERS.get(kind.__module__.partition(".")[0])
        if adapter is not None:
            return adapter
    return _ANY


def adapter_of_dtype(dtype: object) -> Adapter | None:
    """Return the adapter of a framework's dtype, None if it is none of these."""
    return _ADAPTERS.get(type(dtype).__module__.partition(".")[0])
