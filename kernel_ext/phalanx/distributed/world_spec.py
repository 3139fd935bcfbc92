"""Describe a world to one rank, and form its native group."""

from __future__ import annotations

import mmap
import operator
import os
import resource
from dataclasses import dataclass, field, replace

from phalanx import _native
from phalanx.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DistributedError,
    RankFailure,
)

from .connect.endpoints import UNSTRIPED, StripeOptions
from .control import AbortKind, culprit_rank

# Left over for the process: stacks of future threads, malloc's arenas, a few modules.
_SPARE_NBYTES = 64 << 20


def check_address_space(nbytes: int) -> None:
    """Raise `OSError` if mapping ``nbytes`` would use up the address space.

    Without free address space Python and its libraries crash, or wait for threads that could not
    start, instead of reporting the cause.
    """
    limit_nbytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_nbytes == resource.RLIM_INFINITY:
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        mmap.mmap(-1, nbytes + _SPARE_NBYTES, flags=flags, prot=0).close()
    except OSError:
        msg = (
            f"cannot map the {nbytes >> 20} MiB of address space that the ranks of a host share: "
            f"a process may have {limit_nbytes >> 20} MiB here; raise that limit (ulimit -v)"
        )
        raise OSError(msg) from None


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """Description of one epoch of a world for one rank.

    Parameters
    ----------
    rank, size, epoch : int
        This rank, the number of ranks, and the epoch number, from 1.
    workspace : str
        Name of the workspace; part of the proof on each link.
    key : bytes
        The workspace's secret; empty if these ranks have none.
    hosts : tuple of int, by rank
        The host index of each rank.
    slots : tuple of int, by rank
        The arena slot of each rank on its own host.
    host_names : tuple of str, by host index
        Host names for error texts.
    addresses : tuple of str
        Addresses that this rank may listen on.
    striping : StripeOptions
        How many of the addresses are used at once, and how many connections use each.
    transport : {"any", "tcp", "mpi"}
        ``"tcp"``: links between all pairs, as if each rank were on a host of its own. ``"mpi"``: an
        MPI library connects the ranks, and nothing is formed here.
    page_fd : int
        Descriptor of this host's control page, -1 for none.
    region_fds, wake_fds : tuple of int, by slot of this host
        Descriptors of shared memory and eventfds; empty for none.
    members : tuple of int, by rank
        For a split, or a world that continues without some of its ranks: each rank's number at the
        start of the world. Empty for the whole world. Errors name ranks by these numbers.
    channel, number : int
        For a split: the part of the arena that it uses, and its unique number.
    heartbeat_timeout_s : float
        A host that does not answer for this many seconds counts as lost.
    world_host_names : tuple of str, by rank of the whole world
        For a part of the world: names of all hosts, because a rank outside the part may end an
        operation.
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
    heartbeat_timeout_s: float = 5.0
    world_host_names: tuple[str, ...] = ()
    striping: StripeOptions = UNSTRIPED

    @property
    def slot(self) -> int:
        """Return this rank's arena slot."""
        return self.slots[self.rank]

    def world_rank(self, rank: int) -> int:
        """Return the number in the world of one of these ranks."""
        return self.members[rank] if self.members else rank

    @property
    def me(self) -> int:
        """Return this rank's number in the world."""
        return self.world_rank(self.rank)

    def part(self, ranks: tuple[int, ...], channel: int = 0, number: int = 0) -> WorldSpec:
        """Describe a group of some of these ranks, including this one.

        Examples
        --------
        >>> spec = WorldSpec(rank=2, size=3, epoch=1, workspace="lab", key=bytes(32),
        ...                  hosts=(0, 0, 1), slots=(0, 1, 0), host_names=("a", "b"), addresses=())
        >>> part = spec.part((1, 2))
        >>> part.rank, part.me, part.size, part.hosts, part.world_host_names
        (1, 2, 2, (0, 1), ('a', 'a', 'b'))
        """
        return replace(
            self,
            rank=ranks.index(self.rank),
            size=len(ranks),
            hosts=tuple(self.hosts[rank] for rank in ranks),
            slots=tuple(self.slots[rank] for rank in ranks),
            members=tuple(self.world_rank(rank) for rank in ranks),
            channel=channel,
            number=number,
            world_host_names=self.every_host_name(),
        )

    @property
    def native_hosts(self) -> tuple[int, ...]:
        """Return the host index of each rank for the engine.

        With transport "tcp" or without shared memory, each rank gets a host of its own.
        """
        if self.transport == "tcp" or not self.region_fds:
            return tuple(range(self.size))
        return self.hosts

    def host_name(self, rank: int) -> str:
        """Return the host name of a rank, or "" if unknown."""
        host = self.hosts[rank] if 0 <= rank < self.size else -1
        return self.host_names[host] if 0 <= host < len(self.host_names) else ""

    def rank_host_names(self) -> tuple[str, ...]:
        return tuple(map(self.host_name, range(self.size)))

    def every_host_name(self) -> tuple[str, ...]:
        """Return the host names by rank of the whole world."""
        return self.world_host_names or self.rank_host_names()


