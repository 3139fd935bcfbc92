"""Check the arguments of collectives before any byte moves.

Arrays of other frameworks are viewed through `frameworks`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import NotSupported

from .frameworks import (
    BITS,
    DTYPES,
    Adapter,
    ArrayView,
    Like,
    ResultMemory,
    adapter_of,
    check_name,
    is_mlx,
    like_foreign_dtype,
    view_of_numpy,
)

_BFLOAT16_NAN = 0x7FC0
_APART = ("all_gather", "sum_scatter", "all_to_all")  # the engine reads x while writing out
_PEER = {"send": ", dst", "recv_like": ", src"}  # further arguments of a call, for error texts
_INT64_MAX = np.iinfo(np.int64).max


class Source(NamedTuple):
    """Input of a collective: C-contiguous, aligned, supported dtype."""

    array: NDArray[Any]
    dtype: str  # type of the bits if numpy has no such type, else ""
    like: Like  # allocates results of the same kind
    of: object  # the object that the caller gave


def check_stream(op: str, x: object, stream: object) -> None:
    """Refuse a stream for arrays that are not MLX's."""
    if stream is not None and not is_mlx(x):
        msg = f"{op}: stream is for arrays of MLX, x is {_kind(x)}; leave it out"
        raise NotSupported(msg)


def as_source(op: str, x: object, *, addends: int = 1) -> Source:
    """View ``x`` as an input of the engine; copy only if needed.

    ``addends`` is the number of such values that will be summed. A Python int has no width, so
    ``addends`` times the int must fit into int64.

    Raises `ValueError`: ``x`` is neither an array nor a number. Raises `NotSupported`: the result
    would lose or misread the subclass, byte order, dtype or device of ``x``. Raises
    `OverflowError`: a Python int does not fit into int64.
    """
    like: Like
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        finish = None if op == "all_gather" else _as_number
        number = np.asarray(x, _dtype_of(op, x, addends))
        return Source(number, "", partial(_room, number.dtype, finish), x)
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray:
            _refuse_subclass(op, x)
        (array, dtype), like = view_of_numpy(op, x), partial(_room, x.dtype, None)
    elif isinstance(x, np.generic):
        finish = None if op == "all_gather" else _as_scalar
        (array, dtype), like = view_of_numpy(op, np.asarray(x)), partial(_room, x.dtype, finish)
    else:
        adapter = adapter_of(x)
        if adapter is None:
            _refuse(op, x)
        (array, dtype), like = adapter.view(op, x), adapter.like(x)
    return Source(_in_order(array), dtype, like, x)


def _dtype_of(op: str, x: complex, addends: int) -> type[Any]:
    if isinstance(x, bool):
        return np.bool_
    if isinstance(x, int):
        if not -_INT64_MAX - 1 <= x * addends <= _INT64_MAX:
            msg = f"{op}: the int {x} may not fit into int64 (times {addends} ranks); pass a float"
            raise OverflowError(msg)
        return np.int64
    return np.float64 if isinstance(x, float) else np.complex128


def _refuse_subclass(op: str, x: NDArray[Any]) -> NoReturn:
    kind = type(x).__name__
    if isinstance(x, np.ma.MaskedArray):  # np.asarray(x) would expose the masked values
        msg = f"{op}: {kind} would lose its mask; pass x.filled(value), of what is to stand there"
    else:
        msg = f"{op}: {kind} would lose what it has beyond a plain array; pass np.asarray(x)"
    raise NotSupported(msg)


def _refuse(op: str, x: object) -> NoReturn:
    msg = f"Invalid type {type(x).__name__} received in array initialization."
    if isinstance(x, Mapping):
        msg += f" {op} takes one array: call it once for each, {{k: {_call(op)} for k, y in x.items()}}."
    elif isinstance(x, Iterator) or _has_arrays(x) or _is_ragged(x):
        msg += f" {op} takes one array: call it once for each, [{_call(op)} for y in x]."
    elif isinstance(x, (list, tuple)):
        msg += " Pass np.asarray(x)."
    elif hasattr(x, "to_numpy"):  # pandas, polars, xarray
        msg += " Pass x.to_numpy()."
    else:
        msg += f" {op} takes arrays of numpy, torch, MLX or with __dlpack__, and numbers."
    raise ValueError(msg)


def _is_ragged(x: object) -> bool:
    """Whether lists in a list have different lengths."""
    try:
        return isinstance(x, (list, tuple)) and np.asarray(x).dtype == object
    except ValueError:
        return True


