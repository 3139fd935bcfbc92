"""What the root knows of the ranks of another host: their status, and their newest reports.

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

__all__ = ["KnownRank", "KnownRanks", "named_in"]


class KnownRank:
    """What is known of a rank; before its first report, nothing can be told to it."""

    def __init__(self, rank: int, status: int | None = None) -> None:
        self.status = status
        self.report = RankReport(rank, 0, Activity(0, {}), "", 0, 0)

    @property
    def is_there(self) -> bool:
        """Whether its host has started it, and it is not known to be over."""
        return self.status is None and self.report.pid > 0


class KnownRanks:
    """What is read at once of the ranks of one host, as of its newest report."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self._ranks = {rank: KnownRank(rank, status=0) for rank in ranks}

    def status(self, rank: int) -> int | None:
        """As `Host.status`."""
        return self._ranks[rank].status

    def pid(self, rank: int) -> int:
        """As `Host.pid`."""
        return self._ranks[rank].report.pid

    def activity(self, rank: int) -> Activity:
        """As `Host.activity`."""
        return self._ranks[rank].report.activity

    def doing(self, rank: int) -> str:
        """As `Host.doing`."""
        return self._ranks[rank].report.doing

    def rss_nbytes(self, rank: int) -> int:
        """As `Host.rss_nbytes`."""
        return self._ranks[rank].report.rss_nbytes

    def shown_nbytes(self, rank: int) -> int:
        """As `Host.shown_nbytes`."""
        return self._ranks[rank].report.shown_nbytes


def named_in(message: FromHost) -> Sequence[int]:
    """Return the ranks that a host speaks for."""
    if isinstance(message, HostReport | HostSamples):
        return [its.rank for its in message.ranks]
    if isinstance(message, RankSaid | RankGone | RankFrozen | FromCommand):
        return [message.rank]
    return ()
