"""A world as one rank is told of it, and the native group that is formed from that.

It decides which pairs share an arena and which need a link; who told it is not its business.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from phalanx import _native
from phalanx.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistributedError,
    RankFailure,
)

from ._connect import Links, connect_links
from ._control import AbortKind, accused
from ._deadline import Deadline
from ._handshake import Identity, Lane
from ._outages import Outages
from ._rendezvous import Rendezvous
from ._room import check_room
from ._selector import SELECTOR_VARIABLE, read_selector
from ._stripes import ONE_WAY, Ways

__all__ = [
    "TRANSPORTS",
    "HostMemory",
    "WorldSpec",
    "abort_error",
    "form_group",
    "link_peers",
    "make_group",
    "native_hosts",
]

TRANSPORTS = ("any", "tcp", "mpi")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """One epoch of a world, from the place of one rank.

    Parameters
    ----------
    rank, size, epoch : int
        Who we are, of how many, for the how-manieth time.
    workspace : str
        Its name; part of the proof on each link.
    key : bytes
        The workspace's secret.
    hosts : tuple of int, by rank
        The host index of each rank.
    slots : tuple of int, by rank
        The arena slot of each rank on its own host.
    host_names : tuple of str, by host index
        For error texts.
    addresses : tuple of str
        Where this rank may listen.
    ways : Ways
        How many of these it uses at once, and how.
    transport : {"any", "tcp", "mpi"}
        ``"tcp"``: links between all pairs, as if each rank were a host of its own; ``"mpi"``:
        an MPI library has the ranks, and nothing here is formed.
    page_fd : int
        The abort page of this host, -1 for none.
    region_fds, wake_fds : tuple of int, by slot of this host
        Shared memory and eventfds; empty for none.
    members : tuple of int, by rank
        Of a split: the ranks of the world; empty for the world itself.
    channel, number : int
        Of a split: the part of the arena it uses, and what tells it from all other splits.
    silence_s : float
        A host that does not answer for so long is taken for lost.
    world_host_names : tuple of str, by rank of the world
        Of a split: what ends an operation in it may be a rank that is not in it.
    """

    rank: int
    size: int
    epoch: int
    workspace: str
    key: bytes = field(repr=False)
    hosts: tuple[int, ...]
    slots: tuple[int, ...]
    host_names: tuple[str, ...]
    addresses: tuple[str, ...]
    transport: str = "any"
    page_fd: int = -1
    region_fds: tuple[int, ...] = ()
    wake_fds: tuple[int, ...] = ()
    members: tuple[int, ...] = ()
    channel: int = 0
    number: int = 0
    silence_s: float = 5.0
    world_host_names: tuple[str, ...] = ()
    ways: Ways = ONE_WAY

    def __post_init__(self) -> None:
        """Refuse a world that contradicts itself, before anything is built on it."""
        if not 0 <= self.rank < self.size:
            wrong = f"rank {self.rank} of {self.size}"
        elif not len(self.hosts) == len(self.slots) == self.size:
            wrong = f"{len(self.hosts)} hosts and {len(self.slots)} slots for {self.size} ranks"
        elif self.transport not in TRANSPORTS:
            wrong = f"transport {self.transport!r}; known are {', '.join(TRANSPORTS)}"
        elif self.region_fds and self.slots[self.rank] >= len(self.region_fds):
            wrong = f"slot {self.slots[self.rank]} of {len(self.region_fds)} regions"
        else:
            return
        msg = f"the world this rank was told of cannot be: {wrong}"
        raise DistributedError(msg)

    @property
    def slot(self) -> int:
        """This rank's own slot."""
        return self.slots[self.rank]

    def world_rank(self, rank: int) -> int:
        """Return the world's number of a rank."""
        return self.members[rank] if self.members else rank

    def host_name(self, rank: int) -> str:
        """Name the host of a rank, or return "" where that is not known."""
        host = self.hosts[rank] if 0 <= rank < self.size else -1
        return self.host_names[host] if 0 <= host < len(self.host_names) else ""

    def rank_host_names(self) -> tuple[str, ...]:
        """Host names by rank."""
        return tuple(map(self.host_name, range(self.size)))


