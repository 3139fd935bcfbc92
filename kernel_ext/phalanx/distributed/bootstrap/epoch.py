"""Form the groups of an epoch, or a group of one.

The caller has agreed on the new epoch and its ranks through the supervisor.
"""

from __future__ import annotations

from phalanx import _native
from phalanx.errors import CollectiveTimeout

from ..connect.rendezvous import Rendezvous
from ..control import Deadline
from ..group.group import FailureListener, Group
from ..group.registry import GroupRegistry, Notify
from ..group.splits import renew_splits
from ..world_spec import MappedHostMemory, WorldSpec, form_group


def is_over(group: Group | None) -> bool:
    """Return whether there is no usable group (none, closed or failed)."""
    return group is None or group._engine.is_closed or group._engine.failure is not None


def next_epoch(
    spec: WorldSpec,
    rendezvous: Rendezvous,
    memory: MappedHostMemory,
    group: Group | None,
    *,
    deadline: Deadline,
    notify: Notify | None = None,
    on_failure: FailureListener | None = None,
) -> Group:
    """Form the world's group of an epoch, and its splits again.

    Every rank of the epoch calls this. ``group`` is the world's previous group: it stays one object
    and gets the new engine. A failed call leaves ``group`` as it was, except that its epoch is
    over. Raises `CollectiveTimeout` also while a thread of this rank is still inside the old epoch.
    """
    old = None if group is None else group._registry
    if old is not None:
        old.settle_epoch(deadline)
    registry = GroupRegistry(spec, memory, notify)
    engine = form_group(spec, rendezvous, memory, timeout=deadline.remaining())
    try:
        renewal = renew_splits(engine, spec, rendezvous, old, registry, deadline)
    except BaseException as error:
        engine.close()
        if isinstance(error, TimeoutError) and not isinstance(error, CollectiveTimeout):
            raise CollectiveTimeout(str(error)) from error
        raise
    if group is None:
        group = Group(engine, spec, on_failure, registry)
        renewal.publish(group)
        return group
    renewal.publish(group)
    group._rearm(engine, spec, registry)
    return group


def group_of_one() -> Group:
    """Make a group with one rank, for a process in no world."""
    spec = WorldSpec(
        rank=0,
        size=1,
        epoch=1,
        workspace="",
        key=b"",
        hosts=(0,),
        slots=(0,),
        host_names=("",),
        addresses=(),
    )
    return Group(_native.Group(rank=0, size=1, epoch=spec.epoch, hosts=(0,)), spec)
