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
from typing import Protocol

from phalanx import _native
from phalanx.errors import DistributedError
from phalanx.protocol import SplitClosed, SplitFormed

from ._engine import Engine
from ._world import HostMemory, WorldSpec

__all__ = ["Family", "Gone", "Notify"]

Notify = Callable[[SplitFormed | SplitClosed], None]
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

    def __getattr__(self, name: str) -> Callable[..., None]:
        def refuse(*_args: object, **_options: object) -> None:
            raise DistributedError(self._why)

        return refuse


class _Holder(Protocol):
    """What a family needs of a group."""

    _engine: Engine

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

    def settle_back(self, channel: int) -> None:
        """Give back a channel that was taken and never used."""
        with self._lock:
            self._free.add(channel)

    def add(self, group: _Holder) -> None:
        """Take in a group that stands."""
        with self._lock:
            self._groups.add(group)

    def add_split(
        self, group: _Holder, engine: _native.Group, spec: WorldSpec
    ) -> Callable[[], object]:
        """Take in a split; call what is returned when it is closed. Garbage does so itself."""
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
        """Close every split: the world goes on in another epoch, with a family of its own."""
        why = (
            f"this group is a split of epoch {self.world.epoch}, which has ended; "
            "make the split anew"
        )
        with self._lock:
            groups = list(self._groups)
            self._groups.clear()
            self._notify = None
        for group in groups:
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
