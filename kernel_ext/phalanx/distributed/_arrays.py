"""What a collective takes and gives back: the checks of arguments, before any byte moves.

It knows numpy and the errors; of groups only their size.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import NotSupported

__all__ = ["DTYPES", "Kind", "as_source", "check_options", "check_out", "finish", "spoil"]

Kind = Literal["array", "numpy scalar", "number"]

DTYPES = frozenset(np.dtype(name) for name in ("float32", "float64", "int64"))
_DTYPE_NAMES = "float32, float64, int64"
_INT64_MAX = np.iinfo(np.int64).max


def check_options(op: str, *, async_op: bool, stream: object) -> None:
    """Refuse what this release does not do."""
    if async_op:
        msg = f"{op}: async_op=True is not in this release; call it without, in a thread if need be"
        raise NotSupported(msg)
    if stream is not None:
        msg = f"{op}: stream is for arrays of MLX, which this release does not take; leave it out"
        raise NotSupported(msg)


def as_source(op: str, x: object, *, addends: int = 1) -> tuple[NDArray[Any], Kind]:
    """See ``x`` as a C-contiguous, aligned array of a supported dtype, copied only if it must be.

    ``addends`` is how many such values will be summed: a Python int, which has no width, must fit
    that often into int64.

    Raises
    ------
    ValueError
        ``x`` is no array and no number.
    NotSupported
        A subclass, byte order or dtype that would be lost or misread on the way.
    OverflowError
        A Python int that int64 cannot hold.
    """
    if isinstance(x, np.generic):
        return _check_dtype(op, np.asarray(x)), "numpy scalar"
    if isinstance(x, np.ndarray):
        if type(x) is not np.ndarray:
            msg = (
                f"{op}: {type(x).__name__} would lose what it has beyond a plain array; "
                "pass np.asarray(x)"
            )
            raise NotSupported(msg)
        _check_dtype(op, x)
        return (x if x.flags.c_contiguous and x.flags.aligned else x.copy(order="C")), "array"
    if isinstance(x, (bool, complex)) or not isinstance(x, (int, float)):
        _refuse(op, x)
    if isinstance(x, int) and not -_INT64_MAX <= x * addends <= _INT64_MAX:
        msg = f"{op}: the int {x} may not fit into int64 (times {addends} ranks); pass a float"
        raise OverflowError(msg)
    dtype = np.int64 if isinstance(x, int) else np.float64
    return np.asarray(x, dtype), "number"


def _refuse(op: str, x: object) -> None:
    if isinstance(x, (bool, complex)):
        _check_dtype(op, np.asarray(x))
    msg = f"Invalid type {type(x).__name__} received in array initialization."
    if isinstance(x, (list, tuple)):
        msg += " Pass np.asarray(x)."
    elif hasattr(x, "__dlpack__"):
        msg += " Pass np.from_dlpack(x), or its numpy()."
    else:
        msg += f" {op} takes numpy arrays, numpy scalars, int and float."
    raise ValueError(msg)


def _check_dtype(op: str, x: NDArray[Any]) -> NDArray[Any]:
    if not x.dtype.isnative:
        msg = (
            f"{op}: dtype {x.dtype.str} has its bytes swapped; "
            f"pass x.astype({x.dtype.newbyteorder('=').name!r})"
        )
        raise NotSupported(msg)
    if x.dtype not in DTYPES:
        msg = f"{op}: dtype {x.dtype} is not supported; {_DTYPE_NAMES} are (use x.astype)"
        raise NotSupported(msg)
    return x


def check_out(op: str, out: object, shape: tuple[int, ...], source: NDArray[Any]) -> NDArray[Any]:
    """Check that the result can be written to ``out``, which may be the source itself.

    Raises
    ------
    TypeError
        It is not a plain array.
    ValueError
        Shape, dtype, layout or memory do not fit.
    """
    if type(out) is not np.ndarray:
        msg = f"{op}: out must be a plain numpy array, not {type(out).__name__}"
        raise TypeError(msg)
    if out.shape != shape:
        wrong = f"shape {out.shape}; the result has {shape}"
    elif out.dtype != source.dtype:
        wrong = f"dtype {out.dtype}; the result has {source.dtype}"
    elif not (out.flags.c_contiguous and out.flags.aligned):
        wrong = "gaps or another order; the result needs a C-contiguous, aligned array"
    elif not out.flags.writeable:
        wrong = "no permission to be written to"
    elif np.may_share_memory(out, source) and not _is_same(out, source):
        wrong = "memory in common with a part of x; only x itself may be its own out"
    else:
        return out
    msg = f"{op}: out has {wrong}"
    raise ValueError(msg)


def _is_same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and a.ctypes.data == b.ctypes.data


def finish(result: NDArray[Any], kind: Kind) -> Any:
    """Give a result back as the kind that came in."""
    if kind == "array":
        return result
    return result[()] if kind == "numpy scalar" else result.item()


def spoil(out: NDArray[Any]) -> None:
    """Make what a failed operation left in the caller's array visibly invalid.

    NaN, and the smallest number of an integer type, which has no NaN.
    """
    out.fill(np.nan if out.dtype.kind == "f" else np.iinfo(out.dtype).min)
