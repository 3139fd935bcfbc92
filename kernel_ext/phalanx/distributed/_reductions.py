"""The collectives that compute: sums, largest and smallest over all ranks.

Each function is its name, its signature and what it means; how it is carried out is `_run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._group import Group
from ._run import Options, collective
from ._work import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["all_max", "all_min", "all_sum", "sum_scatter"]

_T = TypeVar("_T")


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
        float32, float64, complex64 or complex128. An array of numpy, torch, MLX, jax or anything
        else with ``__dlpack__``, in memory of the CPU, in any layout; or a number of Python or
        numpy, which is int64, float64, complex128 or bool where it is Python's. It must stay as it
        is until the operation is over: where another thread writes to it meanwhile the result is
        anything, or an error on all ranks.
    group : Group, optional
        Ranks that take part; ``None`` is the group made by `init`.
    out : array, shape and dtype of the result, optional
        Where the result is put, an array of numpy or a tensor; it may be ``x`` itself. After a
        failure it holds NaN (integers: their smallest number, unsigned ones the largest; bool:
        True), unless it is ``x`` and was not touched yet.
    timeout : float, optional
        Seconds the operation may take in all; ``None``: as `Group.timeout` says.
    async_op : bool, optional
        Return a `Work` at once, whose ``wait`` gives the result. Operations of a group are carried
        out in the order in which they were started.
    stream : optional
        For arrays of MLX: the stream or device that their values are computed on.

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
        inside a transformation (`jax.jit`, `mx.vmap`, `mx.compile`), where it has no values.
    ValueError, TypeError
        ``x`` is no array (a list is none), or ``out`` does not fit it; ``timeout`` is no number.
    OverflowError
        A Python int so large that int64 might not hold the sum.

    Notes
    -----
    bool sums as logical or; integers of arrays wrap, as in numpy; float16 and bfloat16 are summed
    in float32 and rounded once.
    With ``backend="mpi"`` the library of MPI may add float32, float64 and complex numbers in another
    order than the ring does, so that the last bits differ; all its ranks get the same ones.
    `mx.grad` knows this function as it knows MLX's own: the gradient passes through as it is.

    Cost, of n = ``x.nbytes``, p ranks on a host and m hosts (over tcp each rank is one). Sizes are
    those that ship (``phalanx bench --tune``); `Group.describe` says which way is taken:

    - inline, on a host up to 16 KiB: 1 step, in which every rank reads ``(p - 1) n`` bytes;
    - staged, on a host: a step for each 256 KiB, ``(5 - 2/p) n`` bytes read and written per rank.
      Source: Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1, in shared memory;
    - mesh, between hosts up to 96 KiB / (m - 1): 1 step, ``(m - 1) n`` bytes sent per host;
    - direct, between three hosts or more of one rank each, up to 2 MiB: 2 steps,
      ``2 n (m - 1) / m`` bytes sent per rank. Source: Thakur, Rabenseifner and Gropp 2005,
      doi:10.1177/1094342005051521;
    - ring, between hosts: ``2 (m - 1)`` steps, ``2 n (m - 1) / m`` bytes sent per host.
      Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002;
    - several ranks on each of several hosts: one of the first two, mesh or ring between the hosts'
      first ranks, and a copy of n bytes from these to the others.

    Where partial sums travel (the last two) those of float16 and bfloat16 travel as float32, which
    is twice the bytes.

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
    """Take the largest of each element over all ranks; every rank gets it.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; kinds and dtypes as for `all_sum`. It must stay as it is
        until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        The largest, as `numpy.maximum` has it: NaN where any rank has NaN; complex numbers by
        their real part, then the imaginary. ``out`` if given.

    Raises
    ------
    DistributedError, ValueError, TypeError, OverflowError
        As for `all_sum`.

    Notes
    -----
    Cost and sources are those of `all_sum`; halves travel as they are.

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
    """Take the smallest of each element over all ranks; every rank gets it.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; kinds and dtypes as for `all_sum`. It must stay as it is
        until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        The smallest, as `numpy.minimum` has it (see `all_max`); ``out`` if given.

    Raises
    ------
    DistributedError, ValueError, TypeError, OverflowError
        As for `all_sum`.

    Notes
    -----
    Cost and sources are those of `all_sum`; halves travel as they are.

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
        dtypes as for `all_sum`. It must stay as it is until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`; ``out`` may not share memory with ``x``.

    Returns
    -------
    array of the kind of x, shape (n // size, ...), dtype of x
        Rows ``rank * n // size`` up to ``(rank + 1) * n // size`` of the sum; ``out`` if given.

    Raises
    ------
    ValueError
        The first axis cannot be divided by the number of ranks, or as for `all_sum`.
    DistributedError, TypeError
        As for `all_sum`.

    Notes
    -----
    Cost, in the words of `all_sum`:

    - inline: 1 step, in which every rank reads ``(p - 1) n / p`` bytes;
    - staged: a step for each 256 KiB, ``3 n`` bytes read and written per rank;
    - mesh: 1 step, ``(m - 1) n`` bytes sent per host;
    - ring: m - 1 steps, ``n (m - 1) / m`` bytes sent per host. Source: the first half of
      Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002;
    - several ranks on each of several hosts: as `all_sum` to each host's first rank, mesh or ring
      between those, which then hand out the shares.

    The order of the sum is not that of `all_sum`, so the last bits may differ.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.sum_scatter(np.ones((4, 2))).shape
    (4, 2)
    """
    return collective("sum_scatter", x, group, out, timeout, async_op, stream)
