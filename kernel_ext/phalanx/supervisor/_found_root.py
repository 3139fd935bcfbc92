"""A root supervisor that another process has started, as who found its record sees it."""

from __future__ import annotations

import os
import select
import signal
import threading

from phalanx.errors import DistributedError
from phalanx.protocol import RootAddress, WorkspaceRecord

from ._system import open_pidfd, signal_pidfd

__all__ = ["FoundRoot"]


class FoundRoot:
    """Like a `RootProcess`, but of a process that is not our child.

    Raises
    ------
    DistributedError
        It has ended meanwhile.
    """

    def __init__(self, record: WorkspaceRecord) -> None:
        self.address = RootAddress(record.endpoint, record.public_key)
        self.pid = record.pid
        try:
            self._pidfd = open_pidfd(record.pid)
        except ProcessLookupError:
            msg = f"the workspace {record.name!r} has just ended"
            raise DistributedError(msg) from None
        self._woken, self._wake = os.pipe()
        self._waits = threading.Lock()  # held by whoever waits, so that nothing closes below it

    def poll(self) -> int | None:
        """0 once it has ended (how, only its parent knows), None while it runs."""
        return 0 if self._pidfd < 0 or self._has_ended(0.0) else None

    def _has_ended(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def signal(self, number: int) -> None:
        """Send it a signal; nothing if it has ended."""
        try:
            signal_pidfd(self._pidfd, self.pid, number)
        except ProcessLookupError:
            return

    def log_tail(self) -> str:
        """Nothing: what it wrote is its parent's to read."""
        return ""

    def wait(self) -> int:
        """Wait for its end, or until it is let go of."""
        with self._waits:
            if self._pidfd >= 0:
                poller = select.poll()
                for fd in (self._pidfd, self._woken):
                    poller.register(fd, select.POLLIN)
                poller.poll()
        return 0

    def close(self, timeout_s: float) -> None:
        """Wait for its end (it was told to), and kill it if the time is over; idempotent."""
        if self._pidfd >= 0:
            if not self._has_ended(timeout_s):
                self.signal(signal.SIGKILL)
            self.let_go()

    def let_go(self) -> None:
        """Leave it as it is; idempotent."""
        if self._pidfd >= 0:
            os.write(self._wake, b".")
            with self._waits:
                for fd in (self._pidfd, self._woken, self._wake):
                    os.close(fd)
                self._pidfd = self._woken = self._wake = -1
