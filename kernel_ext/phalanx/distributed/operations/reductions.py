"""Collectives that compute: all_sum, all_max, all_min and sum_scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ..group.group import Group
from ..group.work import Work
from .run_collective import Options, collective

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
