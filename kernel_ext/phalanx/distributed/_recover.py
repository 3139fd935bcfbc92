"""The public way out of a failure: `recover`, which forms the group of all ranks anew.

It chooses by how this process became a rank; the work is done where worlds are joined.
"""

from __future__ import annotations

import os

from phalanx.errors import DistributedError, NotSupported

from ._deadline import seconds
from ._environment import join_ring, ring_environment
from ._group import Group
from ._mpi._join import is_mpi, join_mpi, was_launched
from ._supervised import adopt, alone, is_supervised, join_anew, world

__all__ = ["recover"]

_MPI = (
    "a world of MPI cannot be formed anew, as MPI itself cannot: end the job and start it again, "
    "or run it with phalanx launch without --backend mpi"
)


def recover(timeout: float | None = 30.0) -> Group:
    """Form the group of all ranks anew after a failure; every rank calls it.

    A failure (a stop, a deadline, ranks that disagreed, one that raised) ends the group for all
    ranks: every later operation raises the same. This is the way on within one cell or script;
    the next cell of a notebook begins with a good group anyway. Nothing that was sent or
    written before can be taken for something of the new group. Every split that all its ranks
    still hold stands again, as the same object.

    Where nothing has failed on any rank the group is left as it is, and the call is a barrier.

    Parameters
    ----------
    timeout : float, optional
        Seconds for all of it; ``None``: no limit.

    Returns
    -------
    Group
        The group of `init`, the same object as before.

    Raises
    ------
    CollectiveTimeout
        Not every rank called it in time (names the missing). It may be called again.
    RankFailure
        A rank is dead, has ended its cell, or was not asked to run it: all ranks are needed.
    NotSupported
        The ranks are MPI's, which cannot go on after a failure.
    DistributedError
        The group cannot be formed.

    Notes
    -----
    Cost: a round trip to the supervisor where nothing has failed; else another one, connections
    anew between hosts, and as much for each split that stands again.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> def sum_or_none(x):
    ...     try:
    ...         return px.all_sum(x, timeout=10.0)
    ...     except px.DistributedError:  # on every rank
    ...         px.recover()
    >>> sum_or_none(np.ones(3))
    array([1., 1., 1.])
    >>> px.recover() is px.init()
    True
    """
    limit = seconds(timeout)
    if is_supervised():
        return join_anew(limit)
    ring = ring_environment(os.environ)
    if ring is not None:
        return adopt(lambda group: join_ring(ring, limit, group), is_anew=True)
    group = world()
    if group is not None and is_mpi(group):
        return _meet_again(group, limit)
    if group is None and was_launched(os.environ):
        return adopt(lambda _: join_mpi(limit))
    return alone()


def _meet_again(group: Group, timeout: float | None) -> Group:
    """Meet the other ranks of MPI; if anything has failed anywhere, that is the end."""
    try:
        group.barrier(timeout)
    except DistributedError as error:
        msg = f"{_MPI} ({error})"
        raise NotSupported(msg) from error
    return group
