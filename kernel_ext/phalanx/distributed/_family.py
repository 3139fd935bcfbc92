"""The groups of one epoch in this process: the world's and its splits, and their channels.

A channel is the part of the arena (and of the supervisor's page) that one group uses. It knows who
holds which; how a split is agreed on and formed it does not know.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError
from phalanx.protocol import SplitClosed, SplitFormed

from ._connect import Links
from ._deadline import Deadline
from ._engine import Engine
from ._listen import close_all
from ._world import HostMemory, WorldSpec, make_group

if TYPE_CHECKING:
    Leave: TypeAlias = weakref.finalize[..., Any]

__all__ = ["Family", "Gone", "Notify"]

Notify = Callable[[SplitFormed | SplitClosed], None]
_BITE_S = 0.05  # of a wait that is to hear signals
_log = logging.getLogger(__name__)


class Gone:
    """Stands for an engine that cannot be used any more, and refuses every operation.

    Examples
    --------
    >>> Gone("its epoch has ended").barrier()
    Traceback (most recent call last):
    ...
    phalanx.errors.DistributedError: its epoch has ended
    """

    is_closed = True
    failure = None

    def __init__(self, why: str) -> None:
        self._why = why

    def close(self) -> None:
        """Nothing is left to close."""

    def settle(self, timeout: float) -> bool:
        """Nobody can be inside."""
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        def refuse(*_args: object, **_options: object) -> None:
            raise DistributedError(self._why)

        return refuse


class _Holder(Protocol):
    """What a family needs of a group; the leave-taking is a split's."""

    _engine: Engine
    _spec: WorldSpec
    _family: Family | None
    _leave: Leave | None

    def _retire(self, stand_in: Gone) -> None: ...


@dataclass
class _Left:
    """A split that this rank has left, whose channel others may still read."""

    channel: int
    number: int
    engine: _native.Group
    is_told: bool = False


