"""What a host can tell of its ranks, and do for them, without asking them: pages and files.

By rank; it starts and ends nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

import msgspec

from phalanx.hosts import interface_of
from phalanx.protocol import MOST_CONNECTIONS, Activity, HostClock, HostInfo, Welcome

from ._layout import Layout
from ._memory import HostMemory
from ._shown import Piece, read_shown
from ._system import rss_nbytes, usable_cores

__all__ = ["HostView"]


class HostView:
    """The memory that ranks of this machine share, and the files in which they note what they show.

    A rank's slot is its place in ``ranks``; for links ranks listen on ``addresses``. The world has
    ``size`` ranks, 0: these.
    """

    def __init__(self, ranks: Sequence[int], addresses: Sequence[str], size: int) -> None:
        self.listen_on(addresses)
        self._at_once = self._connections_per_ip = 1
        self.ranks = tuple(ranks)
        self.memory = HostMemory(len(self.ranks), size or len(self.ranks))
        self._slots = {rank: slot for slot, rank in enumerate(self.ranks)}
        self._shown: dict[int, int] = {}  # descriptors of what ranks show; a replacement goes on

    @property
    def layout(self) -> Layout:
        """Who runs where, if all ranks run here."""
        return Layout.of_one(len(self.ranks))

    @property
    def infos(self) -> tuple[HostInfo, ...]:
        """This machine, for a picture."""
        name, at = socket.gethostname(), self.addresses[0]
        return (HostInfo(0, name, at, usable_cores(), self.device),)

    def listen_on(self, addresses: Sequence[str]) -> None:
        """Have ranks listen on these addresses, for links."""
        self.addresses = tuple(addresses)
        self.device = interface_of(self.addresses[0])  # once: a picture is asked for often

    def use(self, n_named: int, connections_per_ip: int) -> None:
        """Have ranks use the addresses that were named for them at once; others are alternatives."""
        self._at_once = min(max(1, n_named), MOST_CONNECTIONS)
        self._connections_per_ip = connections_per_ip

    def complete(self, welcome: Welcome) -> Welcome:
        """Say what only this host knows: what its ranks have inherited, and where they listen."""
        return msgspec.structs.replace(
            welcome,
            addresses=self.addresses,
            page_fd=self.memory.page_fd,
            region_fds=self.memory.region_fds,
            wake_fds=self.memory.wake_fds,
            at_once=self._at_once,
            connections_per_ip=self._connections_per_ip,
        )

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """Free every rank that waits in ``epoch``; needs nothing of the ranks."""
        self.memory.abort(epoch, kind, culprit, message)

    def abort_reason(self, epoch: int) -> tuple[int, int, str] | None:
        """``(kind, culprit, message)`` if ``epoch`` was aborted."""
        return self.memory.reason(epoch)

    def activity(self, rank: int) -> Activity:
        """What a rank is doing in the engine."""
        return self.memory.activity(self._slots[rank])

    def doing(self, rank: int) -> str:
        """Words for what a rank is in, with its place if it waits; "" for nothing."""
        return self.memory.doing(self._slots[rank])

    def beats(self, rank: int) -> int:
        """Return the count of a rank's heart; 0 where it has none."""
        return self.memory.beats(self._slots[rank])

    def traces_here(self) -> tuple[tuple[bytes, int], ...]:
        """Return the flight recorders by slot, with how many records each has lost: some 50 us a rank."""
        return tuple(self.memory.trace(slot) for slot in range(len(self.ranks)))

    async def traces(self) -> tuple[tuple[HostClock, ...], tuple[tuple[bytes, int], ...]]:
        """Return the clocks of all hosts, and by rank what `traces_here` gives."""
        return (HostClock(socket.gethostname(), 0, 0),), self.traces_here()

    def shown_nbytes(self, rank: int) -> int:
        """Return how much a rank has shown so far."""
        return os.fstat(self._shown[rank]).st_size if rank in self._shown else 0

    async def read_shown(self, rank: int, since: int, max_lines: int) -> Piece | None:
        """Read what a rank has shown, as the function does; None if there is no such rank."""
        fd = self._shown.get(rank)
        if fd is None:
            return None
        # On another thread: where a GB is counted the ranks are not kept waiting.
        return await asyncio.get_running_loop().run_in_executor(
            None, read_shown, fd, since, max_lines
        )

    def pid(self, rank: int) -> int:
        """Process id of a rank; 0 if it was never started."""
        raise NotImplementedError

    def rss_nbytes(self, rank: int) -> int:
        """Memory that a rank's process has in use; 0 if it has none."""
        return rss_nbytes(self.pid(rank))

    def watch(self, *, is_on: bool) -> None:
        """Nothing: what is here is seen as it is."""

    async def refresh(self) -> None:
        """Nothing: what is here is seen as it is."""
