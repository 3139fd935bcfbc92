"""What a collective takes and gives back: the checks of arguments, before any byte moves.

It knows numpy, Python's numbers and the errors; other frameworks through `_frameworks`, of groups
only their size.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import NotSupported

from ._frameworks import (
    DTYPE_NAMES,
    Like,
    Target,
    View,
    adapter_of,
    adapter_of_dtype,
    check_name,
    is_mlx,
)

__all__ = ["DTYPES", "Source", "as_source", "check_stream", "like_dtype", "spoil", "target_of"]

DTYPES = frozenset(np.dtype(name) for name in DTYPE_NAMES if name != "bfloat16")
_BITS = np.dtype(np.uint16)
_BFLOAT16_NAN = 0x7FC0
_APART = ("all_gather", "sum_scatter", "all_to_all")  # the engine reads x while it writes out
_INT64_MAX = np.iinfo(np.int64).max


class Source(NamedTuple):
    """What a collective sends: C-contiguous, aligned, of a supported dtype."""

    array: NDArray[Any]
    dtype: str  # what to read the bits as, where numpy has no name for it
    like: Like  # makes room for results of the same kind


def check_stream(op: str, x: object, stream: object) -> None:
    """Refuse a stream for arrays that know none."""
    if stream is not None and not is_mlx(x):
        msg = f"{op}: stream is for arrays of MLX, x is {_kind(x)}; leave it out"
        raise NotSupported(msg)


def as_source(op: str, x: object, *, addends: int = 1) -> Source:
    """See ``x`` as what the engine takes, copied only if it must be.

    ``addends`` is how many such values will be summed: a Python int, which has no width, must fit
    that often into int64.

    Raises
    ------
    ValueError
        ``x`` is no array and no number.
    NotSupported
        A subclass, byte order, dtype or device that would be lost or misread on the way.
    OverflowError
        A Python int that int64 cannot hold.
    """
    like: Like
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        kind = _LikeArray if op == "all_gather" else _LikeNumber
        number = np.asarray(x, _dtype_of(op, x, addends))
        return Source(number, "", kind(number.dtype))
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray:
            msg = (
                f"{op}: {type(x).__name__} would lose what it has beyond a plain array; "
                "pass np.asarray(x)"
            )
            raise NotSupported(msg)
        (array, dtype), like = _view(op, x), _LikeArray(x.dtype)
    elif isinstance(x, np.generic):
        kind = _LikeArray if op == "all_gather" else _LikeScalar
        (array, dtype), like = _view(op, np.asarray(x)), kind(x.dtype)
    else:
        adapter = adapter_of(x)
        if adapter is None:
            _refuse(op, x)
        (array, dtype), like = adapter.view(op, x), adapter.like(x)
        array = _view(op, array).array
    return Source(_in_order(array), dtype, like)


def _dtype_of(op: str, x: complex, addends: int) -> type[Any]:
    if isinstance(x, bool):
        return np.bool_
    if isinstance(x, int):
        if not -_INT64_MAX - 1 <= x * addends <= _INT64_MAX:
            msg = f"{op}: the int {x} may not fit into int64 (times {addends} ranks); pass a float"
            raise OverflowError(msg)
        return np.int64
    return np.float64 if isinstance(x, float) else np.complex128


def _refuse(op: str, x: object) -> NoReturn:
    msg = f"Invalid type {type(x).__name__} received in array initialization."
    if isinstance(x, (list, tuple)):
        msg += " Pass np.asarray(x)."
    else:
        msg += f" {op} takes arrays of numpy, torch, MLX, jax or with __dlpack__, and numbers."
    raise ValueError(msg)


def _view(op: str, x: NDArray[Any]) -> View:
    if not x.dtype.isnative:
        msg = (
            f"{op}: dtype {x.dtype.str} has its bytes swapped; "
            f"pass x.astype({x.dtype.newbyteorder('=').name!r})"
        )
        raise NotSupported(msg)
    if x.dtype in DTYPES:
        return View(x)
    name = check_name(op, str(x.dtype))
    return View(x.view(_BITS), name)


def _in_order(x: NDArray[Any]) -> NDArray[Any]:
    flags = x.flags
    return x if flags.c_contiguous and flags.aligned else x.copy(order="C")


class _LikeArray:
    """Results that are arrays of numpy."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def __call__(self, shape: tuple[int, ...]) -> Target:
        result: NDArray[Any] = np.empty(shape, self._dtype)
        return Target(
            result if self._dtype in DTYPES else result.view(_BITS), lambda: self._give(result)
        )

    def _give(self, result: NDArray[Any]) -> Any:
        return result


