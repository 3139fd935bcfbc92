"""Run the engine's operations of one call of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from phalanx.distributed import Engine, EngineWork, Group
from phalanx.errors import DistributedError

from .tensors import as_row, is_row, overlap, view
from .work import TorchWork, is_in_backward, raise_after_pass


class Owner(Protocol):
    """Interface of a process group for its calls."""

    group: Group
    limit: float

    def report(self, error: BaseException) -> BaseException:
        """Tell the other ranks of a failure; return the error to raise."""
        ...

    def note(self, work: TorchWork) -> None:
        """Take a work that runs."""
        ...


class TorchCall:
    """Call of torch: operations of the engine, then copies and divisions."""

    def __init__(self, owner: Owner, opts: Any, *, is_async: bool | None = None) -> None:
        self._owner = owner
        self._is_async = getattr(opts, "asyncOp", True) if is_async is None else is_async
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
        engine = self._owner.group._engine
        if x is None or out is None:
            source = target = None
            dtype = ""
        else:
            source, dtype = view(op, x, is_sum=is_sum)
            target = source if out is x else view(op, out, is_sum=is_sum).array
        try:
            if self._is_async:
                run = partial(engine.submit, op, source, target, root, self._limit, dtype)  # type: ignore[arg-type]
                self._parts.append(_finish_pass(run, engine))
            elif op == "barrier":
                engine.barrier(self._limit)
            else:
                end = (root,) if op == "broadcast" else ()
                run = partial(getattr(engine, op), source, target, *end, self._limit, dtype)
                _finish_pass(run, engine)
        except DistributedError as error:
            reported = self._owner.report(error)
            if not (self._is_async and is_in_backward()):
                raise reported from None
            self._error = reported  # DDP raises it at the end of the pass, FSDP in `wait`
        except BaseException:
            self._owner.group._tell_failure()
            raise

    def later(self, action: Callable[[], Any]) -> None:
        """Do this when the operations are complete."""
        self._later.append(action)

    def target(self, output: Tensor, *, apart_from: Tensor) -> Tensor:
        """Return a row for the result, in the output itself if possible."""
        if is_row(output) and not overlap(row := as_row(output), apart_from):
            return row
        return torch.empty(output.numel(), dtype=output.dtype)

    def give(self, row: Tensor, output: Tensor, *, is_copy: bool = False) -> None:
        """Copy a result to the output, if it is not there."""
        if is_copy or row.data_ptr() != output.data_ptr() or not is_row(output):
            self._later.append(lambda: output.copy_(row.view(output.shape)))

    def work(self, outputs: Sequence[Any]) -> TorchWork:
        """Return the handle; a call that is not asynchronous is complete."""
        if self._error is not None:
            return TorchWork(outputs, error=self._error)
        with_all = self._finish if self._later else None
        if not self._parts:
            self._finish()
            return TorchWork(outputs)
        work = TorchWork(outputs, self._parts, with_all, self._owner.report)
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
