"""What numpy and MPI must be told of each dtype: its storage, its sums, its spoiled value.

MPI has no half precision, drops NaN in max and min, and orders no complex numbers; such
reductions are done by `fold`, in the order of ranks. The others are MPI's own (`native`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["DTYPES", "flat", "fold", "name_of", "native", "reduction", "spoil"]

Array = NDArray[Any]

# Their places in this tuple go over the wire: append only.
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip

_FOLDS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_BFLOAT16_NAN = 0x7FC0


def name_of(array: Array, dtype: str) -> str:
    """Return the name of what an array holds; ``dtype`` where the caller knows better.

    Raises
    ------
    TypeError
        No such dtype, or one of another width.
    """
    name = dtype or array.dtype.name
    if name not in DTYPES:
        msg = f"dtype {name} is not supported"
        raise TypeError(msg)
    if _storage(name).itemsize != array.dtype.itemsize:
        msg = f"the array's items have {array.dtype.itemsize} bytes, those of {name} do not"
        raise TypeError(msg)
    return name


def _storage(name: str) -> np.dtype[Any]:
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def flat(array: Array, name: str) -> Array:
    """See a contiguous array in one dimension, as what numpy calculates with or bits."""
    held: Array = array.reshape(-1).view(_storage(name))
    return held


def reduction(op: str) -> str:
    """Tell which reduction an operation is: "sum", "max" or "min"; "" for none.

    Examples
    --------
    >>> reduction("all_max"), reduction("sum_scatter"), reduction("all_gather")
    ('max', 'sum', '')
    """
    found = {"all_sum": "sum", "sum_scatter": "sum", "all_max": "max", "all_min": "min"}
    return found.get(op, "")


def fold(how: str, name: str, rows: Array) -> Array:
    """Reduce rows, one of each rank, in the order of ranks; half precision in float32.

    Examples
    --------
    >>> fold("sum", "float16", np.asarray([[2048.0], [1.0], [1.0]], np.float16)).tolist()
    [2050.0]
    """
    combine = _FOLDS[how]
    result: Array = _widened(rows[0], name)
    with np.errstate(all="ignore"):  # infinities and NaN are results, too
        for row in rows[1:]:
            combine(result, _widened(row, name), out=result)
        return _narrowed(result, name)


def _widened(row: Array, name: str) -> Array:
    wide: Array = row.copy()
    if name == "float16":
        wide = row.astype(np.float32)
    if name == "bfloat16":
        wide = (row.astype(np.uint32) << 16).view(np.float32)
    return wide


def _narrowed(wide: Array, name: str) -> Array:
    if name == "float16":
        return wide.astype(np.float16)
    if name == "bfloat16":
        bits = wide.view(np.uint32)
        # To the nearest, ties to even; a carry into the exponent is right, up to infinity.
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return np.where(np.isnan(wide), _BFLOAT16_NAN, nearest).astype(np.uint16)
    return wide


def native(mpi: Any, how: str, name: str) -> tuple[MPI.Datatype, MPI.Op] | None:
    """Return MPI's own datatype and operation, where they do what numpy does; else None.

    Integers are added as unsigned ones: they wrap, which C does not promise for signed ones.
    Narrow ones are not: Open MPI 5.0 adds 8 and 16 bits with saturation where it has AVX.
    Bools are integers to MPI, as any byte but 0 is true: of bits, 1 and 2 have none in common, and
    C lets a library take it that the bytes of `C_BOOL` are 0 and 1.
    """
    dtype = _storage(name)
    if name == "bool":
        return mpi.UINT8_T, mpi.LAND if how == "min" else mpi.LOR
    if name in {"float16", "bfloat16"} or (how != "sum" and dtype.kind in "fc"):
        return None
    if how == "sum" and dtype.kind in "iu" and dtype.itemsize < 4:
        return None
    if dtype.kind == "c":
        return (mpi.C_FLOAT_COMPLEX if dtype.itemsize == 8 else mpi.C_DOUBLE_COMPLEX), mpi.SUM
    if dtype.kind == "f":
        return (mpi.FLOAT if dtype.itemsize == 4 else mpi.DOUBLE), mpi.SUM
    sign = "U" if how == "sum" or dtype.kind == "u" else ""
    datatype = getattr(mpi, f"{sign}INT{8 * dtype.itemsize}_T")
    return datatype, {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}[how]


def spoil(out: Array, name: str) -> None:
    """Make the output of a failed operation visibly invalid.

    NaN; of integers, which have none, the smallest, of unsigned ones the largest, of bool True.
    """
    held = flat(out, name)
    if name == "bfloat16":
        held.fill(_BFLOAT16_NAN)
    elif held.dtype.kind in "fc":
        held.fill(complex(np.nan, np.nan) if held.dtype.kind == "c" else np.nan)
    elif held.dtype.kind in "iu":
        bounds = np.iinfo(held.dtype)
        held.fill(bounds.min or bounds.max)
    else:
        held.fill(True)