class HostMemory:
    """What the ranks of one host share: arena and abort page, mapped once per process.

    They stay mapped from epoch to epoch, because slots outlive the ranks in them. A world
    without shared memory has neither (``None``). The flight recorder goes on with them, and so does
    what is known of paths to other hosts.
    """

    def __init__(self, spec: WorldSpec) -> None:
        self._source = _memory_of(spec)
        self.outages = Outages()
        self._slot = spec.slot
        self.arena: _native.Arena | None = None
        self.page: _native.AbortPage | None = None
        for fd in (spec.page_fd, *spec.region_fds, *spec.wake_fds):
            if fd >= 0:
                os.set_inheritable(fd, False)  # the rank inherited them, its children shall not
        self.wake_fd = spec.wake_fds[spec.slot] if spec.slot < len(spec.wake_fds) else -1
        if spec.page_fd >= 0:
            self.page = _native.AbortPage(
                spec.page_fd,
                slots=max(len(spec.region_fds), len(spec.wake_fds)),
                author=spec.slot,
                wake_fds=spec.wake_fds,
            )
        self.recorder = _native.Recorder(self.page)
        self.selector = read_selector(os.environ.get(SELECTOR_VARIABLE, ""))
        if spec.region_fds:
            check_room(sum(os.fstat(fd).st_size for fd in spec.region_fds))
            self.arena = _native.Arena(spec.region_fds, own=spec.slot)

    def fits(self, spec: WorldSpec) -> bool:
        """Whether this is the memory that ``spec`` speaks of."""
        return self._source == _memory_of(spec)

    def leave(self) -> None:
        """Give no signs of life from now on."""
        if self.page is not None:
            self.page.still(self._slot)

    def close(self) -> None:
        """Unmap; idempotent. The descriptors stay the caller's."""
        if self.arena is not None:
            self.arena.close()
        if self.page is not None:
            self.page.close()


def _memory_of(spec: WorldSpec) -> tuple[object, ...]:
    return spec.page_fd, spec.region_fds, spec.wake_fds, spec.slot


def native_hosts(spec: WorldSpec) -> tuple[int, ...]:
    """Tell the engine who shares a host: with tcp nobody does.

    Examples
    --------
    >>> spec = WorldSpec(rank=0, size=3, epoch=1, workspace="lab", key=bytes(32),
    ...                  hosts=(0, 0, 1), slots=(0, 1, 0), host_names=(), addresses=(),
    ...                  region_fds=(5, 6))
    >>> native_hosts(spec)
    (0, 0, 1)
    >>> from dataclasses import replace
    >>> native_hosts(replace(spec, transport="tcp"))
    (0, 1, 2)
    """
    if spec.transport == "tcp" or not spec.region_fds:
        return tuple(range(spec.size))
    return spec.hosts


def link_peers(spec: WorldSpec) -> dict[Lane, tuple[int, ...]]:
    """Return the ranks that this one needs links to.

    For messages: all of other hosts. For collectives: the first ranks of the hosts, among each
    other.

    Examples
    --------
    >>> spec = WorldSpec(rank=0, size=4, epoch=1, workspace="lab", key=bytes(32),
    ...                  hosts=(0, 0, 1, 1), slots=(0, 1, 0, 1), host_names=(), addresses=(),
    ...                  region_fds=(5, 6))
    >>> peers = link_peers(spec)
    >>> peers[Lane.COLLECTIVE], peers[Lane.PAIR]
    ((2,), (2, 3))
    >>> from dataclasses import replace
    >>> link_peers(replace(spec, rank=1))[Lane.COLLECTIVE]
    ()
    """
    hosts = native_hosts(spec)
    others = tuple(peer for peer in range(spec.size) if hosts[peer] != hosts[spec.rank])
    leaders = (
        {hosts.index(host) for host in hosts} if hosts.index(hosts[spec.rank]) == spec.rank else ()
    )
    return {
        Lane.COLLECTIVE: tuple(peer for peer in others if peer in leaders),
        Lane.PAIR: others,
    }