class MappedHostMemory:
    """Arena and control page that the ranks of a host share.

    They are mapped once per process and stay mapped from epoch to epoch, because slots outlive
    their ranks. In a world without shared memory both are None. The flight recorder also survives
    the epochs.
    """

    def __init__(self, spec: WorldSpec) -> None:
        self._source = _memory_of(spec)
        self.slot = spec.slot
        self.arena: _native.Arena | None = None
        self.page: _native.ControlPage | None = None
        for fd in (spec.page_fd, *spec.region_fds, *spec.wake_fds):
            if fd >= 0:
                os.set_inheritable(fd, False)  # the rank inherited them, its children must not
        self.wake_fd = spec.wake_fds[spec.slot] if spec.slot < len(spec.wake_fds) else -1
        if spec.page_fd >= 0:
            self.page = _native.ControlPage(
                spec.page_fd,
                slots=max(len(spec.region_fds), len(spec.wake_fds)),
                author=spec.slot,
                wake_fds=spec.wake_fds,
            )
        self.recorder = _native.Recorder(self.page)
        # Thresholds in bytes other than those of native/group/selector.hpp, by name: tests use them to
        # choose algorithms. They must be the same on all ranks.
        self.selector: dict[str, int] = {}
        if spec.region_fds:
            check_address_space(sum(os.fstat(fd).st_size for fd in spec.region_fds))
            self.arena = _native.Arena(spec.region_fds, own=spec.slot)

    def fits(self, spec: WorldSpec) -> bool:
        """Return whether ``spec`` refers to this memory."""
        return self._source == _memory_of(spec)

    def leave(self) -> None:
        """Mark this rank's slot as not sending heartbeats any more."""
        if self.page is not None:
            self.page.mark_stopped(self.slot)

    def close(self) -> None:
        """Unmap the memory; idempotent. The caller still owns the descriptors."""
        if self.arena is not None:
            self.arena.close()
        if self.page is not None:
            self.page.close()


def _memory_of(spec: WorldSpec) -> tuple[object, ...]:
    return spec.page_fd, spec.region_fds, spec.wake_fds, spec.slot


def abort_error(spec: WorldSpec, kind: int, culprit: int, message: str) -> DistributedError:
    """Convert the reason of an abort into an exception."""
    if kind in {AbortKind.RANK_FAILURE, AbortKind.LINK_BROKEN}:
        lost, names = culprit_rank(kind, culprit, spec.me), spec.every_host_name()
        return RankFailure(lost, names[lost] if 0 <= lost < len(names) else "", message)
    if kind == _native.ABORT_MISMATCH:
        return CollectiveMismatch(message)
    if kind == _native.ABORT_TIMEOUT:
        return CollectiveTimeout(message)
    return DistributedError(message)


def check_color(color: object, key: object) -> tuple[int, int]:
    """Return color and key as 63-bit numbers; -1: none."""
    numbers = []
    for name, value in (("color", -1 if color is None else color), ("key", key)):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            wanted = "an int or None" if name == "color" else "an int"
            msg = f"{name} must be {wanted}, not {type(value).__name__}"
            raise TypeError(msg) from None
        if number >= 1 << 63:
            msg = f"{name} must be less than 2**63, not {number}"
            raise ValueError(msg)
        numbers.append(max(number, -1))
    return numbers[0], numbers[1]
