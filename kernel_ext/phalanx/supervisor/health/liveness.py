"""Find frozen ranks, silent hosts and failed tasks.

`HealthWatch` polls the heartbeats of a host's ranks. `HeartbeatMonitor` and `SilenceTimer` have no
clock of their own: callers pass in what was received and the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..processes.system import is_stopped

if TYPE_CHECKING:
    from ..hosts.local_host import LocalHost

# Four heartbeats (native/shm/heartbeat.hpp). On a busy machine a shorter silence proves nothing,
# unless the kernel reports that the process is stopped.
LEAST_SILENCE_S = 1.0
# One poll adds at most this much silence. A supervisor that was stopped itself, or ran on a
# suspended machine, could not receive heartbeats meanwhile.
MOST_STEP_S = 0.5

log = logging.getLogger(__name__)
# A poll sees the last heartbeat and the end of the limit up to 0.2 s late each, 0.4 s together. The
# promise is 0.5 s.
LOOK_EVERY_S = 0.2


@dataclass
class _Silence:
    """Record a rank's last heartbeat count and the time since its change."""

    beats: int
    lasts_s: float = 0.0


class HeartbeatMonitor:
    """Report ranks without a heartbeat for ``limit_s``, with the reason.

    A silent rank is reported at the limit if the kernel says that its process is stopped, else at
    the limit but not before `LEAST_SILENCE_S`. A rank with count 0 has not joined or has left; it
    is never reported. A rank that resumes its heartbeat counts as healthy again. A computing rank
    keeps its heartbeat, even if foreign code holds the GIL for minutes.

    Parameters
    ----------
    limit_s : float
        The silence limit in seconds.
    is_stopped : callable
        Whether the kernel reports this rank's process as stopped; called for silent ranks only.
    on_frozen : callable
        Called with the rank and the reason in words, at each poll while the rank is silent.
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
        self._looked_s: float | None = None
        self._ranks: dict[int, _Silence] = {}

    def look(self, beats: Mapping[int, int], now_s: float) -> None:
        """Take the heartbeat counts of all watched ranks at time ``now_s``."""
        step_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, MOST_STEP_S)
        self._looked_s = now_s
        known, self._ranks = self._ranks, {}
        for rank, count in beats.items():
            before = known.get(rank)
            is_silent = before is not None and count == before.beats
            lasts_s = before.lasts_s + step_s if is_silent and before is not None else 0.0
            self._ranks[rank] = _Silence(count, lasts_s)
            if count and is_silent and lasts_s >= self._limit_s:
                self._judge(rank, lasts_s)

    def _judge(self, rank: int, lasts_s: float) -> None:
        if self._is_stopped(rank):
            self._on_frozen(rank, f"has been stopped (frozen) for {self._limit_s:g} s")
        elif lasts_s >= LEAST_SILENCE_S:
            limit_s = max(self._limit_s, LEAST_SILENCE_S)
            self._on_frozen(rank, f"has given no sign of life for {limit_s:g} s (frozen)")


def beat_every_s(heartbeat_timeout_s: float) -> float:
    """Return the interval in seconds at which each side sends heartbeats.

    Examples
    --------
    >>> beat_every_s(5.0), beat_every_s(2.0)
    (1.0, 0.5)
    """
    return min(1.0, heartbeat_timeout_s / 4)


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
        self._lasts_s = 0.0

    @property
    def lasts_s(self) -> float:
        """Return the length of the silence, in seconds, at the last poll."""
        return self._lasts_s

    def reset(self) -> None:
        """Record that the other side has sent something."""
        self._lasts_s = 0.0

    def is_over(self, now_s: float) -> bool:
        """Poll; return whether the silence has lasted for the limit."""
        self._lasts_s += min(now_s - self._looked_s, MOST_STEP_S)
        self._looked_s = now_s
        return self._lasts_s >= self._limit_s


class ClockOffset:
    """Estimate another machine's clock offset from the fastest round trips.

    An answer holds the other clock's time at some moment of its round trip. So the error is at
    most half the round trip. Clocks drift apart (100 ppm is a high value), so the error bound of
    an answer grows with the answer's age.

    Examples
    --------
    >>> offset = ClockOffset()
    >>> offset.learn(sent_ns=1_000, came_ns=1_200, theirs_ns=501_100)
    >>> offset.at(1_200)
    (-500000, 100)
    """

    DRIFT = 1e-4

    def __init__(self) -> None:
        self._best: tuple[int, int, int] | None = None  # offset, error bound, time (ns)

    @property
    def is_known(self) -> bool:
        """Whether an answer has been received."""
        return self._best is not None

    def learn(self, *, sent_ns: int, came_ns: int, theirs_ns: int) -> None:
        """Take one answer: time of request, of arrival, and the other's time."""
        half = (came_ns - sent_ns) // 2
        offset = sent_ns + half - theirs_ns
        if self._best is None or half <= self.at(came_ns)[1]:
            self._best = offset, half, came_ns

    def at(self, now_ns: int) -> tuple[int, int]:
        """Return the offset of the other clock and its error bound (ns).

        The offset is added to the other clock's time to get local time.
        """
        if self._best is None:
            return 0, 0
        offset, uncertainty, when = self._best
        return offset, uncertainty + int((now_ns - when) * self.DRIFT)


class LogOnceOnError:
    """Let polls fail: log the first failure and keep polling."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_said = False

    @contextmanager
    def look(self) -> Iterator[None]:
        """Suppress an exception raised inside; log the first one."""
        try:
            yield
        except Exception:
            if not self._is_said:
                self._is_said = True
                log.exception(
                    "%s failed; it goes on, and further failures are not logged", self._what
                )


class TaskSet:
    """Run the tasks of one owner until `cancel`.

    ``on_failed`` is called with the error of a task that fails: its owner cannot go on as before.
    Python 3.10 has no `asyncio.TaskGroup`, which also ends only when its body does.
    """

    def __init__(self, on_failed: Callable[[BaseException], None]) -> None:
        self._on_failed = on_failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, except one that calls this itself."""
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a task of the supervisor failed", exc_info=error)
            self._on_failed(error)


class HealthWatch:
    """Call ``on_frozen(rank, reason)`` for every watched rank without a heartbeat."""

    def __init__(
        self, host: LocalHost, heartbeat_timeout_s: float, on_frozen: Callable[[int, str], None]
    ) -> None:
        self._host = host
        self._freeze = HeartbeatMonitor(
            heartbeat_timeout_s, lambda rank: is_stopped(host.report(rank).pid), on_frozen
        )

    async def run(self, watched: Callable[[], Collection[int]]) -> None:
        """Poll until cancelled; ``watched`` returns the ranks others may wait for."""
        loop, errors = asyncio.get_running_loop(), LogOnceOnError("a look at the ranks' health")
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with errors.look():
                beats = {rank: self._host.report(rank).beats for rank in watched()}
                self._freeze.look(beats, loop.time())
