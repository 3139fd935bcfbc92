"""Describe a world to one rank, and map its host's memory."""

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
    """Description of a world's epoch or of a split, for one rank."""

    rank: int
    members: tuple[int, ...]  # each rank's number at the start of the world; errors use these
    epoch: int  # from 1
    workspace: str  # name of the workspace; part of the proof on each link
    key: bytes = field(repr=False)  # the workspace's secret; empty: these ranks have none
    hosts: tuple[int, ...]  # host index by rank
    slots: tuple[int, ...]  # arena slot on its host, by rank
    # By rank at the start of the world, because a rank outside the group may end an operation.
    host_names: tuple[str, ...]
    addresses: tuple[str, ...] = ()  # this rank may listen on them
    striping: StripeOptions = UNSTRIPED
    # "tcp": links between all pairs, as if each rank were on a host of its own. "mpi": an MPI
    # library connects the ranks, and nothing is formed here.
    transport: str = "any"
    page_fd: int = -1  # of this host's control page; -1: none
    region_fds: tuple[int, ...] = ()  # shared memory by slot of this host; empty: none
    wake_fds: tuple[int, ...] = ()  # eventfds by slot of this host
    channel: int = 0  # of a split: the part of the arena that it uses
    number: int = 0  # of a split: unique; 0: the world
    heartbeat_timeout_s: float = 5.0  # a host that is silent for longer is lost

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.members)

    @property
    def slot(self) -> int:
        """Return this rank's arena slot."""
        return self.slots[self.rank]

    @property
    def me(self) -> int:
        """Return this rank's number in the world."""
        return self.members[self.rank]

    def part(self, ranks: tuple[int, ...], channel: int, number: int) -> WorldSpec:
        """Describe a group of some of these ranks, including this one.

        Examples
        --------
        >>> spec = WorldSpec(rank=2, members=(0, 1, 2), epoch=1, workspace="lab", key=bytes(32),
        ...                  hosts=(0, 0, 1), slots=(0, 1, 0), host_names=("a", "a", "b"))
        >>> part = spec.part((1, 2), 1, 7)
        >>> part.rank, part.me, part.size, part.hosts, part.rank_host_names()
        (1, 2, 2, (0, 1), ('a', 'b'))
        """
        return replace(
            self,
            rank=ranks.index(self.rank),
            hosts=tuple(self.hosts[rank] for rank in ranks),
            slots=tuple(self.slots[rank] for rank in ranks),
            members=tuple(self.members[rank] for rank in ranks),
            channel=channel,
            number=number,
        )

    @property
    def native_hosts(self) -> tuple[int, ...]:
        """Return the host index of each rank for the engine.

        With transport "tcp" or without shared memory, each rank gets a host of its own.
        """
        if self.transport == "tcp" or not self.region_fds:
            return tuple(range(self.size))
        return self.hosts

    def rank_host_names(self) -> tuple[str, ...]:
        return tuple(self.host_names[member] for member in self.members)


class MappedHostMemory:
    """Arena and control page that the ranks of a host share.

    They are mapped once per process and stay mapped from epoch to epoch, because slots outlive
    their ranks. In a world without shared memory both are None.
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
        lost, names = culprit_rank(kind, culprit, spec.me), spec.host_names
        return RankFailure(lost, names[lost] if 0 <= lost < len(names) else "", message)
    if kind == AbortKind.MISMATCH:
        return CollectiveMismatch(message)
    if kind == AbortKind.TIMEOUT:
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
