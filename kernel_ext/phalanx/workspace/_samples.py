"""The samples that have come of the ranks, and the wish for more of them.

It knows the messages and the clock; who draws them it does not.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.protocol import Samples, ToRoot, WatchSamples

__all__ = ["SampleLog", "SampleView"]

LEASE_S = 10.0  # a kernel that is kept from reading by a cell for most of that misses nothing
# Each wish wakes the supervisor, which costs busy ranks as much as a look at them.
RENEW_S = 3.0
AGAIN_S = 1.0  # where nothing has come since the last one: it may have been lost
KEPT = 64  # twice what comes in that time; of 64 busy ranks some 3 MB


@dataclass(frozen=True)
class SampleView:
    """Samples, the oldest first; see `Workspace.samples`."""

    samples: tuple[Samples, ...]
    dropped: int = 0
    waiting: frozenset[int] = frozenset()


class SampleLog:
    """Keeps the newest samples, and asks for more while it is read.

    `take` is called on the socket thread, `read` on any.
    """

    def __init__(
        self,
        send: Callable[[ToRoot], None],
        *,
        kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Samples] = deque(maxlen=kept)
        self._asked_s = self._came_s = -math.inf

    def take(self, samples: Samples) -> None:
        """Note samples that have come."""
        with self._lock:
            self._samples.append(samples)
            self._came_s = self._clock()

    def read(self, after: int) -> SampleView:
        """Return the samples after a number, and ask for more."""
        with self._lock:
            found = tuple(its for its in self._samples if its.number > after)
            now_s = self._clock()
            wait_s = RENEW_S if self._came_s > self._asked_s else AGAIN_S
            is_due = now_s >= self._asked_s + wait_s
            if is_due:
                self._asked_s = now_s
        if is_due:
            self._send(WatchSamples(LEASE_S))
        # Numbers go on while nobody of this process watches: that is no loss, but a pause.
        is_known = after and found and found[0].number > after + 1
        return SampleView(found, found[0].number - after - 1 if is_known else 0)
