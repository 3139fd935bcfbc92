"""Define tasks: functions of ours that the workspace calls in a rank.

`Workspace.push`, `pull` and sweeps send a task as `Workspace.apply` sends the user's function: packed in an
``apply_request``. The reply has the values. A task returns named values that are packed (`pack_values`). None
binds a name of ours, and no name that a user has bound is in their way.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from phalanx.distributed.bench import limits_of_ranks, measure_links, sweep
from phalanx.distributed.bootstrap.init import init
from phalanx.errors import DistributedError
from phalanx.protocol import LIMITS_MIME, LINKS_DONE_MIME, LINKS_MIME, MEASUREMENT_MIME

from .debugging.debugger import POST_MORTEM, DebuggerState, ErrorOfCell
from .output.error_text import name_of
from .values.copying import copy_names
from .values.pickling import pack_values, unpack_values

Values = list[memoryview]  # packed, by name


def pack_task(
    task: Callable[..., Values], *args: object, buffers: Sequence[Any] = (), **named: object
) -> list[Any]:
    """Pack a call of a task, which gets ``buffers`` after ``args``."""
    return [pickle.dumps((task, args, named)), *buffers]


def call_task(buffers: Sequence[Any]) -> Values:
    """Call the task that `pack_task` has packed; return its packed values."""
    call, *more = buffers
    task, args, named = pickle.loads(call)  # noqa: S301 - as in `load_value`
    values: Values = task(*args, *more, **named)
    return values


def bind_values(*buffers: Any) -> Values:
    """Bind the packed values by their names: all or none."""
    _shell().user_ns.update(unpack_values(buffers, "on the rank"))
    return pack_values({})


def evaluate(expressions: Sequence[str]) -> Values:
    """Return the values of expressions in the cells' namespace."""
    names = _shell().user_ns
    return pack_values({each: eval(each, names) for each in expressions})  # noqa: S307 - the user's own


def copy_variables(source: int, ranks: Sequence[int]) -> Values:
    """Copy the variables of rank ``source`` to ``ranks``, which all call this.

    The value is a `CopyReport`.
    """
    shell = _shell()
    names, hidden = shell.user_ns, shell.user_ns_hidden
    return pack_values({"": copy_names(names, hidden, source, ranks, shell.kernel.rank)})


def value_of_cell(cell: str, max_nbytes: int) -> Values:
    """Return the value of the last expression of the last cell."""
    shell = _shell()
    if cell != shell.kernel.past.cell:  # this process is new, or has run other cells since
        msg = "the value is gone: something else has run since"
        raise DistributedError(msg)
    return pack_values({"": shell.last_execution_result.result}, max_nbytes)


def last_error() -> Values:
    """Return the `ErrorOfCell` that a debugger would find; None: no error."""
    return pack_values({"": _shell().kernel.past.error})


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


class PastCells:
    """The last cell, and the error that a debugger would show."""

    def __init__(self) -> None:
        self.cell = ""  # the last one that has a value to give
        self.error: ErrorOfCell | None = None

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
            self.error = ErrorOfCell(cell, *found, cell)
        elif self.error is not None:
            self.error = self.error._replace(last_cell=cell)


_TELL_S = 0.25  # the widget's refresh interval


def publish_sweep(
    op: str, sizes: Sequence[int], dtype: str, iterations: int, *, with_limits: bool
) -> Values:
    """Measure an operation over sizes in bytes; rank 0 publishes each measurement.

    ``with_limits``: publish the machine's limits first.
    """
    is_first = init().rank() == 0
    # Bad options fail here, before the limits are measured.
    measurements = sweep(op, sizes, dtype=dtype, iterations=iterations)
    if with_limits:
        limits = limits_of_ranks()
        if is_first:
            _publish(LIMITS_MIME, limits)
    for measurement in measurements:
        if is_first:
            _publish(MEASUREMENT_MIME, measurement)
    return pack_values({})


def publish_links() -> Values:
    """Measure all links between ranks; rank 0 publishes progress and result."""
    is_first = init().rank() == 0
    tell_at_s = time.monotonic() + _TELL_S

    def tell(n_done: int) -> None:
        nonlocal tell_at_s
        if time.monotonic() >= tell_at_s:
            _publish(LINKS_DONE_MIME, {"n_done": n_done})
            tell_at_s = time.monotonic() + _TELL_S

    found = measure_links(progress=tell if is_first else None)
    if is_first:
        _publish(LINKS_MIME, found)
    return pack_values({})


def _publish(kind: str, found: object) -> None:
    from IPython.display import display

    display({kind: msgspec.to_builtins(found)}, raw=True)