def _has_arrays(x: object) -> bool:
    return isinstance(x, (list, tuple)) and any(getattr(y, "shape", ()) for y in x)


def _call(op: str) -> str:
    """Format a call of an operation for one of several arrays."""
    return f"px.{op}(y{_PEER.get(op, '')})"


def _in_order(x: NDArray[Any]) -> NDArray[Any]:
    flags = x.flags
    return x if flags.c_contiguous and flags.aligned else x.copy(order="C")


def _room(
    dtype: np.dtype[Any],
    finish: Callable[[NDArray[Any]], Any] | None,
    shape: tuple[int, ...],
) -> ResultMemory:
    result: NDArray[Any] = np.empty(shape, dtype)
    return ResultMemory(result if dtype in DTYPES else result.view(BITS), result, finish)


def _as_scalar(result: NDArray[Any]) -> Any:
    return result[()]


def _as_number(result: NDArray[Any]) -> Any:
    return result if result.ndim else result.item()


def like_dtype(op: str, dtype: object) -> tuple[Like, str]:
    """Return an allocator for a dtype, and the dtype's engine name.

    ``dtype`` is one of numpy, torch or MLX. Raises `TypeError` or `NotSupported` for any other.
    """
    if dtype is None:  # numpy would take None for float64
        msg = f"{op}: dtype None says nothing; give the one that is sent, such as 'float32'"
        raise TypeError(msg)
    like = like_foreign_dtype(dtype)
    if like is not None:
        return like, check_name(op, str(dtype).rpartition(".")[2])
    if isinstance(dtype, str) and dtype == "bfloat16":
        dtype = _bfloat16(op)
    kind: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    return partial(_room, kind, None), view_of_numpy(op, np.empty(0, kind)).dtype


def _bfloat16(op: str) -> object:
    """Return the bfloat16 dtype of ml_dtypes."""
    try:
        return importlib.import_module("ml_dtypes").bfloat16
    except ImportError:
        msg = f"{op}: numpy has no bfloat16 of its own; install ml_dtypes"
        raise NotSupported(msg) from None


def target_of(op: str, out: object, shape: tuple[int, ...], source: Source) -> ResultMemory:
    """Check that the result can be written to ``out``.

    If the operation keeps the shape, ``out`` may be the source.

    Raises `TypeError`: ``out`` is not an array that can be written to. Raises `ValueError`: shape,
    dtype, layout or memory of ``out`` do not fit.
    """
    (array, dtype), adapter = _writable(op, out)
    x = source.array
    if array.shape != shape:
        wrong = f"shape {array.shape}; the result has {shape}"
    elif array.dtype != x.dtype or dtype != source.dtype:
        wrong = f"dtype {dtype or array.dtype}; the result has {source.dtype or x.dtype}"
    elif not (array.flags.c_contiguous and array.flags.aligned):
        wrong = "gaps or another order; the result needs a C-contiguous, aligned array"
    elif not array.flags.writeable:
        wrong = "no permission to be written to"
    elif not np.may_share_memory(array, x):
        wrong = ""
    elif op in _APART:
        wrong = "memory in common with x; it must lie apart"
    elif out is not source.of and array.ctypes.data != x.ctypes.data:
        wrong = "memory in common with a part of x; only x itself may be its own out"
    else:
        wrong = ""
    if not wrong:
        if adapter is not None:
            adapter.note_change(out)
        return ResultMemory(array, out)
    msg = f"{op}: out has {wrong}"
    raise ValueError(msg)


def _writable(op: str, out: object) -> tuple[ArrayView, Adapter | None]:
    if type(out) is np.ndarray:
        return view_of_numpy(op, out), None
    adapter = None if isinstance(out, (np.ndarray, np.generic)) else adapter_of(out)
    if adapter is None:
        msg = f"{op}: out must be a plain numpy array or a tensor, not {type(out).__name__}"
        raise TypeError(msg)
    return adapter.out(op, out), adapter


def _kind(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def invalidate_output(target: NDArray[Any], dtype: str) -> None:
    """Fill the output of a failed operation with invalid values.

    The values are the engine's: NaN; for signed integers the smallest and for unsigned ones the
    largest value; True for bools.
    """
    kind = target.dtype.kind
    if dtype:
        target.fill(_BFLOAT16_NAN)
    elif kind == "b":
        target.fill(True)
    elif kind in "iu":
        bounds = np.iinfo(target.dtype)
        target.fill(bounds.min or bounds.max)
    else:  # also bfloat16 of ml_dtypes, which has a kind of its own
        target.fill(complex(np.nan, np.nan) if kind == "c" else np.nan)
