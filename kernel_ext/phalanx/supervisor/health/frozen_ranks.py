"""Find frozen ranks by their heartbeats, and measure silences.

`watch_heartbeats` polls the heartbeats of a host's ranks. `HeartbeatMonitor` has the rule that names a frozen rank.
`SilenceTimer` is used for hosts as well. Both have no clock of their own: callers pass in the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from ..processes.system import is_stopped
from ..tasks import poll

if TYPE_CHECKING:
    from ..hosts.local_host import LocalHost

# Four heartbeats (native/shm/heartbeat.hpp). On a busy machine a shorter silence proves nothing,
# unless the kernel reports that the process is stopped.
LEAST_SILENCE_S = 1.0
# One poll adds at most this much silence. A supervisor that was stopped itself, or ran on a
# suspended machine, could not receive heartbeats meanwhile.
MOST_STEP_S = 0.5
# A poll sees the last heartbeat and the end of the limit up to 0.2 s late each, 0.4 s together. The
# promise is 0.5 s.
LOOK_EVERY_S = 0.2


class SilenceTimer:
    """Measure how long nothing was received; a local pause counts little.

    As in `HeartbeatMonitor`, each poll adds at most `MOST_STEP_S`: a pause of this process (a
    suspended machine) does not count as silence of the other side.

    Examples
    --------
    >>> silence = SilenceTimer(2.0, now_s=0.0)
    >>> [silence.is_over(now) for now in (0.4, 0.8, 100.0, 100.5, 101.0, 101.5)]
    [False, False, False, False, True, True]
    """

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._looked_s = now_s
        self.lasts_s = 0.0  # at the last poll

    def reset(self) -> None:
        self.lasts_s = 0.0

    def is_over(self, now_s: float) -> bool:
        """Poll; return whether the silence has lasted for the limit."""
        self.lasts_s += min(now_s - self._looked_s, MOST_STEP_S)
        self._looked_s = now_s
        return self.lasts_s >= self._limit_s


class HeartbeatMonitor:
    """Report ranks without a heartbeat for ``limit_s``, with the reason.

    A silent rank is reported at the limit if the kernel says that its process is stopped, else at
    the limit but not before `LEAST_SILENCE_S`. A rank with count 0 has not joined or has left; it
    is never reported. A rank that resumes its heartbeat counts as healthy again. A computing rank
    keeps its heartbeat, even if foreign code holds the GIL for minutes.

    ``is_stopped(rank)`` is asked for silent ranks only. ``on_frozen(rank, reason)`` is called at each
    poll while the rank is silent.
    """

    def __init__(
        self,
        limit_s: float,
        is_stopped: Callable[[int], bool],
        on_frozen: Callable[[int, str], None],
    ) -> None:
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._on_frozen = on_frozen
        self._silences: dict[int, tuple[int, SilenceTimer]] = {}  # by rank, with its count

    def look(self, beats: Mapping[int, int], now_s: float) -> None:
        """Take the heartbeat counts of all watched ranks at time ``now_s``."""
        known, self._silences = self._silences, {}
        for rank, count in beats.items():
            before, silence = known.get(rank) or (-1, SilenceTimer(self._limit_s, now_s))
            is_over = silence.is_over(now_s)
            if count != before:
                silence.reset()
            elif count and is_over:
                self._judge(rank, silence.lasts_s)
            self._silences[rank] = count, silence

    def _judge(self, rank: int, lasts_s: float) -> None:
        if self._is_stopped(rank):
            self._on_frozen(rank, f"has been stopped (frozen) for {self._limit_s:g} s")
        elif lasts_s >= LEAST_SILENCE_S:
            limit_s = max(self._limit_s, LEAST_SILENCE_S)
            self._on_frozen(rank, f"has given no sign of life for {limit_s:g} s (frozen)")


async def watch_heartbeats(
    host: LocalHost,
    heartbeat_timeout_s: float,
    watched: Callable[[], Collection[int]],
    on_frozen: Callable[[int, str], None],
) -> None:
    """Call ``on_frozen(rank, reason)`` for every watched rank without a heartbeat.

    Polls until cancelled; ``watched`` returns the ranks of all hosts that others may wait for.
    """
    loop = asyncio.get_running_loop()
    monitor = HeartbeatMonitor(
        heartbeat_timeout_s, lambda rank: is_stopped(host.report(rank).pid), on_frozen
    )

    async def look() -> None:
        here = set(watched()).intersection(host.ranks)
        monitor.look({rank: host.report(rank).beats for rank in here}, loop.time())

    await poll(LOOK_EVERY_S, "a look at the ranks' health", look)
