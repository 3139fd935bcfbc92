"""What a host tells its root of its ranks: what has changed since it last did.

It reads a host and makes messages; when, and how they travel, is its user's.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.protocol.hosts import HostReport, RankReport

from ._any_host import Host

__all__ = ["Reports"]


class Reports:
    """Draws up reports on the ranks of one host; ``epoch`` is the newest one that they are told of."""

    def __init__(self, host: Host) -> None:
        self.epoch = 0
        self._host = host
        self._said: dict[int, RankReport] = {}
        self._aborted: tuple[int, int, int, str] | None = None

    def draw_up(self, ranks: Iterable[int], *, with_memory: bool = False) -> HostReport | None:
        """Report on those of these ranks that have changed; None if there is nothing new.

        ``with_memory``: with how much memory they have in use, which changes all the time.
        """
        changed = []
        for rank in ranks:
            before = self._said.get(rank)
            now = self._look(rank, 0 if before is None else before.rss_nbytes, with_memory)
            if now != before:
                self._said[rank] = now
                changed.append(now)
        reason = self._host.abort_reason(self.epoch) if self.epoch else None
        aborted = None if reason is None else (self.epoch, *reason)
        if not changed and aborted == self._aborted:
            return None
        self._aborted = aborted
        return HostReport(tuple(changed), aborted)

    def _look(self, rank: int, rss_nbytes: int, with_memory: bool) -> RankReport:
        host = self._host
        report = RankReport(
            rank=rank,
            pid=host.pid(rank),
            activity=host.activity(rank),
            doing=host.doing(rank),
            rss_nbytes=rss_nbytes,
            shown_nbytes=host.shown_nbytes(rank),
        )
        if not with_memory:
            return report
        return msgspec.structs.replace(report, rss_nbytes=host.rss_nbytes(rank))
