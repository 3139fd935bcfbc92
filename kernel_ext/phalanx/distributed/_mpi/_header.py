"""What one rank says it is about to do, as bytes and as words; ranks exchange it first.

The words are the native engine's (native/collectives/op.cpp).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ._elements import DTYPES

__all__ = ["HEADER_NBYTES", "KINDS", "Header", "describe_mismatch"]

# Their places in this tuple go over the wire: append only.
KINDS = (
    "barrier", "all_sum", "all_gather", "broadcast", "all_max", "all_min", "sum_scatter",
    "all_to_all", "send", "recv", "split",
)  # fmt: skip

_MAX_DIMS = 8  # that are sent
_MOST_DIMS = 64  # of an array: numpy's limit
_LAYOUT = struct.Struct(f"<8sQQQQIIIIiI{_MAX_DIMS}Q")
_MAGIC = b"phalmpi1"
HEADER_NBYTES = _LAYOUT.size


@dataclass(frozen=True)
class Header:
    """One call of an operation; ``seq`` counts those of the group, or of a pair of ranks."""

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
        """Read what another rank has packed.

        Raises
        ------
        ValueError
            It is no header.
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
        """Write it as in an error text.

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
    """Name the first rank that differs from the lowest, and what both called; "" if none does.

    Parameters
    ----------
    members : sequence of int
        The world ranks, in the order of ``headers``.
    headers : sequence of bytes
        What each has sent.

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
