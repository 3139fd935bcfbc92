"""Join, split and scale the arrays of numpy, torch and MLX.

No framework is imported here: a caller with an array of a framework has loaded it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import NotSupported

_REAL = ("float16", "bfloat16", "float32", "float64")


def is_real(dtype: str) -> bool:
    """Return whether a dtype is a floating-point dtype."""
    return dtype in _REAL


def dtype_name_of(dtype: Any) -> str:
    """Return the name of a floating-point dtype.

    Takes a dtype of numpy, torch or MLX, or its name.

    Raises
    ------
    ValueError
        It is no floating-point dtype that ranks can exchange.

    Examples
    --------
    >>> dtype_name_of(np.float16), dtype_name_of("bfloat16")
    ('float16', 'bfloat16')
    """
    name = dtype if isinstance(dtype, str) else ""
    if not name:
        name = getattr(dtype, "__name__", "") or str(dtype)
    name = name.rpartition(".")[2]
    if not is_real(name):
        msg = f"communication_type must be one of {', '.join(_REAL)}, not {dtype!r}"
        raise ValueError(msg)
    return name


class ArrayKind(Protocol):
    """Operations on the arrays of one framework."""

    name: str
    integers_as: str  # the dtype in which integers are averaged

    def dtype_name(self, array: Any) -> str:
        """Return the name of the array's dtype, as numpy spells it."""

    def join(self, arrays: Sequence[Any], dtype: str, scale: float | None) -> Any:
        """Return a new flat array of all elements, converted and multiplied."""

    def divide(self, flat: Any, divisor: float, dtype: str) -> Any:
        """Return ``flat / divisor`` of this dtype; ``flat`` may be overwritten."""

    def part(self, flat: Any, start: int, array: Any, dtype: str) -> Any:
        """Return the elements from ``start`` in the shape of ``array``."""

    def sum_of_squares(self, array: Any) -> Any:
        """Return the sum of the squared magnitudes, in float64 or MLX's float32."""

    def scaled(self, array: Any, factor: Any) -> Any:
        """Return a new array times a number, of the same dtype."""

    def memory(self, array: Any) -> NDArray[Any]:
        """Return the elements one after the other; bfloat16 as bits.

        A copy only if they have gaps.
        """


class _Numpy:
    name = "numpy"
    integers_as = "float64"

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype.name)

    def join(self, arrays: Sequence[Any], dtype: str, scale: float | None) -> Any:
        flat = np.empty(sum(array.size for array in arrays), self._dtype(dtype))
        start = 0
        for array in arrays:
            view = flat[start : start + array.size].reshape(array.shape)
            np.copyto(view, array, casting="unsafe")
            start += array.size
        return _scale(flat, scale)

    @staticmethod
    def _dtype(name: str) -> np.dtype[Any]:
        try:
            return np.dtype(name)
        except TypeError:
            msg = f"numpy has no {name}; import ml_dtypes, or choose another communication_type"
            raise NotSupported(msg) from None

    def divide(self, flat: Any, divisor: float, dtype: str) -> Any:
        flat = flat.astype(dtype, copy=False)
        flat /= divisor
        return flat

    def part(self, flat: Any, start: int, array: Any, dtype: str) -> Any:
        part = flat[start : start + array.size].reshape(array.shape)
        return part.astype(dtype, copy=False) if part.dtype.name != dtype else part

    def sum_of_squares(self, array: Any) -> Any:
        wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64, copy=False)
        return float(np.vdot(wide, wide).real)

    def scaled(self, array: Any, factor: Any) -> Any:
        return (array * factor).astype(array.dtype, copy=False)

    def memory(self, array: Any) -> NDArray[Any]:
        return np.ascontiguousarray(array)


def _scale(flat: Any, scale: float | None) -> Any:
    if scale is not None:
        if scale:
            flat *= scale
        else:
            flat[...] = 0  # without weight, NaN does not count, either
    return flat


