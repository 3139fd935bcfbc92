"""The collectives that only move arrays between all ranks.

Each function is its name, its signature and what it means; how it is carried out is `_run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._group import Group
from ._run import Options, collective, group_or_world, rank_number
from ._work import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["all_gather", "all_to_all", "broadcast"]

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
    """Put the arrays of all ranks one after the other, in the order of ranks.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; kinds and dtypes as for `all_sum`. It must stay as it is
        until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`; ``out`` may not share memory with ``x``.

    Returns
    -------
    array of the kind of x, shape (size * n, ...) for x of shape (n, ...), dtype of x
        Joined along the first axis; ``out`` if given. A number gives an array of numpy of shape
        ``(size,)``, except in a group of one, which keeps the shape ``()`` as MLX does.

    Raises
    ------
    DistributedError, ValueError, TypeError, OverflowError
        As for `all_sum`.

    Notes
    -----
    `mx.grad` passes each rank its own part of the gradient.

    Cost, in the words of `all_sum` (n is what one rank gives):

    - inline: 1 step, in which every rank reads ``(p - 1) n`` bytes;
    - staged: a step for each 256 KiB of n, ``2 (p + 1) n`` bytes read and written per rank;
    - mesh, between hosts of one rank each: 1 step, ``(m - 1) n`` bytes sent per rank;
    - ring: m - 1 steps, ``(size - k) n`` bytes sent by a host, k being the ranks of the next one.
      Source: Chan et al. 2007, doi:10.1002/cpe.1206;
    - several ranks on each of several hosts: one of the first two, the ring, and a copy of
      ``size n`` bytes to all ranks but each host's first.

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
    """Give every rank its block of ``x``, and get one from each.

    Parameters
    ----------
    x : array, shape (n, ...)
        Same shape and dtype on every rank, ``n`` divisible by the number of ranks; kinds and
        dtypes as for `all_sum`. The first axis is divided into as many blocks as there are ranks;
        block i goes to rank i. It must stay as it is until the operation is over.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`; ``out`` may not be ``x``, though shapes agree.

    Returns
    -------
    array of the kind, shape and dtype of x
        The block that rank i gave stands at place i; ``out`` if given.

    Raises
    ------
    ValueError
        The first axis cannot be divided by the number of ranks, or as for `all_sum`.
    DistributedError, TypeError
        As for `all_sum`.

    Notes
    -----
    Cost, in the words of `all_sum`:

    - inline: 1 step, in which every rank reads its part of the others' arrays, n bytes in all;
    - staged: a step for each 256 KiB, ``4 n`` bytes read and written per rank;
    - pairwise, between hosts of one rank each: 1 step, all pairs at once, ``n (m - 1) / m`` bytes
      sent per rank. Source: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521;
    - several ranks on each of several hosts: gathered at each host's first rank (one of the first
      two of `all_gather`), pairwise between those, and handed out; in blocks of a few MiB.

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
    """Give every rank the array of one rank.

    Parameters
    ----------
    x : array or number
        Same shape and dtype on every rank; what it holds matters on ``root`` only. Kinds and dtypes
        as for `all_sum`. It must stay as it is until the operation is over.
    root : int, optional
        The rank whose array it is, the same on every rank.
    group, out, timeout, async_op, stream : optional
        As for `all_sum`.

    Returns
    -------
    array or number of the kind, shape and dtype of x
        What ``root`` gave; ``out`` if given.

    Raises
    ------
    ValueError
        ``root`` is no rank of the group, or as for `all_sum`.
    DistributedError, TypeError, OverflowError
        As for `all_sum`; ranks that name different roots get a `CollectiveMismatch`.

    Notes
    -----
    Cost, in the words of `all_sum`:

    - inline: 1 step, in which every rank reads n bytes;
    - staged: a step for each 256 KiB, ``2 n`` bytes read and written per rank;
    - mesh, between hosts of one rank each, up to 1 KiB / (m - 1): 1 step, as every host sends n
      bytes to all others;
    - chain, between hosts: n bytes sent per host but the last, each as soon as it has come; the
      last one has them m - 1 hops after the first. Source: Pjesivac-Grbovic et al. 2007,
      doi:10.1007/s10586-007-0012-0 (pipeline);
    - several ranks on each of several hosts: one of the first two at the root's host, the chain,
      and staged at the others.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> px.broadcast(np.arange(3), root=0)
    array([0, 1, 2])
    """
    root, group = rank_number("root", root), group_or_world(group)
    if not 0 <= root < group.size():
        msg = f"Invalid root={root} for a group of size {group.size()}"
        raise ValueError(msg)
    return collective("broadcast", x, group, out, timeout, async_op, stream, root)
