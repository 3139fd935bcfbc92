"""Sum sparse tensors, such as the gradients of embeddings, over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from phalanx.errors import NotSupported

from .calls import Owner, TorchCall


def sum_sparse(call: TorchCall, owner: Owner, tensor: Tensor, reduce_op: Any) -> None:
    """Replace a sparse tensor by the sum of all ranks' tensors.

    First the ranks exchange how many elements each has. Then every rank gets all elements.

    Raises
    ------
    NotSupported
        Another reduction than SUM and AVG, or another layout than COO.
    """
    if tensor.layout is not torch.sparse_coo or not any(
        reduce_op == known for known in (ReduceOp.SUM, ReduceOp.AVG)
    ):
        msg = (
            f"all_reduce: {reduce_op} of a tensor of layout {tensor.layout} is not supported; SUM "
            "and AVG of torch.sparse_coo are; pass tensor.to_dense()"
        )
        raise NotSupported(msg)
    size = owner.group.size()
    mine = tensor.detach().coalesce()
    counts = torch.empty(size, dtype=torch.int64)
    TorchCall(owner, None, is_async=False).run("all_gather", torch.tensor([mine._nnz()]), counts)
    most = int(counts.max())
    places = _gather(call, mine.indices().t(), most, size)
    values = _gather(call, mine.values(), most, size)

    def add_up() -> None:
        is_used = torch.arange(most) < counts[:, None]
        total = torch.sparse_coo_tensor(
            places[is_used].t(), values[is_used], mine.shape, check_invariants=False
        ).coalesce()
        tensor.copy_(total / size if reduce_op == ReduceOp.AVG else total)

    call.later(add_up)


def _gather(call: TorchCall, rows: Tensor, most: int, size: int) -> Tensor:
    """Start to gather ``most`` rows of each rank; missing rows are zero."""
    filled = rows.new_zeros((most, *rows.shape[1:]))
    filled[: len(rows)] = rows
    every = rows.new_empty((size, *filled.shape))
    call.run("all_gather", filled.view(-1), every.view(-1))
    return every
