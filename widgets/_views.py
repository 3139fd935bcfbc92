"""Which views of a widget are on some page, in sight or not.

It knows time, nothing of widgets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Views"]

LEASE_S = (
    150.0  # one says every 30 s that it is there; a browser lets a page in the dark only each 60
)


class Views:
    """The views that have spoken, until they take their leave or are not heard of for ``lease_s``.

    A page that was reloaded or closed does not take its leave. While a cell runs a kernel may read
    no message, so that is not counted. Any thread may call; the lock is for all fields.
    """

    def __init__(
        self, *, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s: dict[str, float] = {}
        self._has_heard = False
        self._cell_began_s: float | None = None

    @property
    def are_there(self) -> bool:
        """Whether a page may be there; before the first word of one nobody knows."""
        with self._lock:
            now_s = self._now()
            self._until_s = {view: until for view, until in self._until_s.items() if until > now_s}
            return bool(self._until_s) or not self._has_heard

    def note(self, view: str) -> None:
        """Note that a view has spoken."""
        with self._lock:
            self._has_heard = True
            self._until_s[view] = self._now() + self._lease_s

    def leave(self, view: str) -> None:
        """Note that a view was closed; with the last one its notebook has forgotten the output."""
        with self._lock:
            self._until_s.pop(view, None)

    def cell_begins(self) -> None:
        """Stand still, as far as views are concerned."""
        with self._lock:
            self._cell_began_s = self._clock()

    def cell_ends(self) -> None:
        """Go on."""
        with self._lock:
            began_s, self._cell_began_s = self._cell_began_s, None
            if began_s is not None:
                lasted_s = self._clock() - began_s
                self._until_s = {view: until + lasted_s for view, until in self._until_s.items()}

    def _now(self) -> float:
        return self._clock() if self._cell_began_s is None else self._cell_began_s