class _Torch:
    name = "torch"
    integers_as = "float32"

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def join(self, arrays: Sequence[Any], dtype: str, scale: float | None) -> Any:
        torch = sys.modules["torch"]
        sizes = [array.numel() for array in arrays]
        flat = torch.empty(sum(sizes), dtype=getattr(torch, dtype), device="cpu")
        for view, array in zip(flat.split(sizes), arrays, strict=True):
            view.view(array.shape).copy_(array.detach())
        return _scale(flat, scale)

    def divide(self, flat: Any, divisor: float, dtype: str) -> Any:
        return flat.to(getattr(sys.modules["torch"], dtype)).div_(divisor)

    def part(self, flat: Any, start: int, array: Any, dtype: str) -> Any:
        part = flat[start : start + array.numel()].view(array.shape)
        return part.to(getattr(sys.modules["torch"], dtype))

    def sum_of_squares(self, array: Any) -> Any:
        torch = sys.modules["torch"]
        wide = torch.complex128 if array.is_complex() else torch.float64
        flat = array.detach().reshape(-1).to(wide)
        return float(torch.vdot(flat, flat).real)

    def scaled(self, array: Any, factor: Any) -> Any:
        return (array.detach() * factor).to(array.dtype)

    def memory(self, array: Any) -> NDArray[Any]:
        torch = sys.modules["torch"]
        dense = array.detach().cpu().contiguous()
        bits = dense.view(torch.uint16) if dense.dtype is torch.bfloat16 else dense
        return bits.numpy()  # type: ignore[no-any-return]


class _Mlx:
    name = "MLX"
    integers_as = "float32"

    def dtype_name(self, array: Any) -> str:
        name = str(array.dtype).rpartition(".")[2]
        return {"bool_": "bool"}.get(name, name)

    def join(self, arrays: Sequence[Any], dtype: str, scale: float | None) -> Any:
        mx = sys.modules["mlx.core"]
        kind = getattr(mx, dtype)
        parts = [array.reshape(-1).astype(kind) for array in arrays]
        flat = mx.concatenate(parts) if len(parts) > 1 else parts[0]
        if scale is None:
            return flat
        if not isinstance(scale, mx.array):
            return flat * scale if scale else mx.zeros_like(flat)
        return mx.where(scale == 0, mx.zeros_like(flat), flat * scale.astype(kind))

    def divide(self, flat: Any, divisor: Any, dtype: str) -> Any:
        flat = flat.astype(getattr(sys.modules["mlx.core"], dtype))
        return flat / divisor

    def part(self, flat: Any, start: int, array: Any, dtype: str) -> Any:
        part = flat[start : start + array.size].reshape(array.shape)
        return part.astype(getattr(sys.modules["mlx.core"], dtype))

    def sum_of_squares(self, array: Any) -> Any:
        mx = sys.modules["mlx.core"]
        return mx.sum(mx.square(mx.abs(array).astype(mx.float32)))

    def scaled(self, array: Any, factor: Any) -> Any:
        return (array * factor).astype(array.dtype)

    def memory(self, array: Any) -> NDArray[Any]:
        mx = sys.modules["mlx.core"]
        bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
        return np.ascontiguousarray(np.asarray(bits))


_NUMPY, _TORCH, _MLX = _Numpy(), _Torch(), _Mlx()


def kind_of(array: Any) -> ArrayKind | None:
    """Return the operations for an array; None for other objects."""
    if isinstance(array, np.ndarray):
        return _NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _TORCH
    mx = sys.modules.get("mlx.core")
    if mx is not None and isinstance(array, mx.array):
        return _MLX
    return None


class ArrayForm(NamedTuple):
    """An array without its elements."""

    framework: str
    dtype: str
    shape: list[int]

    @staticmethod
    def of(array: Any) -> ArrayForm:
        """Return the form of an array."""
        kind = kind_of(array)
        assert kind is not None
        return ArrayForm(kind.name, kind.dtype_name(array), list(array.shape))

    def empty(self) -> Any:
        """Return an array of this form, of its framework."""
        if self.framework == "numpy":
            return np.empty(self.shape, self.dtype)
        if self.framework == "torch":
            import torch

            return torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        import mlx.core as mx

        name = "bool_" if self.dtype == "bool" else self.dtype
        return mx.zeros(self.shape, getattr(mx, name))
