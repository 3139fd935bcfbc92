"""Define the public collectives of `phalanx.distributed`.

All arguments are checked before any byte moves. The native or the MPI engine moves the bytes.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

from numpy import may_share_memory
from numpy.typing import NDArray

from phalanx._native import fast_path

from ..arrays.checks import as_source, check_stream, invalidate_output, target_of
from ..arrays.frameworks import ResultMemory, is_mlx, on_stream, with_gradient
from ..bootstrap.init import init
from ..bootstrap.supervised import world
from ..control import call_seconds
from ..group.engine import Engine, Work
from ..group.group import Group

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SAME_SHAPE = frozenset(("all_sum", "all_max", "all_min", "broadcast"))
_SUMS = frozenset(("all_sum", "sum_scatter"))
# For `phalanx.nn`: as ``out`` of a submitted sum, it overwrites its array of MLX. Only for an array
# that nobody else reads: other arrays may share its memory, and MLX's never change.
IN_PLACE: Any = object()
_T = TypeVar("_T")


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


def root_of(root: object, group: Group) -> int:
    """Check and convert the root rank of a broadcast.

    Raises
    ------
    ValueError, TypeError
        ``root`` is not a rank of the group; ``root`` is not an integer.
    """
    number = rank_number("root", root)
    if not 0 <= number < group.size():
        msg = f"Invalid root={number} for a group of size {group.size()}"
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
        group = world() or init()
    else:
        group_or_world(group)
    if stream is None and not async_op:
        engine = group._engine
        try:
            result = fast_path(op, engine, x, out, root, timeout, "")
        except BaseException:
            group._tell_failure()  # the engine has invalidated `out` if the operation had begun
            raise
        if result is not NotImplemented:
            return result
    return _slow_path(op, x, group, out, timeout, async_op, stream, root)


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
    if (out is not None and out is not IN_PLACE) or not is_mlx(x):
        return _checked(op, group, out, timeout, async_op, root, x)

    def move(op: str, y: Any) -> Any:
        return collective(op, y, group, None, timeout, False, stream, root)

    with on_stream(stream):
        if not async_op:
            call = partial(_checked, op, group, None, timeout, False, root)
            return with_gradient(op, x, call, move, group.rank())
        work = _checked(op, group, out, timeout, True, root, x)
    return work._then(lambda result: with_gradient(op, x, lambda _: result, move, group.rank()))


def _checked(
    op: str, group: Group, out: Any, timeout: float | None, async_op: bool, root: int, x: Any
) -> Any:
    """Check the arguments, then run or start the collective."""
    size = group.size()
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
    engine = group._engine
    failed = (group, engine, array, target.array, dtype, out is not None)
    try:
        if async_op:
            work = engine.submit(op, array, target.array, root, limit, dtype)
            return Work(work, target.give, partial(_fail, *failed), (array, target.array))
        if fast_path(op, engine, array, target.array, root, limit, dtype) is NotImplemented:
            if op == "broadcast":
                engine.broadcast(array, target.array, root, limit, dtype)
            else:
                getattr(engine, op)(array, target.array, limit, dtype)
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
    group: Group,
    engine: Engine,
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
        if is_callers and not engine.is_closed and not may_share_memory(target, source):
            invalidate_output(target, dtype)
    finally:
        group._tell_failure()


@overload
def all_sum(x: _T, *, async_op: Literal[False] = False, **options: Unpack[Options]) -> _T: ...
@overload
def all_sum(x: _T, *, async_op: Literal[True], **options: Unpack[Options]) -> Work[_T]: ...
def all_sum(
    x: Any,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> Any:
    """Sum ``x`` over all ranks; every rank gets the sum.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank: bool, int8 to int64, uint8 to uint64, float16, bfloat16,
        float32, float64, complex64 or complex128. An array of numpy, torch, MLX or any other
        library with ``__dlpack__``, in CPU memory, in any layout; or a Python or numpy number.
        Python numbers are taken as int64, float64, complex128 or bool. Do not change ``x`` until
        the operation is over. If another thread writes to ``x`` meanwhile, the result is undefined,
        or all ranks raise an error.
    group : Group, optional
        Ranks that take part; ``None`` is the group made by `init`.
    out : array, shape and dtype of the result, optional
        Array that receives the result, of numpy or a tensor; it may be ``x`` itself. After a
        failure ``out`` holds NaN (signed integers: the smallest value, unsigned integers: the
        largest; bool: True), unless ``out`` is ``x`` and was not written yet.
    timeout : float, optional
        Seconds the operation may take in all; ``None``: the limit of `Group.timeout`.
    async_op : bool, optional
        Return a `Work` at once; ``Work.wait`` returns the result. The operations of a group run
        in the order in which they were started.
    stream : optional
        For MLX arrays: the stream or device that computes their values.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        The sum, the same bits on every rank; ``out`` if given. In a group of one a copy of ``x``.

    Raises
    ------
    CollectiveMismatch
        A peer called another collective, shape or dtype (names both).
    RankFailure, CollectiveTimeout
        A rank was lost, or the time was up (names who was missing).
    NotSupported
        A dtype, device or subclass that cannot be sent, a tensor that requires grad, or an array
        inside a transformation (`jax.jit`, `mx.vmap`, `mx.compile`), where the array has no values.
    ValueError, TypeError
        ``x`` is not an array (nor is a list), or ``out`` does not fit; ``timeout`` is not a number.
    OverflowError
        A Python int so large that int64 might not hold the sum.

    Notes
    -----
    bool sums as logical or. Integer arrays wrap, as in numpy. float16 and bfloat16 are summed in
    float32 and rounded once.
    The ranks of a host are added in rank order. Sums of hosts are added in the order of the hosts,
    by the ring for part c of m parts in the order c, c + 1, ..., c - 1.
    With ``backend="mpi"`` the MPI library may add float32, float64 and complex numbers in another
    order than the ring does, so the last bits may differ; all ranks get the same bits.
    `mx.grad` treats this function like MLX's own: the gradient passes through unchanged.

    Cost for n = ``x.nbytes``, p ranks on a host and m hosts (over tcp each rank counts as a host).
    `Group.describe` names the algorithm that is used:

    - inline, on a host up to 16 KiB: 1 step; every rank reads ``(p - 1) n`` bytes;
    - staged, on a host: a step for each 256 KiB, ``(5 - 2/p) n`` bytes read and written per rank.
      Source: Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1, in shared memory;
    - mesh, between hosts up to 96 KiB / (m - 1): 1 step, ``(m - 1) n`` bytes sent per host;
    - direct, between three hosts or more of one rank each, up to 2 MiB: 2 steps,
      ``2 n (m - 1) / m`` bytes sent per rank. Source: Thakur, Rabenseifner and Gropp 2005,
      doi:10.1177/1094342005051521;
    - ring, between hosts: ``2 (m - 1)`` steps, ``2 n (m - 1) / m`` bytes sent per host.
      Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002;
    - several ranks on each of several hosts: inline or staged on each host, mesh or ring between
      the first ranks of the hosts, and a copy of n bytes from the first rank to the others.

    Algorithms that send partial sums (the last two) send float16 and bfloat16 as float32, which
    doubles the bytes.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.all_sum(np.arange(3.0))
    array([0., 1., 2.])
    >>> px.all_sum(2)
    2
    """
    return collective("all_sum", x, group, out, timeout, async_op, stream)


@overload
def all_max(x: _T, *, async_op: Literal[False] = False, **options: Unpack[Options]) -> _T: ...
@overload
def all_max(x: _T, *, async_op: Literal[True], **options: Unpack[Options]) -> Work[_T]: ...
def all_max(
    x: Any,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> Any:
    """Compute the elementwise maximum over all ranks; every rank gets the result.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; kinds and dtypes as for `all_sum`. Do not change ``x``
        until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        The maximum, as `numpy.maximum` defines it: NaN if any rank has NaN; complex numbers compare
        by real part, then by imaginary part. ``out`` if given.

    Raises
    ------
    DistributedError, ValueError, TypeError, OverflowError
        As for `all_sum`.

    Notes
    -----
    Cost and sources are those of `all_sum`; float16 and bfloat16 are sent as they are.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.all_max(np.array([1, 5, 3]))
    array([1, 5, 3])
    """
    return collective("all_max", x, group, out, timeout, async_op, stream)


@overload
def all_min(x: _T, *, async_op: Literal[False] = False, **options: Unpack[Options]) -> _T: ...
@overload
def all_min(x: _T, *, async_op: Literal[True], **options: Unpack[Options]) -> Work[_T]: ...
def all_min(
    x: Any,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> Any:
    """Compute the elementwise minimum over all ranks; every rank gets the result.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; kinds and dtypes as for `all_sum`. Do not change ``x``
        until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        The minimum, as `numpy.minimum` defines it (see `all_max`); ``out`` if given.

    Raises
    ------
    DistributedError, ValueError, TypeError, OverflowError
        As for `all_sum`.

    Notes
    -----
    Cost and sources are those of `all_sum`; float16 and bfloat16 are sent as they are.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.all_min(np.array([1, 5, 3]))
    array([1, 5, 3])
    """
    return collective("all_min", x, group, out, timeout, async_op, stream)


@overload
def sum_scatter(x: _T, *, async_op: Literal[False] = False, **options: Unpack[Options]) -> _T: ...
@overload
def sum_scatter(x: _T, *, async_op: Literal[True], **options: Unpack[Options]) -> Work[_T]: ...
def sum_scatter(
    x: Any,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> Any:
    """Sum ``x`` over all ranks and return this rank's share.

    Parameters
    ----------
    x : array, shape (n, ...)
        Same shape and dtype on every rank, ``n`` divisible by the number of ranks; kinds and
        dtypes as for `all_sum`. Do not change ``x`` until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`; ``out`` may not share memory with ``x``.

    Returns
    -------
    array of the kind of x, shape (n // size, ...), dtype of x
        Rows ``rank * n // size`` up to ``(rank + 1) * n // size`` of the sum; ``out`` if given.

    Raises
    ------
    ValueError
        The first axis is not divisible by the number of ranks, or as for `all_sum`.
    DistributedError, TypeError
        As for `all_sum`.

    Notes
    -----
    Cost, in the terms of `all_sum`:

    - inline: 1 step; every rank reads ``(p - 1) n / p`` bytes;
    - staged: a step for each 256 KiB, ``3 n`` bytes read and written per rank;
    - mesh: 1 step, ``(m - 1) n`` bytes sent per host;
    - ring: m - 1 steps, ``n (m - 1) / m`` bytes sent per host. Source: the first half of
      Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002;
    - several ranks on each of several hosts: `all_sum` to the first rank of each host, mesh or ring
      between the first ranks, and a copy of the shares to the other ranks.

    The order of summation differs from that of `all_sum`, so the last bits may differ.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.sum_scatter(np.ones((4, 2))).shape
    (4, 2)
    """
    return collective("sum_scatter", x, group, out, timeout, async_op, stream)


@overload
def all_gather(x: Any, *, async_op: Literal[False] = False, **options: Unpack[Options]) -> Any: ...
@overload
def all_gather(x: Any, *, async_op: Literal[True], **options: Unpack[Options]) -> Work[Any]: ...
def all_gather(
    x: Any,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> Any:
    """Concatenate the arrays of all ranks in rank order.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; kinds and dtypes as for `all_sum`. Do not change ``x``
        until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`; ``out`` may not share memory with ``x``.

    Returns
    -------
    array of the kind of x, shape (size * n, ...) for x of shape (n, ...), dtype of x
        Concatenated along the first axis; ``out`` if given. A number gives a numpy array of shape
        ``(size,)``, except in a group of one, which keeps the shape ``()`` as MLX does.

    Raises
    ------
    DistributedError, ValueError, TypeError, OverflowError
        As for `all_sum`.

    Notes
    -----
    `mx.grad` gives each rank its own part of the gradient.

    Cost, in the terms of `all_sum` (n is the size of one rank's array):

    - inline: 1 step; every rank reads ``(p - 1) n`` bytes;
    - staged: a step for each 256 KiB of n, ``2 (p + 1) n`` bytes read and written per rank;
    - mesh, between hosts of one rank each: 1 step, ``(m - 1) n`` bytes sent per rank;
    - ring: m - 1 steps, ``(size - k) n`` bytes sent by a host, where k is the number of ranks of
      the next host. Source: Chan et al. 2007, doi:10.1002/cpe.1206;
    - several ranks on each of several hosts: inline or staged on each host, the ring, and a copy of
      ``size n`` bytes to all ranks except the first rank of each host.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.all_gather(np.ones((4, 2))).shape
    (4, 2)
    """
    return collective("all_gather", x, group, out, timeout, async_op, stream)


@overload
def all_to_all(x: _T, *, async_op: Literal[False] = False, **options: Unpack[Options]) -> _T: ...
@overload
def all_to_all(x: _T, *, async_op: Literal[True], **options: Unpack[Options]) -> Work[_T]: ...
def all_to_all(
    x: Any,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> Any:
    """Send one block of ``x`` to each rank and receive one back.

    Parameters
    ----------
    x : array, shape (n, ...)
        Same shape and dtype on every rank, ``n`` divisible by the number of ranks; kinds and
        dtypes as for `all_sum`. The first axis is divided into one block per rank; block i goes to
        rank i. Do not change ``x`` until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`; ``out`` may not be ``x``, although the shapes agree.

    Returns
    -------
    array of the kind, shape and dtype of x
        Block i came from rank i; ``out`` if given.

    Raises
    ------
    ValueError
        The first axis is not divisible by the number of ranks, or as for `all_sum`.
    DistributedError, TypeError
        As for `all_sum`.

    Notes
    -----
    Cost, in the terms of `all_sum`:

    - inline: 1 step; every rank reads its block of every other rank's array, n bytes in all;
    - staged: a step for each 256 KiB, ``4 n`` bytes read and written per rank;
    - pairwise, between hosts of one rank each: 1 step, all pairs at once, ``n (m - 1) / m`` bytes
      sent per rank. Source: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521;
    - several ranks on each of several hosts: gather at the first rank of each host (inline or
      staged, as `all_gather`), pairwise between the first ranks, then distribute; in blocks of a
      few MiB.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.all_to_all(np.arange(4))
    array([0, 1, 2, 3])
    """
    return collective("all_to_all", x, group, out, timeout, async_op, stream)


@overload
def broadcast(
    x: _T, root: int = 0, *, async_op: Literal[False] = False, **options: Unpack[Options]
) -> _T: ...
@overload
def broadcast(
    x: _T, root: int = 0, *, async_op: Literal[True], **options: Unpack[Options]
) -> Work[_T]: ...
def broadcast(
    x: Any,
    root: int = 0,
    *,
    group: Group | None = None,
    out: Any = None,
    timeout: float | None = None,
    async_op: bool = False,
    stream: object = None,
) -> Any:
    """Copy the array of one rank to every rank.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; only the values on ``root`` matter. Kinds and dtypes
        as for `all_sum`. Do not change ``x`` until the operation is over.
    root : int, optional
        The rank that sends its array, the same on every rank.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        The array of ``root``; ``out`` if given.

    Raises
    ------
    ValueError
        ``root`` is not a rank of the group, or as for `all_sum`.
    DistributedError, TypeError, OverflowError
        As for `all_sum`; ranks that pass different roots raise `CollectiveMismatch`.

    Notes
    -----
    Cost, in the terms of `all_sum`:

    - inline: 1 step; every rank reads n bytes;
    - staged: a step for each 256 KiB, ``2 n`` bytes read and written per rank;
    - mesh, between hosts of one rank each, up to 1 KiB / (m - 1): 1 step; every host sends n
      bytes to all others;
    - chain, between hosts: every host except the last sends n bytes, each byte as soon as it has
      arrived; the last host gets them m - 1 hops after the first. Source: Pjesivac-Grbovic et al.
      2007, doi:10.1007/s10586-007-0012-0 (pipeline);
    - several ranks on each of several hosts: inline or staged on the root's host, the chain, and
      staged on the other hosts.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.broadcast(np.arange(3), root=0)
    array([0, 1, 2])
    """
    group = group_or_world(group)
    root = root_of(root, group)
    return collective("broadcast", x, group, out, timeout, async_op, stream, root)


def barrier(*, group: Group | None = None, timeout: float | None = None) -> None:
    """Wait until every rank of the group has called ``barrier``.

    Parameters
    ----------
    group : Group, optional
        Ranks that take part; ``None`` is the group made by `init`.
    timeout : float, optional
        Seconds this call may take; ``None``: as `Group.timeout` says.

    Raises
    ------
    CollectiveTimeout
        The time was up (names who was missing).
    RankFailure, CollectiveMismatch
        A rank was lost, or called another operation (names both).
    TypeError, ValueError
        ``group`` is not a group; ``timeout`` is not a number.

    Notes
    -----
    Cost: 1 step, as `Group.barrier`.

    Examples
    --------
    >>> import phalanx as px
    >>> px.barrier(timeout=5.0)
    """
    group_or_world(group).barrier(timeout)


def print0(*values: Any, group: Group | None = None, **options: Any) -> None:
    """Print on rank 0; the other ranks print nothing.

    Parameters
    ----------
    *values : object
        What to print.
    group : Group, optional
        Rank 0 of this group prints; ``None``: of the group of all ranks.
    **options : object
        As for `print`: ``sep``, ``end``, ``file``, ``flush``.

    See Also
    --------
    barrier : waits for all ranks.

    Notes
    -----
    Cost: no communication, and no rank waits for another.

    Examples
    --------
    >>> import phalanx as px
    >>> px.print0("loss", 0.5, sep="=")
    loss=0.5
    """
    if group_or_world(group).rank() == 0:
        print(*values, **options)  # noqa: T201