def form_group(
    spec: WorldSpec, rendezvous: Rendezvous, memory: HostMemory, *, timeout: float | None
) -> _native.Group:
    """Form the native group of one epoch; returns when every rank has formed its own.

    Raises
    ------
    CollectiveTimeout
        Names the ranks that did not come within ``timeout`` seconds.
    RankFailure, DistributedError
        A rank was lost meanwhile, or the world cannot be formed.
    """
    deadline = Deadline(timeout)
    try:
        links = connect_links(
            Identity(spec.workspace, spec.epoch, spec.rank, spec.key),
            link_peers(spec),
            spec.addresses,
            rendezvous,
            timeout=timeout,
            host_names=spec.rank_host_names(),
            check=_abort_check(spec, memory),
            ways=spec.ways,
            outages=memory.outages,
        )
        group = make_group(spec, memory, links)
        try:
            rendezvous.all_gather(b"ready", timeout=deadline.remaining())
        except BaseException:
            group.close()
            raise
    except CollectiveTimeout:
        raise
    except TimeoutError as error:
        raise CollectiveTimeout(str(error)) from error
    _log.debug("rank %d of %d: epoch %d stands", spec.rank, spec.size, spec.epoch)
    return group


def make_group(spec: WorldSpec, memory: HostMemory, links: Links) -> _native.Group:
    """Make the native group of this rank from links that stand; it takes them over."""
    hosts = native_hosts(spec)
    neighbours = [
        slot if host == hosts[spec.rank] else -1
        for host, slot in zip(hosts, spec.slots, strict=True)
    ]
    here = spec.hosts[spec.rank]
    return _native.Group(
        rank=spec.rank,
        size=spec.size,
        epoch=spec.epoch,
        channel=spec.channel,
        tag=spec.number,
        members=spec.members,
        hosts=hosts,
        slots=neighbours,
        host_names=spec.world_host_names or spec.rank_host_names(),
        arena=memory.arena if neighbours.count(-1) < spec.size - 1 else None,
        # From here on the engine closes them, also if it refuses the group.
        links={
            peer: [sock.detach() for sock in stripes]
            for peer, stripes in links[Lane.COLLECTIVE].items()
        },
        pair_links={peer: sock.detach() for peer, (sock,) in links[Lane.PAIR].items()},
        page=memory.page,
        wake_fd=memory.wake_fd,
        ranks_here=spec.hosts.count(here),
        page_slots=[
            slot if host == here and memory.page is not None else -1
            for host, slot in zip(spec.hosts, spec.slots, strict=True)
        ],
        silence_s=spec.silence_s,
        recorder=memory.recorder,
        selector=memory.selector.table,
    )


def _abort_check(spec: WorldSpec, memory: HostMemory) -> Callable[[], None]:
    """Raise what the abort page says, if it says anything of this epoch."""
    page = memory.page

    def check() -> None:
        reason = None if page is None else page.reason(spec.epoch)
        if reason is not None:
            raise abort_error(spec, *reason)

    return check


def abort_error(spec: WorldSpec, kind: int, culprit: int, message: str) -> DistributedError:
    """Turn an abort into the error that it stands for."""
    if kind in {AbortKind.RANK_FAILURE, AbortKind.LINK_BROKEN}:
        lost = accused(kind, culprit, spec.rank)
        return RankFailure(lost, spec.host_name(lost), message)
    if kind == _native.ABORT_MISMATCH:
        return CollectiveMismatch(message)
    if kind == _native.ABORT_TIMEOUT:
        return CollectiveTimeout(message)
    return DistributedError(message)