class _LikeScalar(_LikeArray):
    """Results that are scalars of numpy, where they have no dimension."""

    def _give(self, result: NDArray[Any]) -> Any:
        return result[()]


class _LikeNumber(_LikeArray):
    """Results that are numbers of Python, where they have no dimension."""

    def _give(self, result: NDArray[Any]) -> Any:
        return result if result.ndim else result.item()


def like_dtype(op: str, dtype: object) -> tuple[Like, str]:
    """Make room for results of a dtype of numpy, torch or MLX, and name it to the engine.

    Raises
    ------
    TypeError, NotSupported
        It is no dtype, or none that ranks can exchange.
    """
    adapter = adapter_of_dtype(dtype)
    like = None if adapter is None else adapter.like_dtype(dtype)
    if like is not None:
        return like, check_name(op, str(dtype).rpartition(".")[2])
    if isinstance(dtype, str) and dtype == "bfloat16":
        dtype = _bfloat16(op)
    kind: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    return _LikeArray(kind), _view(op, np.empty(0, kind)).dtype


def _bfloat16(op: str) -> object:
    """Return the dtype that numpy has of this name once ml_dtypes is loaded."""
    try:
        return importlib.import_module("ml_dtypes").bfloat16
    except ImportError:
        msg = f"{op}: numpy has no bfloat16 of its own; install ml_dtypes"
        raise NotSupported(msg) from None


def target_of(op: str, out: object, shape: tuple[int, ...], source: Source) -> Target:
    """Check that the result can be written to ``out``; where shapes stay it may be the source.

    Raises
    ------
    TypeError
        It is not an array that can be written to.
    ValueError
        Shape, dtype, layout or memory do not fit.
    """
    array, dtype = _writable(op, out)
    x = source.array
    if array.shape != shape:
        wrong = f"shape {array.shape}; the result has {shape}"
    elif array.dtype != x.dtype or dtype != source.dtype:
        wrong = f"dtype {dtype or array.dtype}; the result has {source.dtype or x.dtype}"
    elif not (array.flags.c_contiguous and array.flags.aligned):
        wrong = "gaps or another order; the result needs a C-contiguous, aligned array"
    elif not array.flags.writeable:
        wrong = "no permission to be written to"
    elif op in _APART and np.may_share_memory(array, x):
        wrong = "memory in common with x; it must lie apart"
    elif np.may_share_memory(array, x) and array.ctypes.data != x.ctypes.data:
        wrong = "memory in common with a part of x; only x itself may be its own out"
    else:
        return Target(array, lambda: out)
    msg = f"{op}: out has {wrong}"
    raise ValueError(msg)


def _writable(op: str, out: object) -> View:
    if type(out) is np.ndarray:
        return _view(op, out)
    adapter = None if isinstance(out, (np.ndarray, np.generic)) else adapter_of(out)
    if adapter is None:
        msg = f"{op}: out must be a plain numpy array or a tensor, not {type(out).__name__}"
        raise TypeError(msg)
    return adapter.out(op, out)


def _kind(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def spoil(target: NDArray[Any], dtype: str) -> None:
    """Make what a failed operation left in the caller's array visibly invalid.

    NaN; of integers, which have none, the smallest, and of unsigned ones the largest.
    """
    if dtype:
        target.fill(_BFLOAT16_NAN)
    elif target.dtype.kind in "fc":
        target.fill(np.nan)
    elif target.dtype.kind == "b":
        target.fill(True)
    else:
        bounds = np.iinfo(target.dtype)
        target.fill(bounds.min or bounds.max)
