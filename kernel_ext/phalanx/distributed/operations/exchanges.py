"""Collectives that move arrays: all_gather, all_to_all, broadcast; barrier and print0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ..group.group import Group
from ..group.work import Work
from .run_collective import Options, collective, group_or_world, root_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

_T = TypeVar("_T")


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
    root = root_of(root, group.size())
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
