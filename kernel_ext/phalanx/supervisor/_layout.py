"""Which rank runs where: hosts by index, slots on them, and their names.

Pure.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.protocol import HostPlan

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """``hosts[r]`` is rank r's host, ``slots[r]`` its place there; ``names`` are the hosts'."""

    hosts: tuple[int, ...]
    slots: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of_one(cls, size: int) -> Layout:
        """All ranks on this machine."""
        return cls((0,) * size, tuple(range(size)), (socket.gethostname(),))

    @classmethod
    def of(cls, plans: Sequence[HostPlan]) -> Layout:
        """Number the ranks in the order of the hosts.

        Examples
        --------
        >>> layout = Layout.of([HostPlan("a", 2), HostPlan("me@b", 1)])
        >>> layout.hosts, layout.slots, layout.names
        ((0, 0, 1), (0, 1, 0), ('a', 'b'))
        """
        return cls(
            tuple(index for index, plan in enumerate(plans) for _ in range(plan.ranks)),
            tuple(slot for plan in plans for slot in range(plan.ranks)),
            # As the user calls it; here, as every rank of this machine is called already.
            tuple(
                socket.gethostname() if plan.is_local else plan.name.rpartition("@")[2]
                for plan in plans
            ),
        )

    def renamed(self, host: int, name: str) -> Layout:
        """Return it with another name for a host."""
        names = (*self.names[:host], name, *self.names[host + 1 :])
        return Layout(self.hosts, self.slots, names)

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """Return the ranks of one host, in the order of their slots."""
        return tuple(rank for rank, its in enumerate(self.hosts) if its == host)

    def name_of(self, rank: int) -> str:
        """Return the name of the host on which a rank runs."""
        return self.names[self.hosts[rank]]
