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
from phalanx.protocol import EpochAborted

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
        try:
            for _ in range(slots):
                self.region_fds += (create_region(),)
                self.wake_fds += (create_wake(),)
            self.page = ControlPage(
                self.page_fd, slots=slots, author=slots, wake_fds=list(self.wake_fds)
            )
        except BaseException:
            self._close_fds()
            raise

    @property
    def is_closed(self) -> bool:
        return self.page_fd < 0

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.page_fd, *self.region_fds, *self.wake_fds)

    def abort(self, why: EpochAborted) -> None:
        """Free every rank that waits in the epoch, without the ranks' help."""
        if not self.is_closed:
            self.page.abort(why.epoch, why.kind, why.culprit, why.message)

    def give_back(self, slot: int) -> None:
        """Return a dead rank's pages to the system; keep the slot."""
        if self.is_closed:
            return
        try:
            give_back_region(self.region_fds[slot])
        except OSError as error:  # The system gets the memory at the end of the world instead.
            log.warning("%s", error)

    def close(self) -> None:
        """Close everything; idempotent. The page cannot be read any more."""
        self.page.close()
        if not self.is_closed:
            self._close_fds()

    def _close_fds(self) -> None:
        fds = self.fds
        self.page_fd, self.region_fds, self.wake_fds = -1, (), ()
        for fd in fds:
            os.close(fd)