class Family:
    """Who holds which channel; one lock guards it.

    A rank that makes a split offers its free channels to the others, and takes one that all of
    them offer. Meanwhile no second split may offer the same ones: `offer` says so, and the two
    are made one after the other. A channel comes back when every member has left its group.

    `leave` closes and notes: it may run in the midst of anything (a garbage collection), so it
    takes no lock; the rest is done by the next call that does.
    """

    def __init__(self, world: WorldSpec, memory: HostMemory, notify: Notify | None = None) -> None:
        self.world = world
        self.memory = memory
        self._notify = notify
        self._lock = threading.Lock()
        self._free = set(range(1, _native.Group.CHANNELS))
        self._is_offering = False
        self._is_over = False
        self._left: deque[_Left] = deque()
        self._groups: weakref.WeakSet[_Holder] = weakref.WeakSet()

    def offer(self) -> frozenset[int] | None:
        """Offer the free channels; None if another thread is offering them. `settle` must follow."""
        with self._lock:
            self._reap()
            if self._is_offering:
                return None
            self._is_offering = True
            return frozenset(self._free)

    def settle(self, taken: int | None) -> None:
        """End an offer: one of the channels was taken, or none."""
        with self._lock:
            self._is_offering = False
            if taken is not None:
                self._free.discard(taken)

    def settle_taken(self, channel: int) -> None:
        """Note that a channel is used."""
        with self._lock:
            self._free.discard(channel)

    def settle_back(self, channel: int) -> None:
        """Give back a channel that was taken and never used."""
        with self._lock:
            self._free.add(channel)

    def make(self, spec: WorldSpec, links: Links) -> _native.Group:
        """Make a native group, which resets its part of this rank's memory; it takes the links.

        Not once the epoch is over: a thread that comes late with a split of it would write where
        a group of the next one is at work.
        """
        with self._lock:
            if not self._is_over:
                return make_group(spec, self.memory, links)
        for lane in links.values():
            close_all(sock for stripes in lane.values() for sock in stripes)
        msg = f"epoch {self.world.epoch} is over"
        raise DistributedError(msg)

    def settle_epoch(self, deadline: Deadline) -> None:
        """Leave the epoch for good: no thread is inside a group of it, and none can come.

        What guards the memory of an epoch: a rank takes part in the first rendezvous of the next
        one after this, and no rank writes for the next one before that is complete. So whatever
        was read in the old epoch was read before anybody wrote over it, or is thrown away (every
        operation looks at the abort flag after its last read).

        Raises
        ------
        CollectiveTimeout
            A thread of this rank is still inside. The call may be repeated.
        """
        why = f"epoch {self.world.epoch} is over: the group was formed anew"
        with self._lock:
            self._is_over = True
            self._reap()
            engines: list[Engine | _native.Group] = [group._engine for group in self._groups]
            # By index: a garbage collection may note one more meanwhile.
            engines += [self._left[i].engine for i in range(len(self._left))]
        for engine in engines:
            if not engine.is_closed and engine.failure is None:
                engine.abort(_native.ABORT_ERROR, -1, why)
        for engine in engines:
            while not engine.settle(_BITE_S):
                if deadline.is_over():
                    msg = (
                        f"rank {self.world.rank}: a thread of this rank is still inside an "
                        f"operation of epoch {self.world.epoch}, which is over, after {deadline}"
                    )
                    raise CollectiveTimeout(msg)

    def held(self) -> dict[int, _Holder]:
        """Return the splits that this rank has not closed or lost, by their numbers."""
        with self._lock:
            groups = list(self._groups)
        return {
            group._spec.number: group
            for group in groups
            if group._leave is not None and group._leave.alive and not group._engine.is_closed
        }

    def add(self, group: _Holder) -> None:
        """Take in a group that stands."""
        with self._lock:
            self._groups.add(group)

    def add_split(self, group: _Holder, engine: _native.Group, spec: WorldSpec) -> Leave:
        """Take in a split; call what is returned when it is closed. Garbage does so itself."""
        self.settle_taken(spec.channel)
        self.add(group)
        leave = weakref.finalize(group, self.leave, spec, engine)
        leave.atexit = False  # who ends says nothing: its supervisor does
        self._tell(SplitFormed(spec.epoch, spec.channel, spec.number, spec.members))
        return leave

    def leave(self, spec: WorldSpec, engine: _native.Group) -> None:
        """Note that this rank has no more use for a split.

        Operations that were submitted and that nobody holds any more shall come to their end: it
        is closed after them.
        """
        if engine.is_idle:
            engine.close()
        self._left.append(_Left(spec.channel, spec.number, engine))

    def reap(self) -> None:
        """Do what `leave` has noted."""
        with self._lock:
            self._reap()

    def _reap(self) -> None:
        waiting = []
        while self._left:
            left = self._left.popleft()
            if left.engine.is_idle:
                left.engine.close()
            if left.engine.is_closed and not left.is_told:
                left.is_told = True
                self._tell(SplitClosed(self.world.epoch, left.number))
            if left.engine.is_left_by_all():
                self._free.add(left.channel)
            else:
                waiting.append(left)
        self._left.extend(waiting)

    def _tell(self, notice: SplitFormed | SplitClosed) -> None:
        if self._notify is not None:
            self._notify(notice)

    def spread(self, failure: tuple[int, int, str], failed: _Holder) -> None:
        """Tell the peers of all groups why the epoch is over: their ranks need not be in ``failed``."""
        with self._lock:
            others = [group._engine for group in self._groups if group is not failed]
        for engine in others:
            if not engine.is_closed:
                engine.abort(*failure)

    def end(self) -> None:
        """Give up what did not go on into the next epoch, which has a family of its own."""
        why = (
            f"this group is a split of epoch {self.world.epoch}, which has ended; "
            "make the split anew"
        )
        with self._lock:
            groups = list(self._groups)
            self._groups.clear()
            self._notify = None
        for group in groups:
            if group._family is self:
                group._retire(Gone(why))
        self.reap()

    def disarm(self, why: str) -> None:
        """In a child of fork: its copies of the groups must not touch what the rank shares.

        No lock: a thread that held it stayed in the parent, and here is only one.
        """
        for group in list(self._groups):
            # Never destroyed here: its end would tell the peers that the rank has left.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group._engine))
            group._engine = Gone(why)  # type: ignore[assignment]  # refuses all that it is asked
