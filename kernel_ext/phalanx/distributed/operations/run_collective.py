"""Check the arguments of a collective and run it.

All arguments are checked before any byte moves.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, TypedDict

from numpy import may_share_memory
from numpy.typing import NDArray

from phalanx._native import fast_path

from ..arrays.arguments import as_source, check_stream, invalidate_output, target_of
from ..arrays.frameworks import ResultMemory, is_mlx, on_stream, with_gradient
from ..bootstrap.init import init
from ..bootstrap.supervised import PROCESS, world
from ..control import call_seconds
from ..group.group import Group
from ..group.registry import Membership
from ..group.work import Work

_SAME_SHAPE = frozenset(("all_sum", "all_max", "all_min", "broadcast"))
_SUMS = frozenset(("all_sum", "sum_scatter"))
# For `phalanx.nn`: as ``out`` of a submitted sum, it overwrites its array of MLX. Only for an array
# that nobody else reads: other arrays may share its memory, and MLX's never change.
IN_PLACE: Any = object()


class Options(TypedDict, total=False):
    """Options that type checkers accept for a collective, besides ``async_op``."""

    group: Group | None
    out: Any
    timeout: float | None
    stream: object


def group_or_world(group: object) -> Group:
    """Return ``group``, or the group made by `init` if ``group`` is None."""
    if group is None:
        return world() or init()
    if not isinstance(group, Group):
        msg = f"group must be a phalanx.Group or None, not {type(group).__name__}"
        raise TypeError(msg)
    return group


def rank_number(role: str, rank: object) -> int:
    """Convert a rank to ``int``; numpy integers are accepted."""
    try:
        return operator.index(rank)  # type: ignore[arg-type]
    except TypeError:
        msg = f"Invalid {role}={rank!r}; it must be the number of a rank"
        raise TypeError(msg) from None


def root_of(root: object, size: int) -> int:
    """Check and convert the root rank of a broadcast.

    Raises `ValueError`, `TypeError`: ``root`` is not a rank of the group; ``root`` is not an
    integer.
    """
    number = rank_number("root", root)
    if not 0 <= number < size:
        msg = f"Invalid root={number} for a group of size {size}"
        raise ValueError(msg)
    return number


def collective(
    op: str,
    x: Any,
    group: Group | None,
    out: Any,
    timeout: float | None,
    async_op: bool,
    stream: object,
    root: int = 0,
) -> Any:
    """Run a collective, or start it.

    Most programs pass numpy arrays. The first lines are a fast path for those arrays. Each name
    looked up on the fast path costs measurable time for small arrays. The native engine returns
    ``NotImplemented`` for arguments that the fast path does not support; those take the slow path.
    """
    if group is None:
        group = PROCESS.group or init()
    else:
        group_or_world(group)
    if stream is None and not async_op:
        current = group._current
        try:
            result = fast_path(op, current.engine, x, out, root, timeout, "")
        except BaseException:
            current.tell_failure()  # the engine has invalidated `out` if the operation had begun
            raise
        if result is not NotImplemented:
            return result
    return _slow_path(op, x, group, out, timeout, async_op, stream, root)


def try_fast_path(
    op: str, current: Membership, x: Any, out: Any, rank: int, timeout: float | None
) -> Any:
    """Run an operation on the engine's fast path; report a failure."""
    try:
        return fast_path(op, current.engine, x, out, rank, timeout, "")
    except BaseException:
        current.tell_failure()
        raise


def _slow_path(
    op: str,
    x: Any,
    group: Group,
    out: Any,
    timeout: float | None,
    async_op: bool,
    stream: object,
    root: int,
) -> Any:
    if stream is not None:
        check_stream(op, x, stream)
    current = group._current
    if (out is not None and out is not IN_PLACE) or not is_mlx(x):
        return run_checked(op, current, out, timeout, async_op, root, x)

    def move(op: str, y: Any) -> Any:
        return collective(op, y, group, None, timeout, False, stream, root)

    with on_stream(stream):
        if not async_op:
            call = partial(run_checked, op, current, None, timeout, False, root)
            return with_gradient(op, x, call, move, current.spec.rank)
        work = run_checked(op, current, out, timeout, True, root, x)
    me = current.spec.rank
    return work._then(lambda result: with_gradient(op, x, lambda _: result, move, me))


def run_checked(
    op: str, current: Membership, out: Any, timeout: float | None, async_op: bool, root: int, x: Any
) -> Any:
    """Check the arguments, then run or start the collective."""
    size, engine = current.spec.size, current.engine
    source = as_source(op, x, addends=size if op in _SUMS else 1)
    limit = None if timeout is None else call_seconds(timeout)
    array, dtype = source.array, source.dtype
    shape = _shape(op, array.shape, size)
    # The memory of an array with gaps or repeats is not in order: `array` is a copy then.
    if out is None or (out is IN_PLACE and array.flags.owndata):
        target = source.like(shape)
    elif out is IN_PLACE:
        target = ResultMemory(array, x)
    else:
        target = target_of(op, out, shape, source)
    failed = (current, array, target.array, dtype, out is not None)
    try:
        if async_op:
            work = engine.submit(op, array, target.array, root, limit, dtype)
            return Work(work, target.give, partial(_fail, *failed), (array, target.array))
        if fast_path(op, engine, array, target.array, root, limit, dtype) is NotImplemented:
            engine.run(op, array, target.array, root, limit, dtype)
    except BaseException:
        _fail(*failed)
        raise
    return target.give()


def _shape(op: str, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the result's shape; a group of one keeps the shape."""
    if size == 1 or op in _SAME_SHAPE:
        return shape
    if op == "all_gather":
        return (size * shape[0], *shape[1:]) if shape else (size,)
    if not shape or shape[0] % size:
        msg = (
            f"[{op}] Invalid shape=({','.join(map(str, shape))}) for a group of size {size}. "
            "The first dimension (axis 0) must be divisible by the group size and input must "
            "have at least one."
        )
        raise ValueError(msg)
    return (shape[0] // size, *shape[1:]) if op == "sum_scatter" else shape


def _fail(
    current: Membership,
    source: NDArray[Any],
    target: NDArray[Any],
    dtype: str,
    is_callers: bool,
) -> None:
    """Invalidate the output of a failed operation and report the failure."""
    # If `out` is `x`, the engine invalidates the array, because only the engine knows whether the
    # array was written. A closed engine's outputs are left alone: no operation began, or the
    # epoch is over, and another operation may use the array before a late `wait` sees the failure.
    try:
        if is_callers and not current.engine.is_closed and not may_share_memory(target, source):
            invalidate_output(target, dtype)
    finally:
        current.tell_failure()
