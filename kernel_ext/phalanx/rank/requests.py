"""Perform the workspace's tasks in a rank, and answer its calls.

Neither binds a name of ours, and no name that a user has bound is in their way.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec
from IPython.display import display

from phalanx.distributed.bench import limits_of_ranks, measure_links, sizes_between, sweep
from phalanx.distributed.bootstrap.init import init
from phalanx.errors import DistributedError
from phalanx.protocol import (
    LIMITS_MIME,
    LINKS_DONE_MIME,
    LINKS_MIME,
    MEASUREMENT_MIME,
    BindValues,
    CopyNames,
    Evaluate,
    GiveNames,
    GiveValue,
    PublishSweep,
    RankCall,
    RankTask,
)

from .debugging.debugger import POST_MORTEM, DebuggerState, ErrorOfCell
from .output.error_text import name_of
from .values.copying import copy_names
from .values.pickling import pack_values, unpack_values


class WorkspaceRequests:
    """Perform tasks, answer calls, and keep the values to fetch."""

    def __init__(self, shell: Any, rank: int) -> None:
        self._shell = shell
        self._rank = rank
        self._error: ErrorOfCell | None = None
        self._last_cell = ""  # the cell that has a value to give
        self._values: dict[str, Any] = {}  # of a task, until a client fetches them

    def forget_value(self, cell: str) -> None:
        """Drop the value of the last cell: another one begins."""
        self._last_cell, self._values = cell, {}

    def perform(self, said: Any) -> None:
        task = msgspec.convert(said, RankTask, str_keys=True)
        if isinstance(task, CopyNames):
            names, hidden = self._shell.user_ns, self._shell.user_ns_hidden
            self._values = {"": copy_names(names, hidden, task.source, task.ranks, self._rank)}
        elif isinstance(task, Evaluate):
            self._values = self._evaluate(task.expressions)
        elif isinstance(task, PublishSweep):
            _publish_sweep(task)
        else:
            _publish_links()

    def answer(self, said: Any, buffers: Any) -> list[memoryview]:
        call = msgspec.convert(said, RankCall)
        most = call.max_nbytes if isinstance(call, GiveValue) else None
        return pack_values(self._values_for(call, buffers), most)

    def _values_for(self, call: RankCall, buffers: Any) -> dict[str, Any]:
        if isinstance(call, BindValues):
            self._shell.user_ns.update(unpack_values(buffers, "on the rank"))
            return {}
        if isinstance(call, GiveNames):
            return self._evaluate(call.names)
        if isinstance(call, GiveValue):
            if call.cell != self._last_cell:  # this process is new, or has run other cells since
                msg = "the value is gone: something else has run since"
                raise DistributedError(msg)
            values, self._values = self._values, {}
            return values or {"": self._shell.last_execution_result.result}
        return {"": self._error}

    def _evaluate(self, expressions: tuple[str, ...]) -> dict[str, Any]:
        names = self._shell.user_ns
        return {each: eval(each, names) for each in expressions}  # noqa: S307 - the user's own

    def keep_error(
        self, cell: str, code: str, reply: dict[str, Any], before: DebuggerState
    ) -> None:
        """Record which cell the error belongs to that a debugger would show."""
        if code.strip() == POST_MORTEM:  # the debugged error stays the last error
            before.restore_error()
        elif before.has_other_error():
            last = getattr(sys, "last_type", None)
            kind = "" if last is None else name_of(last)
            found = str(reply.get("ename", kind)), str(reply.get("evalue", ""))
            self._error = ErrorOfCell(cell, *found, cell)
        elif self._error is not None:
            self._error = self._error._replace(last_cell=cell)


_TELL_S = 0.25  # the widget's refresh interval


def _publish_sweep(task: PublishSweep) -> None:
    """Sweep with all ranks; rank 0 publishes each measurement."""
    is_first = init().rank() == 0
    sizes = sizes_between(task.begin, task.end, task.factor)
    # Bad options fail here, before the limits are measured.
    measurements = sweep(task.op, sizes, dtype=task.dtype, iterations=task.iterations)
    if task.with_limits:
        limits = limits_of_ranks()
        if is_first:
            display({LIMITS_MIME: msgspec.to_builtins(limits)}, raw=True)
    for measurement in measurements:
        if is_first:
            display({MEASUREMENT_MIME: msgspec.to_builtins(measurement)}, raw=True)


def _publish_links() -> None:
    """Measure all links between ranks; rank 0 publishes progress and result."""
    is_first = init().rank() == 0
    tell_at_s = time.monotonic() + _TELL_S

    def tell(n_done: int) -> None:
        nonlocal tell_at_s
        if time.monotonic() >= tell_at_s:
            display({LINKS_DONE_MIME: {"n_done": n_done}}, raw=True)
            tell_at_s = time.monotonic() + _TELL_S

    found = measure_links(progress=tell if is_first else None)
    if is_first:
        display({LINKS_MIME: msgspec.to_builtins(found)}, raw=True)
