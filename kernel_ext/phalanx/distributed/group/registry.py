"""Track the groups of one epoch in this process, and their channels.

The groups are the world's group and its splits. A channel is the part of the arena (and of the
supervisor's page) that one group uses.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError
from phalanx.protocol import EpochAborted, SplitClosed, SplitFormed

from ..connect.connector import Links
from ..connect.endpoints import close_all
from ..connect.handshake import LinkPurpose
from ..control import Deadline
from ..world_spec import MappedHostMemory, WorldSpec, abort_error
from .work import Engine

if TYPE_CHECKING:
    from .group import Group

    Leave: TypeAlias = weakref.finalize[..., Any]

Report = Callable[[EpochAborted | SplitFormed | SplitClosed], None]
# Numbers of splits: of the adapters' split (see `Group._take_adapters_group`), and of others.
ADAPTERS = 1
FIRST_NUMBER = 2
_BITE_S = 0.05  # step of a wait, so that signals are handled


class RetiredEngine:
    """Stand-in for an engine that was given up; refuses every operation.

    Examples
    --------
    >>> RetiredEngine("its epoch has ended").barrier()
    Traceback (most recent call last):
    ...
    phalanx.errors.DistributedError: its epoch has ended
    """

    is_closed = True
    failure = None

    def __init__(self, why: str) -> None:
        self._why = why

    def close(self) -> None:
        """Do nothing."""

    def wait_until_idle(self, timeout: float) -> bool:
        """Return True: no thread can be inside."""
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        def refuse(*_args: object, **_options: object) -> None:
            raise DistributedError(self._why)

        return refuse


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """Engine, ranks and registry of a group in one epoch.

    A world without a supervisor has no ``registry``. ``leave`` gives the channel of a split back;
    it runs once, at the latest when the group is garbage. A group that is formed has none yet.
    """

    engine: Engine
    spec: WorldSpec
    registry: GroupRegistry | None = None
    leave: Leave | None = None

    @property
    def is_over(self) -> bool:
        """Whether the group was closed or has failed."""
        return self.engine.is_closed or self.engine.failure is not None

    def tell_failure(self) -> None:
        """Report a failure of the epoch to the supervisor and the peers."""
        failure = self.engine.failure
        if failure is not None and self.registry is not None:
            self.registry.spread(failure, self)

    def refused(self, why: str) -> Membership:
        """Return this membership with an engine that refuses all operations."""
        return replace(self, engine=cast("_native.Group", RetiredEngine(why)))


def make_group(spec: WorldSpec, memory: MappedHostMemory, links: Links) -> _native.Group:
    """Make this rank's native group; it takes over the links."""
    hosts = spec.native_hosts
    neighbours = [
        slot if host == hosts[spec.rank] else -1
        for host, slot in zip(hosts, spec.slots, strict=True)
    ]
    here = spec.hosts[spec.rank]
    # From here on the engine closes the sockets, even if it refuses the group.
    fds: dict[LinkPurpose, dict[int, list[int]]] = {purpose: {} for purpose in LinkPurpose}
    for part, sock in links.items():
        fds[part.purpose].setdefault(part.peer, []).append(sock.detach())
    return _native.Group(
        rank=spec.rank,
        size=spec.size,
        epoch=spec.epoch,
        channel=spec.channel,
        tag=spec.number,
        members=spec.members,
        hosts=hosts,
        slots=neighbours,
        host_names=spec.host_names,
        arena=memory.arena if neighbours.count(-1) < spec.size - 1 else None,
        links=fds[LinkPurpose.COLLECTIVE],
        pair_links={peer: fd for peer, (fd,) in fds[LinkPurpose.PAIR].items()},
        page=memory.page,
        wake_fd=memory.wake_fd,
        ranks_here=spec.hosts.count(here),
        page_slots=[
            slot if host == here and memory.page is not None else -1
            for host, slot in zip(spec.hosts, spec.slots, strict=True)
        ],
        silence_s=spec.heartbeat_timeout_s,
        selector=memory.selector,
    )


@dataclass
class _Left:
    """Split that this rank has left; peers may still read its channel."""

    spec: WorldSpec
    engine: _native.Group
    was_notified: bool = False


