"""The memory that the ranks of one host share, and its owner: the supervisor.

One region per rank slot, one page of abort flags, one wake-up descriptor per slot. Ranks inherit
the descriptors; what they do with them is the engine's business.
"""

from __future__ import annotations

import logging
import os

from phalanx.distributed import (
    AbortPage,
    create_page,
    create_region,
    create_wake,
    give_back_region,
)

from ._hopeless import Activity, Passed, Standing

__all__ = ["HostMemory"]

log = logging.getLogger(__name__)


class HostMemory:
    """Regions, page and wake-up descriptors for ``slots`` of ``ranks``; closed with their host.

    A slot keeps its region for life: a rank that replaces another inherits the same one, so the
    survivors never map anything anew.
    """

    def __init__(self, slots: int, ranks: int) -> None:
        self.region_fds: tuple[int, ...] = ()
        self.wake_fds: tuple[int, ...] = ()
        self.page_fd = create_page(slots, ranks)
        self._page: AbortPage | None = None
        self._left_in: dict[int, int] = {}  # by slot: the epoch of a rank that was replaced
        try:
            for _ in range(slots):
                self.region_fds += (create_region(),)
                self.wake_fds += (create_wake(),)
            self._page = AbortPage(
                self.page_fd, slots=slots, author=slots, wake_fds=list(self.wake_fds)
            )
        except BaseException:
            self.close()
            raise

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors that a rank inherits."""
        return (self.page_fd, *self.region_fds, *self.wake_fds)

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """Free every rank of this host that waits in ``epoch``; needs nothing of the ranks."""
        if self._page is not None:
            self._page.abort(epoch, kind, culprit, message)

    def reason(self, epoch: int) -> tuple[int, int, str] | None:
        """``(kind, culprit, message)`` if ``epoch`` was aborted on this host."""
        return None if self._page is None else self._page.reason(epoch)

    def activity(self, slot: int) -> Activity:
        """What the rank in ``slot`` is doing in the engine."""
        if self._page is None:
            return Activity(0, {})
        epoch, groups, pair, messages = self._page.activity(slot)
        if self._left_in.get(slot) == epoch:
            return Activity(0, {})
        return Activity(
            epoch,
            {number: Standing(*its) for number, its in groups.items()},
            pair,
            {key: Passed(*its) for key, its in messages.items()},
        )

    def give_back(self, slot: int) -> None:
        """Return the pages of a slot whose rank is dead to the system; the slot stays."""
        if not self.region_fds:
            return
        try:
            give_back_region(self.region_fds[slot])
        except OSError as error:  # it comes back with the world's end, then
            log.warning("%s", error)

    def site(self, slot: int) -> tuple[int, int, str] | None:
        """Where the rank in ``slot`` has called the operation that it waits in.

        ``(number of the group, number of the operation, "train.py:31")``; None while it is in
        none, or not for long.
        """
        return None if self._page is None else self._page.site(slot)

    def vacate(self, slot: int) -> None:
        """Forget what a rank that is gone was in: another process has its slot from now on.

        That one enters a later epoch; until then the page says what the first has left there.
        """
        if self._page is not None:
            self._left_in[slot] = self._page.activity(slot)[0]

    def doing(self, slot: int) -> str:
        """Words for what the rank in ``slot`` is in, with its place if it waits; "" for nothing."""
        now = self.activity(slot)
        site = self.site(slot)
        return now.doing + (f" at {site[2]}" if site is not None and now.is_at(*site[:2]) else "")

    def trace(self, slot: int, since: int = 0) -> tuple[bytes, int]:
        """Return the flight recorder of the rank in ``slot``, and how many records were dropped.

        It needs nothing of the rank: that may run what it wants, be frozen or dead. With ``since``
        only the records from that number on, or all where another process has the slot.
        """
        return (b"", 0) if self._page is None else self._page.trace(slot, since)

    def counters(self, slot: int) -> tuple[int, int, int, int, dict[int, tuple[int, int]]]:
        """What the rank in ``slot`` has moved: operations, bytes, times, wires; as the page has it."""
        return (0, 0, 0, 0, {}) if self._page is None else self._page.counters(slot)

    def beats(self, slot: int) -> int:
        """Return the count of the heart of the rank in ``slot``; 0 where there is none."""
        return 0 if self._page is None else self._page.beats(slot)

    def still(self, slot: int) -> None:
        """Note that the process in ``slot`` is gone: its heart is not to be waited for."""
        if self._page is not None:
            self._page.still(slot)

    def close(self) -> None:
        """Unmap and close everything; idempotent."""
        if self._page is not None:
            self._page.close()
            self._page = None
        fds = (self.page_fd, *self.region_fds, *self.wake_fds) if self.page_fd >= 0 else ()
        self.page_fd, self.region_fds, self.wake_fds = -1, (), ()
        for fd in fds:
            os.close(fd)
