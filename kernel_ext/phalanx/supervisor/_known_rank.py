"""What the root knows of a rank of another host: its status, and its newest report."""

from __future__ import annotations

from phalanx.protocol import Activity
from phalanx.protocol.hosts import RankReport

__all__ = ["KnownRank"]


class KnownRank:
    """What is known of a rank; before its first report, nothing can be told to it."""

    def __init__(self, rank: int, status: int | None = None) -> None:
        self.status = status
        self.report = RankReport(rank, 0, Activity(0, {}), "", 0, 0)

    @property
    def is_there(self) -> bool:
        """Whether its host has started it, and it is not known to be over."""
        return self.status is None and self.report.pid > 0
