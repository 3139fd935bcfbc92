"""Arrays of other frameworks, seen as numpy sees memory, and results of their kind.

Nothing is imported here: whoever has an array of a framework has loaded it. Of operations it knows
their names, for its errors. An adapter is one class and one line of ``_ADAPTERS``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import NotSupported

from ._torch import Torch
from ._views import (
    BITS,
    DTYPES,
    Adapter,
    Like,
    Target,
    View,
    check_name,
    refuse_device,
    refuse_out,
    view_of_numpy,
)

__all__ = ["adapter_of", "adapter_of_dtype", "is_mlx", "is_mlx_dtype", "on_stream"]

# DLPack's device types whose memory the CPU reads: CPU, and pinned memory of CUDA and ROCm.
_ON_CPU = (1, 3, 11)
_DEVICES = {2: "cuda", 8: "metal", 10: "rocm", 13: "cuda"}


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
        refuse_out(op, "MLX")

    def note_change(self, out: Any) -> None:
        """Never come here: `out` has refused it."""

    def like(self, x: Any) -> Like:
        return partial(_room_of_mlx, x.dtype)

    def like_dtype(self, dtype: Any) -> Like | None:
        if not isinstance(dtype, sys.modules["mlx.core"].Dtype):
            return None
        check_name("recv", str(dtype).rpartition(".")[2])
        return partial(_room_of_mlx, dtype)


def _room_of_mlx(dtype: Any, shape: tuple[int, ...]) -> Target:
    mx = sys.modules["mlx.core"]
    is_bfloat16 = dtype == mx.bfloat16
    # MLX has no empty(): its memory is filled once for nothing, which is cheaper than copying a
    # result into it. By the CPU: the default device may be a GPU, which has no float64.
    result = mx.zeros(shape, mx.uint16 if is_bfloat16 else dtype, stream=mx.cpu)
    mx.eval(result)
    return Target(np.array(result, copy=False), result, _as_bfloat16 if is_bfloat16 else None)


def _as_bfloat16(bits: Any) -> Any:
    return bits.view(sys.modules["mlx.core"].bfloat16)


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
                refuse_device(op, f"{name}:{device.id}", "pass np.asarray(x)")
        dtype = check_name(op, x.dtype.name)
        array = np.asarray(x)  # read-only, and no copy unless x lies on several devices
        return View(array.view(BITS) if dtype else array, dtype)

    def out(self, op: str, x: Any) -> View:
        refuse_out(op, "jax")

    def note_change(self, out: Any) -> None:
        """Never come here: `out` has refused it."""

    def like(self, x: Any) -> Like:
        return partial(_room_of_jax, x.dtype, x.devices())

    def like_dtype(self, dtype: Any) -> Like | None:
        return None  # they are numpy's


def _room_of_jax(dtype: np.dtype[Any], devices: set[Any], shape: tuple[int, ...]) -> Target:
    result: NDArray[Any] = np.empty(shape, dtype)
    bits = result if dtype in DTYPES else result.view(BITS)
    return Target(bits, result, partial(_as_jax, devices))


def _as_jax(devices: set[Any], result: NDArray[Any]) -> Any:
    """Make it jax's, as it is: without this jax makes 32 bits of 64 where x64 is off just now."""
    jax = sys.modules["jax"]
    device = _device_beside(devices)
    if result.dtype.itemsize < 8 or jax.config.jax_enable_x64:
        return jax.numpy.asarray(result, device=device)
    with jax.enable_x64(True):
        return jax.numpy.asarray(result, device=device)


def _device_beside(devices: set[Any]) -> Any:
    """Choose where the result of an array on these devices is to lie; None: on the default one.

    What is put on a device by name stays there, and jax refuses to add up what stays on different
    ones: so it is named only where the default device is another, a GPU perhaps.
    """
    jax = sys.modules["jax"]
    default = jax.config.jax_default_device
    if default is None or isinstance(default, str):
        default = jax.local_devices(backend=default)[0]
    if default in devices:
        return None
    return next(iter(devices)) if len(devices) == 1 else jax.local_devices(backend="cpu")[0]


class _DLPack:
    """Any other framework that speaks DLPack."""

    def view(self, op: str, x: Any) -> View:
        device, number = x.__dlpack_device__()
        if int(device) not in _ON_CPU:
            name = _DEVICES.get(int(device), f"device {int(device)} of DLPack")
            refuse_device(op, f"{name}:{number}", "pass a copy on the CPU")
        try:
            array = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            msg = f"{op}: this {type(x).__name__} cannot be read through __dlpack__ ({error})"
            raise NotSupported(msg) from error
        return view_of_numpy(op, array)

    def out(self, op: str, x: Any) -> View:
        return self.view(op, x)

    def note_change(self, out: Any) -> None:
        """Tell nobody: DLPack has no word for it."""

    def like(self, x: Any) -> Like:
        return partial(_room_by_dlpack, np.from_dlpack(x).dtype, _from_dlpack(x))

    def like_dtype(self, dtype: Any) -> Like | None:
        return None


def _room_by_dlpack(
    dtype: np.dtype[Any], from_dlpack: Callable[[Any], Any], shape: tuple[int, ...]
) -> Target:
    result: NDArray[Any] = np.empty(shape, dtype)
    return Target(result, result, from_dlpack)


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


_TORCH, _MLX, _JAX, _ANY = Torch(), _Mlx(), _Jax(), _DLPack()
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
    adapter = _ADAPTERS.get(type(x).__module__)  # of a tensor, the name is no longer
    if adapter is not None:
        return adapter
    for kind in type(x).__mro__:
        adapter = _ADAPTERS.get(kind.__module__.partition(".")[0])
        if adapter is not None:
            return adapter
    return _ANY


def adapter_of_dtype(dtype: object) -> Adapter | None:
    """Return the adapter of a framework's dtype, None if it is none of these."""
    return _ADAPTERS.get(type(dtype).__module__.partition(".")[0])
