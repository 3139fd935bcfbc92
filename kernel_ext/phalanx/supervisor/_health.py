"""Looking after the ranks of a host: who is frozen, and whom the kernel killed for memory.

It joins a host, the clock and the pure watches; what follows from what they find is its user's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from ._freeze import FreezeWatch
from ._host import HostSupervisor
from ._steady import Steady
from ._system import is_stopped

__all__ = ["HealthWatch"]

# A heart's last beat is seen at the next look, and so is the end of the limit: with two of these
# a freeze is known 0.4 s beyond the limit at the latest. The promise is half a second.
LOOK_EVERY_S = 0.2
LOOKS_PER_COUNT = 5  # of the kernel's counts, which only narrow down what a death may be due to


class HealthWatch:
    """Calls ``on_frozen(rank, reason)`` for every watched rank that gives no sign of life."""

    def __init__(
        self, host: HostSupervisor, silence_s: float, on_frozen: Callable[[int, str], None]
    ) -> None:
        self._host = host
        self._freeze = FreezeWatch(silence_s, lambda rank: is_stopped(host.pid(rank)), on_frozen)

    async def run(self, watched: Callable[[], Collection[int]]) -> None:
        """Look until cancelled; ``watched`` are the ranks that others may wait for now."""
        loop, looks, steady = asyncio.get_running_loop(), 0, Steady("a look at the ranks' health")
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            looks += 1
            with steady.look():
                self._freeze.look({rank: self._host.beats(rank) for rank in watched()}, loop.time())
                if looks % LOOKS_PER_COUNT == 0:
                    self._host.look_at_memory()
