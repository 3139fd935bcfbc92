"""The collectives on arrays: the public door to the engine's operations.

Arguments are checked here and nothing else happens here. The first lines of each function are the
short way for what programs mostly pass, a contiguous array of a supported dtype: every name
looked up there is paid for by small arrays.
"""

from __future__ import annotations

import operator
from typing import Any, TypeVar, cast

import numpy as np
from numpy import empty, ndarray
from numpy.typing import NDArray

from ._arrays import DTYPES, Kind, as_source, check_options, check_out, finish, spoil
from ._group import Group, seconds
from ._init import init
from ._supervised import world

__all__ = ["all_gather", "all_sum", "broadcast"]

_T = TypeVar("_T", bound="NDArray[Any] | np.generic | float")


def _group(group: object) -> Group:
    if not isinstance(group, Group):
        msg = f"group must be a phalanx.Group or None, not {type(group).__name__}"
        raise TypeError(msg)
    return group


def all_sum(
    x: _T,
    *,
    group: Group | None = None,
    out: NDArray[Any] | None = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> _T:
    """Sum ``x`` over all ranks; every rank gets the sum.

    Parameters
    ----------
    x : array of float32, float64 or int64, numpy scalar, float or int
        Same shape and dtype on every rank. Any layout; the result is in C order.
    group : Group, optional
        Ranks that take part; ``None`` is the group made by `init`.
    out : array, shape and dtype of x, optional
        Where the sum is put; may be ``x`` itself. After a failure it holds NaN (integers: their
        smallest number), unless it is ``x`` and was not touched yet.
    timeout : float, optional
        Seconds this call may take in all; ``None``: no limit.
    async_op : bool, optional
        Not in this release.
    stream : None, optional
        For MLX's signature.

    Returns
    -------
    array, shape and dtype of x
        The sum, the same bits on every rank; ``out`` if given. A scalar gives a scalar.
        In a group of one a copy of ``x``.

    Raises
    ------
    CollectiveMismatch
        A peer called another collective, shape or dtype (names both).
    RankFailure, CollectiveTimeout
        A rank was lost, or the time was up (names who was missing).
    NotSupported
        A dtype, subclass or option that this release does not have.

    Notes
    -----
    Integers wrap, as in numpy; a Python int so large that the sum could is refused instead.
    Between hosts a ring: 2 (size - 1) steps, ``2 x.nbytes (size - 1) / size`` bytes sent per rank.
    Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.all_sum(np.arange(3.0))
    array([0., 1., 2.])
    >>> px.all_sum(2)
    2
    """
    group = world() or init() if group is None else _group(group)
    array: Any = x  # the type checker does not narrow a type variable
    if not (
        type(array) is ndarray
        and out is None
        and timeout is None
        and not async_op
        and stream is None
        and array.dtype in DTYPES
        and array.flags.carray  # contiguous, aligned, and writeable, which is nearly all
    ):
        return cast("_T", _all_sum(x, group, out, timeout, async_op=async_op, stream=stream))
    result: Any = empty(array.shape, array.dtype)
    try:
        group._engine.all_sum(array, result)
    except BaseException:
        group._tell_failure()
        raise
    return result  # type: ignore[no-any-return]


def _all_sum(
    x: object,
    group: Group,
    out: NDArray[Any] | None,
    timeout: float | None,
    *,
    async_op: bool,
    stream: object,
) -> object:
    check_options("all_sum", async_op=async_op, stream=stream)
    source, kind = as_source("all_sum", x, addends=group.size())
    limit = seconds(timeout)
    result = _result("all_sum", out, source.shape, source)
    try:
        group._engine.all_sum(source, result, limit)
    except BaseException:
        _fail(group, source, out)
        raise
    return _returned(out, result, kind)


def all_gather(
    x: NDArray[Any] | np.generic | float,
    *,
    group: Group | None = None,
    out: NDArray[Any] | None = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> NDArray[Any]:
    """Put the arrays of all ranks one after the other, in the order of ranks.

    Parameters
    ----------
    x : array of float32, float64 or int64, numpy scalar, float or int
        Same shape and dtype on every rank. Any layout.
    group : Group, optional
        Ranks that take part; ``None`` is the group made by `init`.
    out : array, shape and dtype of the result, optional
        Where the result is put. It holds NaN (integers: their smallest number) after a failure.
    timeout : float, optional
        Seconds this call may take in all; ``None``: no limit.
    async_op : bool, optional
        Not in this release.
    stream : None, optional
        For MLX's signature.

    Returns
    -------
    array, shape (size * n, ...) for x of shape (n, ...), dtype of x
        Joined along the first axis; ``out`` if given. A scalar gives shape ``(size,)``, except in
        a group of one, which keeps the shape ``()`` as MLX does.

    Raises
    ------
    CollectiveMismatch
        A peer called another collective, shape or dtype (names both).
    RankFailure, CollectiveTimeout
        A rank was lost, or the time was up (names who was missing).
    NotSupported
        A dtype, subclass or option that this release does not have.

    Notes
    -----
    Between hosts a ring: size - 1 steps, ``x.nbytes (size - 1)`` bytes sent per rank.
    Source: Chan et al. 2007, doi:10.1002/cpe.1206.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.all_gather(np.ones((4, 2))).shape
    (4, 2)
    """
    group = world() or init() if group is None else _group(group)
    check_options("all_gather", async_op=async_op, stream=stream)
    source, _kind = as_source("all_gather", x)
    limit = seconds(timeout)
    size, shape = group.size(), source.shape
    if shape:
        shape = (size * shape[0], *shape[1:])
    elif size > 1:
        shape = (size,)
    result = _result("all_gather", out, shape, source)
    try:
        group._engine.all_gather(source, result, limit)
    except BaseException:
        _fail(group, source, out)
        raise
    return result


def broadcast(
    x: _T,
    root: int = 0,
    *,
    group: Group | None = None,
    out: NDArray[Any] | None = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> _T:
    """Give every rank the array of one rank.

    Parameters
    ----------
    x : array of float32, float64 or int64, numpy scalar, float or int
        Same shape and dtype on every rank; what it holds matters on ``root`` only.
    root : int, optional
        The rank whose array it is, the same on every rank.
    group : Group, optional
        Ranks that take part; ``None`` is the group made by `init`.
    out : array, shape and dtype of x, optional
        Where the result is put; may be ``x`` itself. After a failure it holds NaN (integers: their
        smallest number), unless it is ``x`` and was not touched yet.
    timeout : float, optional
        Seconds this call may take in all; ``None``: no limit.
    async_op : bool, optional
        Not in this release.
    stream : None, optional
        For MLX's signature.

    Returns
    -------
    array, shape and dtype of x
        What ``root`` gave; ``out`` if given. A scalar gives a scalar.

    Raises
    ------
    ValueError
        ``root`` is no rank of the group.
    CollectiveMismatch
        A peer called another collective, shape, dtype or root (names both).
    RankFailure, CollectiveTimeout
        A rank was lost, or the time was up (names who was missing).
    NotSupported
        A dtype, subclass or option that this release does not have.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.broadcast(np.arange(3), root=0)
    array([0, 1, 2])
    """
    group = world() or init() if group is None else _group(group)
    check_options("broadcast", async_op=async_op, stream=stream)
    root = operator.index(root)
    if not 0 <= root < group.size():
        msg = f"Invalid root={root} for a group of size {group.size()}"
        raise ValueError(msg)
    source, kind = as_source("broadcast", x)
    limit = seconds(timeout)
    result = _result("broadcast", out, source.shape, source)
    try:
        group._engine.broadcast(source, result, root, limit)
    except BaseException:
        _fail(group, source, out)
        raise
    return cast("_T", _returned(out, result, kind))


def _result(
    op: str, out: NDArray[Any] | None, shape: tuple[int, ...], source: NDArray[Any]
) -> NDArray[Any]:
    return empty(shape, source.dtype) if out is None else check_out(op, out, shape, source)


def _returned(out: NDArray[Any] | None, result: NDArray[Any], kind: Kind) -> object:
    return finish(result, kind) if out is None else out


def _fail(group: Group, source: NDArray[Any], out: NDArray[Any] | None) -> None:
    """After a failed operation: no valid-looking result, and the supervisor knows why."""
    # An array that is its own out is the engine's to spoil, which knows whether it was touched.
    if out is not None and not np.may_share_memory(out, source):
        spoil(out)
    group._tell_failure()
