"""Headers of operations, and reductions by numpy.

MPI has no half precision, drops NaN in max and min, and has no order for complex numbers. `fold`
does such reductions, in rank order. MPI does the others (`native`).

The error texts are those of the native engine (native/collectives/operation/op.cpp).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]

# The index in this tuple is sent over the wire: append only.
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip

_FOLDS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_BFLOAT16_NAN = 0x7FC0

# The index in this tuple is sent over the wire: append only.
KINDS = (
    "barrier", "all_sum", "all_gather", "broadcast", "all_max", "all_min", "sum_scatter",
    "all_to_all", "send", "recv", "split",
)  # fmt: skip

_MAX_DIMS = 8  # dimensions in a header
_MOST_DIMS = 64  # dimensions of an array: numpy's limit
_LAYOUT = struct.Struct(f"<8sQQQQIIIIiI{_MAX_DIMS}Q")
_MAGIC = b"phalmpi1"
HEADER_NBYTES = _LAYOUT.size
COLLECTIVES = (
    "all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "all_to_all", "broadcast",
)  # fmt: skip


def _storage(name: str) -> np.dtype[Any]:
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def flat(array: Array, name: str) -> Array:
    """View a contiguous array as one dimension, bfloat16 as uint16 bits."""
    held: Array = array.reshape(-1).view(_storage(name))
    return held


def reduction(op: str) -> str:
    """Return the operation's reduction: "sum", "max", "min", or "" for none.

    Examples
    --------
    >>> reduction("all_max"), reduction("sum_scatter"), reduction("all_gather")
    ('max', 'sum', '')
    """
    found = {"all_sum": "sum", "sum_scatter": "sum", "all_max": "max", "all_min": "min"}
    return found.get(op, "")


def fold(how: str, name: str, rows: Array) -> Array:
    """Reduce one row per rank, in rank order; half precision in float32.

    Examples
    --------
    >>> fold("sum", "float16", np.asarray([[2048.0], [1.0], [1.0]], np.float16)).tolist()
    [2050.0]
    """
    combine = _FOLDS[how]
    result: Array = _widened(rows[0], name)
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
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
        # Round to nearest, ties to even; a carry into the exponent is right, up to infinity.
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return np.where(np.isnan(wide), _BFLOAT16_NAN, nearest).astype(np.uint16)
    return wide


def native(mpi: Any, how: str, name: str) -> tuple[MPI.Datatype, MPI.Op] | None:
    """Return MPI's datatype and operation if they match numpy; else None.

    Integers are summed as unsigned: unsigned overflow wraps, C leaves signed overflow undefined.
    Integers of 8 and 16 bits are not left to MPI: Open MPI 5.0 sums them with saturation under AVX.
    Bools are passed as integers, because any byte except 0 is true: bitwise, 1 and 2 have no bit in
    common, and C lets a library assume that the bytes of `C_BOOL` are 0 and 1.
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


@dataclass(frozen=True)
class Header:
    """One call of an operation; ``seq`` counts per group or pair."""

    kind: str
    seq: int
    channel: int
    epoch: int = 1
    dtype: str = ""
    shape: tuple[int, ...] = ()
    count: int = 0
    root: int = 0

    def pack(self) -> bytes:
        """Return the bytes that must be equal on all ranks."""
        ndim = len(self.shape)
        dims = self.shape[:_MAX_DIMS] + (0,) * (_MAX_DIMS - ndim)
        beyond = zlib.crc32(repr(self.shape).encode()) if ndim > _MAX_DIMS else 0
        dtype = DTYPES.index(self.dtype) if self.dtype else len(DTYPES)
        return _LAYOUT.pack(
            _MAGIC, self.channel, self.epoch, self.seq, self.count,
            beyond, KINDS.index(self.kind), dtype, ndim, self.root, 0, *dims,
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Decode the header of another rank.

        Raises `ValueError`: the bytes are not a header.
        """
        magic, channel, epoch, seq, count, _, kind, dtype, ndim, root, _, *dims = _LAYOUT.unpack(
            data
        )
        is_known = kind < len(KINDS) and dtype <= len(DTYPES) and ndim <= _MOST_DIMS
        if magic != _MAGIC or not is_known:
            msg = "a rank sent something that is no header"
            raise ValueError(msg)
        shape = tuple(dims[:ndim]) + (0,) * (ndim - _MAX_DIMS)
        name = DTYPES[dtype] if dtype < len(DTYPES) else ""
        return cls(KINDS[kind], seq, channel, epoch, name, shape, count, root)

    def __str__(self) -> str:
        """Format the header for error texts.

        Examples
        --------
        >>> print(Header("all_sum", 12, 0, dtype="float32", shape=(4096,), count=4096))
        all_sum #12 (float32, shape (4096,))
        """
        text = f"{self.kind} #{self.seq}"
        if not self.dtype:
            return text
        dims = ", ".join(map(str, self.shape[:_MAX_DIMS]))
        ndim = len(self.shape)
        dims += ", ..." if ndim > _MAX_DIMS else "," if ndim == 1 else ""
        root = f", root {self.root}" if self.kind == "broadcast" else ""
        return f"{text} ({self.dtype}, shape ({dims}){root})"


def describe_mismatch(members: Sequence[int], headers: Sequence[bytes]) -> str:
    """Describe the first mismatch with the first header; "" if none.

    ``members`` are the world ranks, in the order of ``headers``.

    Examples
    --------
    >>> one = Header("barrier", 1, 0).pack()
    >>> two = Header("all_sum", 1, 0, dtype="int8", shape=(2, 3), count=6).pack()
    >>> describe_mismatch([4, 5, 7], [one, one, two])
    'rank 7: all_sum #1 (int8, shape (2, 3)) met rank 4: barrier #1'
    """
    first = headers[0]
    for member, header in zip(members, headers, strict=True):
        if header == first:
            continue
        mine, other = Header.unpack(header), Header.unpack(first)
        text = f"rank {member}: {mine} met rank {members[0]}: {other}"
        return text + ("; they are of different groups" if mine.channel != other.channel else "")
    return ""
