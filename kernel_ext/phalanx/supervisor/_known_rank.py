"""What the root knows of a rank of another host: its status, and its newest report.

And of which ranks a host speaks. Records only.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.protocol import Activity
from phalanx.protocol.host_commands import FromCommand
from phalanx.protocol.host_samples import HostSamples
from phalanx.protocol.hosts import (
    FromHost,
    HostReport,
    RankFrozen,
    RankGone,
    RankReport,
    RankSaid,
)

__all__ = ["KnownRank", "named_in"]


class KnownRank:
    """What is known of a rank; before its first report, nothing can be told to it."""

    def __init__(self, rank: int, status: int | None = None) -> None:
        self.status = status
        self.report = RankReport(rank, 0, Activity(0, {}), "", 0, 0)

    @property
    def is_there(self) -> bool:
        """Whether its host has started it, and it is not known to be over."""
        return self.status is None and self.report.pid > 0


def named_in(message: FromHost) -> Sequence[int]:
    """Return the ranks that a host speaks for."""
    if isinstance(message, HostReport | HostSamples):
        return [its.rank for its in message.ranks]
    if isinstance(message, RankSaid | RankGone | RankFrozen | FromCommand):
        return [message.rank]
    return ()
