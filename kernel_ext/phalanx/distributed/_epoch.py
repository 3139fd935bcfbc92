"""From one epoch of a world to the next: the old one is left, group and splits stand in the new.

Whoever agreed on the new epoch (supervisor or meeting point) says who is in it; how that came
about is not its business.
"""

from __future__ import annotations

from phalanx.errors import CollectiveTimeout

from ._deadline import Deadline
from ._family import Family, Notify
from ._group import FailureListener, Group
from ._rendezvous import Rendezvous
from ._renewal import renew_splits
from ._world import HostMemory, WorldSpec, form_group

__all__ = ["is_over", "next_epoch"]


def is_over(group: Group | None) -> bool:
    """Whether there is no group that could be used as it is."""
    return group is None or group._engine.is_closed or group._engine.failure is not None


def next_epoch(
    spec: WorldSpec,
    rendezvous: Rendezvous,
    memory: HostMemory,
    group: Group | None,
    *,
    deadline: Deadline,
    notify: Notify | None = None,
    on_failure: FailureListener | None = None,
) -> Group:
    """Form the world of an epoch, and its splits again; every rank of it calls this.

    ``group`` is the world's of before: it stays one object, armed anew. A failed call leaves it
    as it was, but for its epoch, which is over; the next call may be for a later one.

    Raises
    ------
    CollectiveTimeout
        Not every rank came in time, or a thread of this rank is still inside the old epoch.
    RankFailure, DistributedError
        A rank was lost meanwhile, or the world cannot be formed.
    """
    old = None if group is None else group._family
    if old is not None:
        old.settle_epoch(deadline)
    family = Family(spec, memory, notify)
    engine = form_group(spec, rendezvous, memory, timeout=deadline.remaining())
    try:
        renewal = renew_splits(engine, spec, rendezvous, old, family, deadline)
    except BaseException as error:
        engine.close()
        if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
            raise CollectiveTimeout(str(error)) from error
        raise
    if group is None:
        return Group(engine, spec, on_failure, family)
    renewal.publish()
    group._rearm(engine, spec, family)
    return group
