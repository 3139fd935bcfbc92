"""Own the memory that the ranks of one host share.

The memory has one region per rank slot, one page of abort flags, and one wake-up descriptor per
slot. Ranks inherit the descriptors.
"""

from __future__ import annotations

import logging
import os

from phalanx.distributed.control import (
    ControlPage,
    create_page,
    create_region,
    create_wake,
    give_back_region,
)
from phalanx.protocol import Activity, GroupProgress, Passed, UserWait

log = logging.getLogger(__name__)


class HostMemory:
    """Regions, page and wake-up descriptors for ``slots`` of ``ranks``.

    `LocalHost` closes them. A slot keeps its region as long as the world exists: a replacement
    inherits the region of the lost rank, so survivors never map memory anew.
    """

    def __init__(self, slots: int, ranks: int) -> None:
        self.region_fds: tuple[int, ...] = ()
        self.wake_fds: tuple[int, ...] = ()
        self.page_fd = create_page(slots, ranks)
        self._page: ControlPage | None = None
        # by slot: the last epoch of the lost rank after a replacement
        self._left_in: dict[int, int] = {}
        try:
            for _ in range(slots):
                self.region_fds += (create_region(),)
                self.wake_fds += (create_wake(),)
            self._page = ControlPage(
                self.page_fd, slots=slots, author=slots, wake_fds=list(self.wake_fds)
            )
        except BaseException:
            self.close()
            raise

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.page_fd, *self.region_fds, *self.wake_fds)

    def abort(self, epoch: int, kind: int, culprit: int, message: str) -> None:
        """Free every rank that waits in ``epoch``, without the ranks' help."""
        if self._page is not None:
            self._page.abort(epoch, kind, culprit, message)

    def reason(self, epoch: int) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` if ``epoch`` was aborted here."""
        return None if self._page is None else self._page.reason(epoch)

    def activity(self, slot: int) -> Activity:
        if self._page is None:
            return Activity(0, {})
        epoch, groups, _, messages = self._page.activity(slot)
        if self._left_in.get(slot) == epoch:
            return Activity(0, {})
        wait = self._page.wait(slot)  # of 50 ms or more; the call takes about 2 us
        return Activity(
            epoch,
            {number: GroupProgress(*its[:4]) for number, its in groups.items()},
            {key: Passed(*its) for key, its in messages.items()},
            None if wait is None else UserWait(*wait),
        )

    def give_back(self, slot: int) -> None:
        """Return a dead rank's pages to the system; keep the slot."""
        if not self.region_fds:
            return
        try:
            give_back_region(self.region_fds[slot])
        except OSError as error:  # The system gets the memory at the end of the world instead.
            log.warning("%s", error)

    def vacate(self, slot: int) -> None:
        """Forget the operations of a lost rank before a replacement uses ``slot``.

        The replacement enters a later epoch. Until then the page has the values of the lost rank.
        """
        if self._page is not None:
            self._left_in[slot] = self._page.activity(slot)[0]

    def doing(self, slot: int) -> str:
        """Describe the operation of the rank in ``slot``; "" for none.

        If the rank waits, the text has the place in the user's code.
        """
        now = self.activity(slot)
        site = None if self._page is None else self._page.site(slot)
        return now.doing + (f" at {site[2]}" if site is not None and now.is_at(*site[:2]) else "")

    def trace(self, slot: int, since: int = 0) -> tuple[bytes, int]:
        """Return a rank's flight recorder and the number of dropped records.

        The rank in ``slot`` need not help: it may be busy, frozen or dead. ``since``: return only
        the records from this number on, or all if another process has the slot now.
        """
        return (b"", 0) if self._page is None else self._page.trace(slot, since)

    def counters(self, slot: int) -> tuple[int, int, int, int, dict[int, tuple[int, int]]]:
        """Return the counters of the rank in ``slot`` from the page.

        They are: operations, arena bytes, time inside operations (ns), time waiting (ns), and
        ``{peer: (sent, received)}`` in bytes.
        """
        return (0, 0, 0, 0, {}) if self._page is None else self._page.counters(slot)

    def beats(self, slot: int) -> int:
        return 0 if self._page is None else self._page.heartbeats(slot)

    def mark_slot_dead(self, slot: int) -> None:
        """Record that the process in ``slot`` is gone: expect no heartbeats."""
        if self._page is not None:
            self._page.mark_stopped(slot)

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None
        fds = (self.page_fd, *self.region_fds, *self.wake_fds) if self.page_fd >= 0 else ()
        self.page_fd, self.region_fds, self.wake_fds = -1, (), ()
        for fd in fds:
            os.close(fd)
