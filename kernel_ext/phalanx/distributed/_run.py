"""One operation from its arguments to its result: what all public functions have in common.

They hand over what their caller gave. Everything is checked here before any byte moves.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, TypedDict

from numpy import may_share_memory
from numpy.typing import NDArray

from phalanx._native import short_way

from ._arrays import as_source, check_stream, spoil, target_of
from ._deadline import call_seconds
from ._engine import Engine
from ._frameworks import is_mlx, on_stream
from ._gradients import with_gradient
from ._group import Group
from ._init import init
from ._supervised import world
from ._work import Work

__all__ = ["Options", "collective", "group_or_world", "rank_number"]


class Options(TypedDict, total=False):
    """What type checkers let a collective take, beside ``async_op``."""

    group: Group | None
    out: Any
    timeout: float | None
    stream: object


def group_or_world(group: object) -> Group:
    """Return the group that was asked for, the one of `init` if none was."""
    if group is None:
        return world() or init()
    if not isinstance(group, Group):
        msg = f"group must be a phalanx.Group or None, not {type(group).__name__}"
        raise TypeError(msg)
    return group


def rank_number(role: str, rank: object) -> int:
    """Take a number of a rank, numpy's too."""
    try:
        return operator.index(rank)  # type: ignore[arg-type]
    except TypeError:
        msg = f"Invalid {role}={rank!r}; it must be the number of a rank"
        raise TypeError(msg) from None


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
    """Carry out a collective, or start it.

    The first lines are the short way for what programs mostly pass, arrays of numpy: every name
    looked up there is paid for by small arrays. The native engine takes what is plainly right, and
    leaves alone all that is not, which goes the long way.
    """
    if group is None:
        group = world() or init()
    else:
        group_or_world(group)
    if stream is None and not async_op:
        engine = group._engine
        try:
            result = short_way(op, engine, x, out, root, timeout, "")
        except BaseException:
            group._tell_failure()  # what is in `out` the engine has spoilt, where it was begun
            raise
        if result is not NotImplemented:
            return result
    return _by_the_long_way(op, x, group, out, timeout, async_op, stream, root)


def _by_the_long_way(
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
    if out is not None or not is_mlx(x):
        return _checked(op, group, out, timeout, async_op, root, x)

    def move(op: str, y: Any) -> Any:
        return collective(op, y, group, None, timeout, False, stream, root)

    with on_stream(stream):
        if not async_op:
            call = partial(_checked, op, group, None, timeout, False, root)
            return with_gradient(op, x, call, move, group.rank())
        work = _checked(op, group, None, timeout, True, root, x)
    return work._then(lambda result: with_gradient(op, x, lambda _: result, move, group.rank()))


def _checked(
    op: str, group: Group, out: Any, timeout: float | None, async_op: bool, root: int, x: Any
) -> Any:
    """Carry out a collective on whatever came; only what fits goes to the engine."""
    size = group.size()
    source = as_source(op, x, addends=size if op in _SUMS else 1)
    limit = None if timeout is None else call_seconds(timeout)
    array, dtype = source.array, source.dtype
    shape = _shape(op, array.shape, size)
    target = source.like(shape) if out is None else target_of(op, out, shape, source)
    engine = group._engine
    failed = (group, engine, array, target.array, dtype, out is not None)
    try:
        if async_op:
            work = engine.submit(op, array, target.array, root, limit, dtype)
            return Work(work, target.give, partial(_fail, *failed), (array, target.array))
        if short_way(op, engine, array, target.array, root, limit, dtype) is NotImplemented:
            if op == "broadcast":
                engine.broadcast(array, target.array, root, limit, dtype)
            else:
                getattr(engine, op)(array, target.array, limit, dtype)
    except BaseException:
        _fail(*failed)
        raise
    return target.give()


_SAME_SHAPE = frozenset(("all_sum", "all_max", "all_min", "broadcast"))
_SUMS = frozenset(("all_sum", "sum_scatter"))


def _shape(op: str, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the shape of the result; a group of one gives back what came."""
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
    group: Group,
    engine: Engine,
    source: NDArray[Any],
    target: NDArray[Any],
    dtype: str,
    is_callers: bool,
) -> None:
    """After a failed operation: no valid-looking result, and the supervisor knows why."""
    # An array that is its own out is the engine's to spoil, which knows whether it was touched. So
    # is any of a closed engine: nothing was begun there, or its epoch is over, and what a late
    # `wait` hears of is an array that another operation may have been given since.
    try:
        if is_callers and not engine.is_closed and not may_share_memory(target, source):
            spoil(target, dtype)
    finally:
        group._tell_failure()
