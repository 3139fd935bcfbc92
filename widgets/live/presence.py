"""Call a function a few times a second while views are visible."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

INTERVAL_S = 0.2  # five times a second is enough for numbers that a person reads
POLL_LEASE_S = 6.0  # a visible view sends a message every 2 s; three may be lost
LATE_S = 1.5  # a tick later than this means that the process was blocked, and views' messages too


class PollTimer:
    """Calls ``tick`` on a thread that exists only while views are visible.

    ``begin`` is called before the first ``tick`` of each such thread.

    A view that sends no message for ``lease_s`` counts as gone. While ``is_busy``, the kernel may
    not read messages; then the lease of a view without messages does not run out. No lease runs out
    while the whole process is blocked, for example by foreign code that holds the GIL.

    The condition's lock guards ``_views``, ``_thread``, ``_checked_s`` and ``_is_closed``. ``tick``
    is called without the lock, by one thread at a time.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        *,
        begin: Callable[[], None] = lambda: None,
        is_busy: Callable[[], bool] = lambda: False,
        interval_s: float = INTERVAL_S,
        lease_s: float = POLL_LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tick = tick
        self._begin = begin
        self._is_busy = is_busy
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._clock = clock
        self._changed = threading.Condition()
        self._views: dict[str, float] = {}  # view -> end of its lease
        self._seen_while_busy: set[str] = set()
        self._thread: threading.Thread | None = None
        self._checked_s = 0.0
        self._is_closed = False

    @property
    def is_ticking(self) -> bool:
        """Whether a view is visible."""
        with self._changed:
            return self._thread is not None

    def look(self, view: str, *, has_sent: bool = True) -> None:
        """Note that a view is visible; the first view starts the thread.

        ``has_sent``: the view itself has sent a message.
        """
        with self._changed:
            if self._is_closed:
                return
            if has_sent and self._is_busy():
                self._seen_while_busy.add(view)
            self._views[view] = self._clock() + self._lease_s
            if self._thread is None:
                self._checked_s = self._clock()
                thread = threading.Thread(target=self._run, name="phalanx-widget", daemon=True)
                thread.start()  # fails where the limit of threads is reached
                self._thread = thread

    def leave(self, view: str) -> None:
        """Note that a view is no longer visible."""
        with self._changed:
            self._forget(view)
            self._changed.notify()

    def close(self) -> None:
        """End the thread after its current tick; idempotent."""
        with self._changed:
            self._is_closed = True
            self._views.clear()
            self._seen_while_busy.clear()
            self._changed.notify()

    def _forget(self, view: str) -> None:
        self._views.pop(view, None)
        self._seen_while_busy.discard(view)

    def _has_views(self) -> bool:
        now_s, is_busy = self._clock(), self._is_busy()
        late_s = now_s - self._checked_s - self._interval_s
        self._checked_s = now_s
        if late_s > LATE_S:
            self._views = {view: until_s + late_s for view, until_s in self._views.items()}
        for view, until_s in [*self._views.items()]:
            if is_busy and view not in self._seen_while_busy:
                self._views[view] = max(now_s + self._lease_s, until_s)
            elif until_s <= now_s:
                self._forget(view)
        return bool(self._views)

    def _run(self) -> None:
        self._begin()
        while True:
            with self._changed:
                if not self._has_views():
                    self._thread = None
                    return
            started_s = self._clock()
            try:
                self._tick()
            except Exception:
                # The thread must go on: the next tick may succeed.
                log.exception("a widget could not be brought up to date")
            left_s = started_s + self._interval_s - self._clock()
            with self._changed:
                if left_s > 0 and self._views:
                    self._changed.wait_for(lambda: not self._views, left_s)
