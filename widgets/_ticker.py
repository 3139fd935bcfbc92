"""Calls a function a few times a second while somebody looks, and has no thread otherwise.

It knows time and threads, nothing of widgets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Ticker"]

INTERVAL_S = 0.2  # five times a second is as often as an eye needs a number
LEASE_S = 6.0  # a view says every 2 s that it is looked at; three may be lost
LATE_S = 1.5  # a tick that is so late was kept back, and so were the messages of views


class Ticker:
    """Calls ``tick`` on a thread of its own, which lives only while there is a view.

    ``begin`` is called before the first ``tick`` of those.

    A view that is not heard of for ``lease_s`` is gone. While ``is_busy`` it may be there and
    unheard, where the kernel reads no messages then: the lease of a view that has not been heard
    of at such a time does not run out. No lease does while all of this process stands still, as
    where foreign code keeps the interpreter.

    ``_views``, ``_thread``, ``_checked_s`` and ``_is_closed`` belong to the condition's lock; ``tick``
    is called without it, by one thread at a time.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        *,
        begin: Callable[[], None] = lambda: None,
        is_busy: Callable[[], bool] = lambda: False,
        interval_s: float = INTERVAL_S,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tick = tick
        self._begin = begin
        self._is_busy = is_busy
        self._interval_s = interval_s
        self._lease_s = lease_s
        self._clock = clock
        self._changed = threading.Condition()
        self._views: dict[str, float] = {}  # when its lease ends
        self._heard_while_busy: set[str] = set()
        self._thread: threading.Thread | None = None
        self._checked_s = 0.0
        self._is_closed = False

    @property
    def is_ticking(self) -> bool:
        """Whether somebody looks."""
        with self._changed:
            return self._thread is not None

    def look(self, view: str, *, is_heard: bool = True) -> None:
        """Note that a view is looked at; the first one starts the thread.

        ``is_heard``: a message of the view says so.
        """
        with self._changed:
            if self._is_closed:
                return
            if is_heard and self._is_busy():
                self._heard_while_busy.add(view)
            self._views[view] = self._clock() + self._lease_s
            if self._thread is None:
                self._checked_s = self._clock()
                self._thread = threading.Thread(
                    target=self._run, name="phalanx-widget", daemon=True
                )
                self._thread.start()

    def leave(self, view: str) -> None:
        """Note that a view is out of sight."""
        with self._changed:
            self._forget(view)
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the tick it is in; idempotent."""
        with self._changed:
            self._is_closed = True
            self._views.clear()
            self._heard_while_busy.clear()
            self._changed.notify()

    def _forget(self, view: str) -> None:
        self._views.pop(view, None)
        self._heard_while_busy.discard(view)

    def _has_views(self) -> bool:
        now_s, is_busy = self._clock(), self._is_busy()
        late_s = now_s - self._checked_s - self._interval_s
        self._checked_s = now_s
        if late_s > LATE_S:
            self._views = {view: until_s + late_s for view, until_s in self._views.items()}
        for view, until_s in [*self._views.items()]:
            if is_busy and view not in self._heard_while_busy:
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
            self._tick()
            left_s = started_s + self._interval_s - self._clock()
            with self._changed:
                if left_s > 0 and self._views:
                    self._changed.wait_for(lambda: not self._views, left_s)
