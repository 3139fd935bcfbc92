"""Handles of operations, as torch has them: `Work` and its future."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch
from torch import distributed as dist

from phalanx.distributed.group.work import EngineWork


def is_in_backward() -> bool:
    """Whether the autograd engine runs a backward pass on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def raise_after_pass(error: BaseException) -> None:
    """Raise an error at the end of this backward pass.

    That is after the callbacks that torch adds for DDP when the last gradient is there.
    """
    _queue(lambda: _queue(partial(_throw, error)))


def _queue(callback: Callable[[], Any]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _throw(error: BaseException) -> None:
    raise error


class TorchWork(dist.Work):  # type: ignore[misc]  # torch.distributed is not typed here
    """Operation of a process group; several threads may wait for it.

    Parameters
    ----------
    outputs : sequence of Tensor
        The tensors that are written; the value of the future.
    parts : sequence of EngineWork
        Operations that still run.
    finish : callable
        What remains to be done when the parts are complete, once.
    fail : callable
        Reports an error; returns the error to raise.
    source : int
        The rank that sent, of a message.
    error : BaseException
        The error of an operation that could not be started.
    """

    def __init__(
        self,
        outputs: Sequence[Any],
        parts: Sequence[EngineWork] = (),
        finish: Callable[[], None] | None = None,
        fail: Callable[[BaseException], Any] | None = None,
        source: int = -1,
        error: BaseException | None = None,
    ) -> None:
        super().__init__()
        self._outputs = list(outputs)
        self._parts = list(parts)
        self._finish = finish
        self._fail = fail
        self._source = source
        self._lock = threading.Lock()
        self._is_over = not parts
        self._error = error
        self._future: _Future | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation is complete; raise its error."""
        limit = timeout.total_seconds() if timeout else 0
        self._complete(limit if limit > 0 else None)
        return True

    def synchronize(self) -> None:
        """Wait until the operation is complete."""
        self.wait()

    block_current_stream = synchronize  # the CPU's tensors have no streams

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._is_over or all(part.done for part in self._parts)

    def is_success(self) -> bool:
        """Whether the operation has ended without an error."""
        if not self._is_over and self.is_completed():
            try:
                self._complete(None)
            except Exception:  # noqa: BLE001  # kept as `exception`
                return False
        return self._is_over and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of the operation."""
        return self._error

    def result(self) -> list[Any]:
        """Return the tensors that were written."""
        return self._outputs

    def source_rank(self) -> int:
        """Return the rank that sent a message."""
        return self._source

    _source_rank = source_rank  # torch calls both

    def get_future(self) -> Any:
        """Return a future with the tensors that are written.

        In a backward pass the future has the tensors also after a failure, and the error is raised
        at the end of the pass. So a signal ends the wait, the error is of its own class, and DDP's
        module can be used again. C++ code that waits for a future, as DDP's, has none of these.
        """
        with self._lock:
            future = self._future
            if future is None:
                future = self._future = _Future(self, is_in_backward())
        if is_in_backward():
            _queue(self._end_in_pass)
        if self._is_over:
            future.settle(self._outputs, self._error)
        else:
            _Watcher.watch(self)
        return future

    def _end_in_pass(self) -> None:
        try:
            self._complete(None)
        except BaseException as error:  # noqa: BLE001  # raised below
            assert self._future is not None
            self._future.settle(self._outputs, error)
            raise_after_pass(error)

    def _complete(self, limit: float | None) -> None:
        if not self._is_over:
            self._run_parts(limit)
        if self._future is not None:
            self._future.settle(self._outputs, self._error)
        if self._error is not None:
            raise self._error

    def _run_parts(self, limit: float | None) -> None:
        error: Exception | None = None
        try:
            for part in self._parts:
                part.wait(limit)
        except Exception as caught:
            if not all(part.done for part in self._parts):  # only this wait has ended
                raise
            error = caught if self._fail is None else self._fail(caught)
        except BaseException as caught:  # of a signal; the next wait raises what it has ended
            if self._fail is not None and not all(part.done for part in self._parts):
                self._fail(caught)
            raise
        with self._lock:
            if self._is_over:
                return
            if error is None and self._finish is not None:
                self._finish()
            self._error = error
            self._parts, self._finish = [], None
            self._is_over = True


class _Future(torch.futures.Future[list[Any]]):
    """Future of a work, with an interruptible `wait` for Python code."""

    def __init__(self, work: TorchWork, is_in_pass: bool) -> None:
        super().__init__()
        self._work = work
        self._is_in_pass = is_in_pass
        self._lock = threading.Lock()
        self._is_set = False

    def wait(self) -> Any:
        """Wait for the work; return its tensors."""
        self._work.wait()
        return super().wait()

    def settle(self, outputs: list[Any], error: BaseException | None) -> None:
        """Set the result, once."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
        if error is None or self._is_in_pass:
            self.set_result(outputs)
        else:
            self.set_exception(error)  # type: ignore[arg-type]  # annotated as the result


class _Watcher:
    """Thread that waits for the works with futures, in order."""

    lock = threading.Lock()
    works: ClassVar[deque[TorchWork]] = deque()
    is_running = False

    @classmethod
    def watch(cls, work: TorchWork) -> None:
        with cls.lock:
            cls.works.append(work)
            if cls.is_running:
                return
            cls.is_running = True
        threading.Thread(target=cls._run, name="phalanx-torch-futures", daemon=True).start()

    @classmethod
    def _run(cls) -> None:
        while True:
            with cls.lock:
                if not cls.works:
                    cls.is_running = False
                    return
                work = cls.works.popleft()
            with suppress(Exception):  # the future has it
                work.wait()
