"""Send and receive arrays between two ranks.

Both ranks name each other, the shape and the dtype. Arguments are checked before any byte moves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from ..arrays.arguments import as_source, check_stream, like_dtype, target_of
from ..arrays.frameworks import ResultMemory, is_mlx, is_mlx_dtype, on_stream, with_gradient
from ..control import call_seconds
from ..group.group import Group
from ..group.registry import Membership
from ..world_spec import WorldSpec
from .run_collective import group_or_world, rank_number, try_fast_path

_T = TypeVar("_T")


def send(
    x: _T,
    dst: int,
    *,
    group: Group | None = None,
    timeout: float | None = None,
    stream: object = None,
) -> _T:
    """Send ``x`` to a rank that calls `recv` or `recv_like`.

    Parameters
    ----------
    x : array or number
        Kinds and dtypes as for `all_sum`. Do not change ``x`` until the call returns.
    dst : int
        The rank that receives.
    group : Group, optional
        Group that ``dst`` is a rank of; ``None`` is the group made by `init`.
    timeout : float, optional
        Seconds this call may take in all; ``None``: the limit of `Group.timeout`.
    stream : optional
        For MLX arrays, as for `all_sum`.

    Returns
    -------
    array or number
        ``x`` itself, which may be changed again: its bytes were sent or copied.

    Raises
    ------
    ValueError
        ``dst`` is not another rank of the group, or ``x`` is not an array.
    CollectiveMismatch
        The other rank expects another shape or dtype (names both).
    RankFailure, CollectiveTimeout
        The other rank was lost, or the time was up.
    NotSupported
        As for `all_sum`; the derivative of the result, which would ignore the other rank.
    TypeError, OverflowError
        ``dst`` or ``group`` has the wrong type; ``x`` is a Python int that int64 cannot hold.

    Notes
    -----
    Arrays between two ranks arrive in the order in which they were sent. Up to 64 KiB the sender
    does not wait for the receiver, so two ranks that both send first do not deadlock.

    Cost for n = ``x.nbytes``: on one host a copy into a queue of 64 KiB in shared memory and a copy
    out of the queue; for large arrays both copies run at the same time. Between hosts ``n`` bytes
    and a header over a socket used by this pair only. One step, in one direction: the sender waits
    for no reply.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.send(np.ones(3), 1)
    Traceback (most recent call last):
    ...
    ValueError: Cannot send to a singleton group
    """
    current = group_or_world(group)._current
    if stream is None:
        sent = try_fast_path("send", current, x, None, dst, timeout)
        if sent is not NotImplemented:
            return cast("_T", sent)
    dst = _other(current.spec, dst, "Cannot send to a singleton group", "destination")
    check_stream("send", x, stream)
    limit = call_seconds(timeout)

    def move(y: _T) -> _T:
        source = as_source("send", y)
        try:
            current.engine.run("send", source.array, None, dst, limit, source.dtype)
        except BaseException:
            current.tell_failure()
            raise
        return y

    with on_stream(stream):
        if not is_mlx(x):
            return move(x)
        return cast("_T", with_gradient("send", x, move, lambda _op, y: y, current.spec.rank))


def recv(
    shape: Sequence[int],
    dtype: Any,
    src: int,
    *,
    group: Group | None = None,
    timeout: float | None = None,
    stream: object = None,
) -> Any:
    """Receive an array from another rank.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array that is sent.
    dtype : dtype of numpy, torch or MLX, or its name
        Dtype of the array that is sent; its library decides the kind of the result.
    src : int
        The rank that sends.
    group, timeout, stream : optional
        As for `send`; ``stream`` only with an MLX dtype.

    Returns
    -------
    array of this shape and dtype
        The array that was sent.

    Raises
    ------
    ValueError
        ``src`` is not another rank of the group, or a length is negative.
    TypeError
        ``src``, ``shape``, ``dtype`` (also None) or ``group`` has the wrong type.
    DistributedError
        As for `send`.

    Notes
    -----
    Cost is that of `send`, plus the memory of the result.

    Examples
    --------
    >>> import phalanx as px
    >>> px.recv((3,), "float32", 1)
    Traceback (most recent call last):
    ...
    ValueError: Cannot recv from a singleton group
    """
    current = group_or_world(group)._current
    src = _other(current.spec, src, "Cannot recv from a singleton group", "source")
    lengths = _lengths(shape)
    if any(length < 0 for length in lengths):
        msg = f"recv: shape {lengths} has a negative length"
        raise ValueError(msg)
    if not is_mlx_dtype(dtype):
        check_stream("recv", dtype, stream)
    like, name = like_dtype("recv", dtype)
    return _recv(current, src, partial(like, lengths), name, timeout, stream)


def recv_like(
    x: _T,
    src: int,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    stream: object = None,
) -> _T:
    """Receive an array with the shape and dtype of ``x``.

    Parameters
    ----------
    x : array or number
        Kinds and dtypes as for `all_sum`. Its values are ignored, and ``x`` is not written unless
        it is ``out``.
    src : int
        The rank that sends.
    group : Group, optional
        As for `send`.
    out : array, optional
        Array that receives the data, with the shape and dtype of ``x``; it may be ``x``. If the
        call fails after a part has arrived, ``out`` holds what `all_sum` leaves after a failure.
    timeout, stream : optional
        As for `send`.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        The array that was sent; ``out`` if given.

    Raises
    ------
    ValueError
        ``src`` is not another rank of the group, ``x`` is not an array, or ``out`` does not fit.
    DistributedError, TypeError, OverflowError
        As for `send`.

    Notes
    -----
    Cost is that of `send`, plus the memory of the result if no ``out`` is given: receiving a large
    array into a reused ``out`` takes half the time.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.recv_like(np.ones(3), 1)
    Traceback (most recent call last):
    ...
    ValueError: Cannot recv from a singleton group
    """
    current = group_or_world(group)._current
    if stream is None:
        result = try_fast_path("recv", current, x, out, src, timeout)
        if result is not NotImplemented:
            return cast("_T", result)
    src = _other(current.spec, src, "Cannot recv from a singleton group", "source")
    check_stream("recv_like", x, stream)
    source = as_source("recv_like", x)
    shape = source.array.shape
    if out is None:
        room = partial(source.like, shape)
    else:
        room = partial(target_of, "recv_like", out, shape, source)
    return cast("_T", _recv(current, src, room, source.dtype, timeout, stream))


def _lengths(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(length) for length in shape)
    except TypeError:
        msg = f"recv: a shape is written like (3, 4), {shape!r} is none"
        raise TypeError(msg) from None


def _other(spec: WorldSpec, peer: int, alone: str, role: str) -> int:
    peer, size = rank_number(role, peer), spec.size
    if size == 1:
        raise ValueError(alone)
    if not 0 <= peer < size:
        msg = f"Invalid {role}={peer} for a group of size {size}"
        raise ValueError(msg)
    if peer == spec.rank:
        msg = f"Invalid {role}={peer}: that is this rank itself, which needs no message"
        raise ValueError(msg)
    return peer


def _recv(
    current: Membership,
    src: int,
    room: Callable[[], ResultMemory],
    dtype: str,
    timeout: float | None,
    stream: object,
) -> Any:
    limit = call_seconds(timeout)
    with on_stream(stream):
        target = room()
        try:
            current.engine.run("recv", None, target.array, src, limit, dtype)
        except BaseException:
            current.tell_failure()
            raise
        return target.give()
