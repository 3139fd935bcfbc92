"""When a widget looked at its ranks and when not, so that it can say why it knows nothing of a time.

It knows the clock of this process, nothing of samples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["KERNEL_BUSY", "NOBODY_LOOKED", "SUPERVISOR_BUSY", "Attention"]

NOBODY_LOOKED = "nobody looked"
KERNEL_BUSY = "this kernel was busy"
SUPERVISOR_BUSY = "the supervisor was busy"
LATE_NS = 1_000_000_000  # a look five times a second that is so late was kept from looking
MOST_KEPT = 64


class Attention:
    """Notes each look; a look that comes late was waited for, or nobody wanted it.

    Used by one thread at a time.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._looked_ns = clock()
        self._is_wanted = False
        self._away: deque[tuple[int, int, str]] = deque(maxlen=MOST_KEPT)

    def begin(self) -> None:
        """Note that somebody looks again, after nobody did."""
        self._is_wanted = False

    def look(self) -> None:
        """Note a look."""
        now_ns = self._clock()
        if now_ns > self._looked_ns + LATE_NS:
            why = KERNEL_BUSY if self._is_wanted else NOBODY_LOOKED
            self._away.append((self._looked_ns, now_ns, why))
        self._looked_ns, self._is_wanted = now_ns, True

    def why_none(self, begun_ns: int, done_ns: int, present_ns: int) -> str:
        """Say why nothing is known of a time, of a clock by which it is ``present_ns``.

        The root may be another machine, whose clock is another one.
        """
        ahead_ns = present_ns - self._clock()

        def common(away: tuple[int, int, str]) -> int:
            return min(done_ns, away[1] + ahead_ns) - max(begun_ns, away[0] + ahead_ns)

        longest = max(self._away, key=common, default=None)
        return longest[2] if longest and common(longest) > 0 else SUPERVISOR_BUSY
