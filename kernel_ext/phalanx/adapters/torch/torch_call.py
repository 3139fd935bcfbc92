"""Run the engine's operations of one call of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from phalanx.distributed.group.work import Engine, EngineWork
from phalanx.errors import DistributedError, NotSupported

from .tensors import is_row, overlap, row_for, view
from .work import TorchWork, is_in_backward, raise_after_pass

if TYPE_CHECKING:
    from .process_group import ProcessGroup


class TorchCall:
    """Call of torch: operations of the engine, then copies and divisions."""

    def __init__(self, owner: ProcessGroup, opts: Any, *, is_async: bool = True) -> None:
        self._owner = owner
        self._current = owner.group._current
        self._is_async = getattr(opts, "asyncOp", is_async)
        given = getattr(opts, "timeout", None)
        seconds = 0.0 if given is None else given.total_seconds()
        self._limit = seconds if seconds > 0 else owner.limit
        self._parts: list[EngineWork] = []
        self._later: list[Callable[[], Any]] = []
        self._error: BaseException | None = None

    def run(
        self, op: str, x: Tensor | None, out: Tensor | None, *, root: int = 0, is_sum: bool = False
    ) -> None:
        """Run or start an operation of the engine on two rows."""
        if self._error is not None:
            return
        current, engine = self._current, self._current.engine
        if x is None or out is None:
            source = target = None
            dtype = ""
        else:
            source, dtype = view(op, x, is_sum=is_sum)
            target = source if out is x else view(op, out, is_sum=is_sum).array
        try:
            arguments = (op, source, target, root, self._limit, dtype)
            if self._is_async:
                self._parts.append(_finish_pass(partial(engine.submit, *arguments), engine))
            else:
                _finish_pass(partial(engine.run, *arguments), engine)
        except DistributedError as error:
            reported = self._owner.report(current, error)
            if not (self._is_async and is_in_backward()):
                raise reported from None
            self._error = reported  # DDP raises it at the end of the pass, FSDP in `wait`
        except BaseException:
            current.tell_failure()
            raise

    def later(self, action: Callable[[], Any]) -> None:
        """Do this when the operations are complete."""
        self._later.append(action)

    def target(self, output: Tensor, *, apart_from: Tensor) -> Tensor:
        """Return a row for the result, in the output itself if possible."""
        row = row_for(output)
        return torch.empty_like(row) if overlap(row, apart_from) else row

    def give(self, row: Tensor, output: Tensor, *, is_copy: bool = False) -> None:
        """Copy a result to the output, if it is not there."""
        if is_copy or row.data_ptr() != output.data_ptr() or not is_row(output):
            self._later.append(lambda: output.copy_(row.view(output.shape)))

    def sum_sparse(self, tensor: Tensor, reduce_op: Any) -> None:
        """Replace a sparse tensor by the sum of all ranks' tensors.

        First the ranks exchange how many elements each has. Then every rank gets all elements.

        Raises `NotSupported`: another reduction than SUM and AVG, or another layout than COO.
        """
        if tensor.layout is not torch.sparse_coo or not any(
            reduce_op == known for known in (ReduceOp.SUM, ReduceOp.AVG)
        ):
            msg = (
                f"all_reduce: {reduce_op} of a tensor of layout {tensor.layout} is not supported; "
                "SUM and AVG of torch.sparse_coo are; pass tensor.to_dense()"
            )
            raise NotSupported(msg)
        size = self._owner.group.size()
        mine = tensor.detach().coalesce()
        counts = torch.empty(size, dtype=torch.int64)
        count = TorchCall(self._owner, None, is_async=False)
        count.run("all_gather", torch.tensor([mine._nnz()]), counts)
        most = int(counts.max())
        places = self._gather_padded(mine.indices().t(), most, size)
        values = self._gather_padded(mine.values(), most, size)

        def add_up() -> None:
            is_used = torch.arange(most) < counts[:, None]
            total = torch.sparse_coo_tensor(
                places[is_used].t(), values[is_used], mine.shape, check_invariants=False
            ).coalesce()
            tensor.copy_(total / size if reduce_op == ReduceOp.AVG else total)

        self.later(add_up)

    def _gather_padded(self, rows: Tensor, most: int, size: int) -> Tensor:
        """Start to gather ``most`` rows of each rank; missing rows are zero."""
        filled = rows.new_zeros((most, *rows.shape[1:]))
        filled[: len(rows)] = rows
        every = rows.new_empty((size, *filled.shape))
        self.run("all_gather", filled.view(-1), every.view(-1))
        return every

    def work(self, outputs: Sequence[Any]) -> TorchWork:
        """Return the handle; a call that is not asynchronous is complete."""
        if self._error is not None:
            return TorchWork(outputs, error=self._error)
        with_all = self._finish if self._later else None
        if not self._parts:
            self._finish()
            return TorchWork(outputs)
        work = TorchWork(outputs, self._parts, with_all, partial(self._owner.report, self._current))
        self._owner.note(work)
        return work

    def _finish(self) -> None:
        with torch.no_grad():
            for action in self._later:
                action()


def _finish_pass(run: Callable[[], Any], engine: Engine) -> Any:
    """Run an operation; delay a stop until the backward pass ends.

    A stop reaches all ranks before the same operation. If it ended the pass there, DDP and FSDP
    modules could not be used any more.
    """
    try:
        return run()
    except KeyboardInterrupt:
        if engine.failure is not None or not is_in_backward():
            raise
    raise_after_pass(KeyboardInterrupt())
    return run()
