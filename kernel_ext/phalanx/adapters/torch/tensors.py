"""View tensors as arrays, and compute what the engine does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ReduceOp

from phalanx.errors import NotSupported

# numpy's names of the dtypes that the engine computes with; numpy has no bfloat16.
_NUMBERS = {
    torch.bool: "|b1",
    torch.int8: "|i1",
    torch.int16: "=i2",
    torch.int32: "=i4",
    torch.int64: "=i8",
    torch.uint8: "|u1",
    torch.uint16: "=u2",
    torch.uint32: "=u4",
    torch.uint64: "=u8",
    torch.float16: "=f2",
    torch.bfloat16: "=u2",
    torch.float32: "=f4",
    torch.float64: "=f8",
    torch.complex64: "=c8",
    torch.complex128: "=c16",
}
# Operations of the engine. AVG is a sum and a division.
_ENGINE = (
    (ReduceOp.SUM, "all_sum"),
    (ReduceOp.AVG, "all_sum"),
    (ReduceOp.MAX, "all_max"),
    (ReduceOp.MIN, "all_min"),
)
# Other operations: gather the arrays of all ranks and reduce them here, in the order of the ranks.
_GATHERED = (
    (ReduceOp.PRODUCT, torch.mul),
    (ReduceOp.BAND, torch.bitwise_and),
    (ReduceOp.BOR, torch.bitwise_or),
    (ReduceOp.BXOR, torch.bitwise_xor),
)


class Array(NamedTuple):
    """Memory of a tensor, and the engine's name of its dtype."""

    array: NDArray[Any]
    dtype: str = ""


def check(op: str, tensor: Tensor) -> Tensor:
    """Return a tensor without graph, in memory that the CPU can read.

    Raises `NotSupported`: the tensor is on another device, sparse, or of a subclass without memory
    of its own.
    """
    if hasattr(tensor, "trigger_wait"):  # the result of a functional collective
        tensor = tensor.trigger_wait()
    if tensor.device.type != "cpu":
        msg = (
            f"{op}: the tensor is on {tensor.device}; the backend 'phalanx' takes tensors in "
            "memory of the CPU: pass tensor.cpu(), or use torch's own backend of this device"
        )
        raise NotSupported(msg)
    if tensor.layout is not torch.strided:
        msg = f"{op}: a tensor of layout {tensor.layout} is not supported; pass tensor.to_dense()"
        raise NotSupported(msg)
    return tensor.detach()


def is_row(tensor: Tensor) -> bool:
    """Whether the engine can read and write the tensor where it is."""
    return bool(tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()))


def as_row(tensor: Tensor) -> Tensor:
    """Return the elements in one dimension, copied if there are gaps."""
    if is_row(tensor):
        return tensor.view(-1)
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1)


def row_for(output: Tensor) -> Tensor:
    """Return the output as a row, or a row without gaps."""
    return as_row(output) if is_row(output) else torch.empty(output.numel(), dtype=output.dtype)


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one row, copied if they are apart."""
    whole = joined(tensors)
    return torch.cat([as_row(tensor) for tensor in tensors]) if whole is None else whole


def view(op: str, row: Tensor, *, is_sum: bool = False) -> Array:
    """View a row for the engine.

    Operations that compute nothing take every dtype, as bytes if need be.

    Raises `NotSupported`: ``is_sum``, and the engine cannot compute with the dtype.
    """
    kind = _NUMBERS.get(row.dtype)
    if kind is not None:
        dtype = "bfloat16" if row.dtype is torch.bfloat16 else ""
        return Array(_array(row, row.numel(), kind), dtype)
    if is_sum:
        msg = f"{op}: {row.dtype} is not supported; convert it first"
        raise NotSupported(msg)
    return Array(_array(row, row.nbytes, "|u1"))


class _Memory:
    """Memory of a tensor as numpy reads it.

    `Tensor.numpy` would forbid torch for ever to resize the memory, which FSDP does.
    """

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, row: Tensor, count: int, kind: str) -> None:
        self._owner = row
        self.__array_interface__ = {
            "data": (row.data_ptr(), False),
            "shape": (count,),
            "typestr": kind,
            "version": 3,
        }


def _array(row: Tensor, count: int, kind: str) -> NDArray[Any]:
    return np.asarray(_Memory(row, count, kind)) if count else np.empty(0, kind)


def reduction(op: str, reduce_op: Any) -> str | None:
    """Return the engine's operation for a reduction; None: gather and reduce.

    Raises `NotSupported`: it is a reduction that only torch's NCCL has.
    """
    for known, name in _ENGINE:
        if reduce_op == known:
            return name
    if any(reduce_op == known for known, _ in _GATHERED):
        return None
    msg = f"{op}: this reduction is not supported; SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR, BXOR are"
    raise NotSupported(msg)


def reduce_rows(rows: Tensor, out: Tensor, reduce_op: Any) -> None:
    """Reduce the rows of all ranks into ``out``."""
    function = next(function for known, function in _GATHERED if reduce_op == known)
    total = rows[0].clone()
    for row in rows[1:]:
        total = function(total, row)
    out.copy_(total)


def average(out: Tensor, size: int) -> None:
    """Divide a sum by the number of ranks, integers toward zero."""
    if out.is_floating_point() or out.is_complex():
        out.div_(size)
    else:
        out.copy_(torch.div(out, size, rounding_mode="trunc"))


def joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return adjacent tensors as one row; None if they are apart."""
    first = tensors[0]
    if not all(is_row(tensor) and tensor.dtype is first.dtype for tensor in tensors):
        return None
    address = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address:
            return None
        address += tensor.nbytes
    storage = first.untyped_storage()
    if any(tensor.untyped_storage().data_ptr() != storage.data_ptr() for tensor in tensors):
        return None
    count = sum(tensor.numel() for tensor in tensors)
    return first.as_strided((count,), (1,), first.storage_offset())


def overlap(x: Tensor, y: Tensor) -> bool:
    """Whether two rows have memory in common."""
    return bool(np.may_share_memory(view("", x).array, view("", y).array))


def copy_reduced(rows: Tensor, tensor: Tensor, reduce_op: Any) -> None:
    """Reduce the rows of all ranks into a tensor of any layout."""
    out = torch.empty(tensor.numel(), dtype=tensor.dtype)
    reduce_rows(rows, out, reduce_op)
    tensor.copy_(out.view(tensor.shape))


def take_extreme(rows: Tensor, out: Tensor, name: str) -> None:
    """Take the largest or smallest of the rows of all ranks."""
    out.copy_(rows.amax(0) if name == "all_max" else rows.amin(0))


def check_sizes(op: str, is_right: bool, output: Tensor, tensor: Tensor, size: int) -> None:
    """Check sizes and dtypes of input and output.

    Raises `ValueError`, `TypeError`: they do not fit.
    """
    if output.dtype is not tensor.dtype:
        msg = f"{op}: output tensor must have the same type as input tensor: {output.dtype} is not {tensor.dtype}"
        raise TypeError(msg)
    if not is_right:
        msg = (
            f"{op}: output has {output.numel()} elements and input {tensor.numel()}; one must be "
            f"{size} times the other"
        )
        raise ValueError(msg)


def counts_of(op: str, tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return the number of elements for each rank; splits count rows."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size:
            msg = f"{op}: Tensor's dim 0 ({rows}) does not divide equally across group size {size}"
            raise ValueError(msg)
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        msg = f"{op}: Split sizes {list(splits)} doesn't match total dim 0 size {rows}"
        raise ValueError(msg)
    each = tensor.numel() // rows if rows else 0
    return [count * each for count in splits]