class GroupRegistry:
    """Groups of an epoch and their channels; one lock guards every field.

    A rank that makes a split offers its free channels to the other ranks, and takes a channel that
    all of them offer. Two threads must not offer the same channels at a time: `offer` then returns
    None, and the second thread tries again later. A channel is free again when every member has
    left its group.

    `leave` takes no lock, because a garbage collection may call it at any point. It closes the
    engine and appends to a list; the next call that holds the lock does the rest.
    """

    def __init__(
        self, world: WorldSpec, memory: MappedHostMemory, report: Report | None = None
    ) -> None:
        self.world = world
        self.memory = memory
        self._report = report
        self._lock = threading.Lock()
        self._free = set(range(1, _native.Group.CHANNELS))
        self._is_offering = False
        self._is_over = False
        self._left: deque[_Left] = deque()
        self._groups: weakref.WeakKeyDictionary[Group, Membership] = weakref.WeakKeyDictionary()

    def offer(self) -> frozenset[int] | None:
        """Return the free channels, or None while another thread offers them.

        `settle` must follow.
        """
        with self._lock:
            self._reap()
            if self._is_offering:
                return None
            self._is_offering = True
            return frozenset(self._free)

    def settle(self, taken: int) -> None:
        """End an offer; ``taken`` is the channel that was taken, or 0."""
        with self._lock:
            self._is_offering = False
            self._free.discard(taken)

    def settle_back(self, channel: int) -> None:
        """Return a channel that was taken and never used."""
        with self._lock:
            self._free.add(channel)

    def check(self, engine: Engine | None = None) -> None:
        """Raise the failure of the epoch, if any.

        The page has it, or without a page ``engine``.
        """
        page = self.memory.page
        if engine is not None:
            failure = engine.failure
        else:
            failure = None if page is None else page.reason(self.world.epoch)
        if failure is not None:
            raise abort_error(self.world, *failure)

    def make(self, spec: WorldSpec, links: Links) -> Membership:
        """Make a native group, not yet registered; it takes over the links.

        This resets the group's part of this rank's memory. It fails after the end of the epoch: a
        late thread would overwrite the memory of a group of the next epoch.
        """
        with self._lock:
            if not self._is_over:
                return Membership(make_group(spec, self.memory, links), spec, self)
        close_all(links.values())
        msg = f"epoch {self.world.epoch} is over"
        raise DistributedError(msg)

    def settle_epoch(self, deadline: Deadline) -> None:
        """End the epoch and wait until no thread is inside its groups.

        This protects the memory of an epoch: a rank takes part in the first rendezvous of the next
        epoch only after this call, and no rank writes for that epoch before the rendezvous is
        complete. So a late read of the old epoch happened before any overwrite, or is discarded:
        every operation checks the abort flag after its last read. Raises `CollectiveTimeout` if a
        thread stays inside.
        """
        why = f"epoch {self.world.epoch} is over: the group was formed anew"
        with self._lock:
            self._is_over = True
            self._reap()
            engines = [its.engine for its in self._groups.values()]
            # By index: a garbage collection may append one more meanwhile.
            engines += [self._left[i].engine for i in range(len(self._left))]
        for engine in engines:
            if not engine.is_closed and engine.failure is None:
                engine.abort(_native.ABORT_ERROR, -1, why)
        for engine in engines:
            while not engine.wait_until_idle(_BITE_S):
                if deadline.is_over():
                    msg = (
                        f"rank {self.world.me}: a thread of this rank is still inside an "
                        f"operation of epoch {self.world.epoch}, which is over, after {deadline}"
                    )
                    raise CollectiveTimeout(msg)

    def held(self) -> dict[int, Group]:
        """Return the splits that this rank still holds, by number."""
        with self._lock:
            groups = list(self._groups.items())
        return {
            its.spec.number: group
            for group, its in groups
            if its.spec.number and not its.engine.is_closed
        }

    def add(self, group: Group, formed: Membership) -> Membership:
        """Register a group in this epoch."""
        spec, current = formed.spec, formed
        if spec.number:
            leave = weakref.finalize(group, self.leave, formed)
            leave.atexit = False  # at exit the supervisor reports the end of the rank
            current = replace(formed, leave=leave)
        with self._lock:
            self._groups[group] = current
            self._free.discard(spec.channel)
        if spec.number:
            self._tell(SplitFormed(spec.epoch, spec.channel, spec.number, spec.members))
        return current

    def leave(self, split: Membership) -> None:
        """Record that this rank does not use a split any more.

        If submitted operations still run, the split is closed after they end.
        """
        left = _Left(split.spec, cast("_native.Group", split.engine))
        if left.engine.is_idle:
            left.engine.close()
        self._left.append(left)

    def reap(self) -> None:
        """Finish the work that `leave` has recorded."""
        with self._lock:
            self._reap()

    def _reap(self) -> None:
        waiting = []
        while self._left:
            left = self._left.popleft()
            if left.engine.is_idle:
                left.engine.close()
            if left.engine.is_closed and not left.was_notified:
                left.was_notified = True
                self._tell(SplitClosed(self.world.epoch, left.spec.number))
            if left.engine.all_members_left():
                self._free.add(left.spec.channel)
            else:
                waiting.append(left)
        self._left.extend(waiting)

    def _tell(self, notice: EpochAborted | SplitFormed | SplitClosed) -> None:
        if self._report is not None:
            self._report(notice)

    def spread(self, failure: tuple[int, int, str], failed: Membership) -> None:
        """Report a failure, and abort all other groups with its reason.

        Their ranks need not be ranks of ``failed``.
        """
        self._tell(EpochAborted(self.world.epoch, *failure))
        with self._lock:
            others = [
                cast("_native.Group", its.engine)
                for its in self._groups.values()
                if its is not failed
            ]
        for engine in others:
            if not engine.is_closed:
                engine.abort(*failure)

    def end(self, lost: Mapping[int, str]) -> None:
        """Retire the splits that the next epoch's registry did not take over.

        ``lost`` has the reasons, by number of the split.
        """
        with self._lock:
            groups = list(self._groups.items())
            self._groups.clear()
            self._report = None
        ended = f"this group is a split of epoch {self.world.epoch}, which has ended"
        for group, its in groups:
            if group._current is its and its.leave is not None and not its.engine.is_closed:
                why = lost.get(its.spec.number, ended)
                group._current = its.refused(f"{why}; make the split anew")
                its.engine.close()
                its.leave()
        self.reap()

    def disarm(self, why: str) -> None:
        """Disable all groups in a child of fork.

        The child's copies must not touch the memory that the rank shares with its peers. The engines
        are kept: their end would tell the peers that the rank has left. This takes no lock: a thread
        that held the lock exists only in the parent, and the child has a single thread.
        """
        for group, its in list(self._groups.items()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(its.engine))
            self._groups[group] = group._current = its.refused(why)
