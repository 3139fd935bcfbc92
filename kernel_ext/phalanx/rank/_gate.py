"""Which cell this rank runs, and stopping exactly that one.

It knows a cell's name and the process's SIGINT; nothing of kernels or messages.
"""

from __future__ import annotations

import signal
import threading

__all__ = ["CellGate"]


class CellGate:
    """Delivers an interrupt to the cell it was meant for: once, and never to another.

    An interrupt may come before the cell has begun (it waits in the shell's queue) or after it
    has ended. The main thread calls `begin` and `end`, any other thread `interrupt`; one lock
    makes "is it running?" and the signal one step. The caller of `end` must have taken SIGINT
    off Python's default handler first, so that a signal sent just before harms no one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._main_thread = threading.main_thread().ident or 0
        self._running: str | None = None
        self._stopped: set[str] = set()

    @property
    def running(self) -> str | None:
        """Name of the cell that runs, if one does."""
        return self._running

    def begin(self, cell: str) -> None:
        """Enter the cell.

        Raises
        ------
        KeyboardInterrupt
            It was interrupted before it began.
        """
        with self._lock:
            self._running = cell
            was_stopped = cell in self._stopped
            self._stopped.clear()
        if was_stopped:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Leave the cell."""
        with self._lock:
            self._running = None

    def interrupt(self, cell: str) -> None:
        """Raise KeyboardInterrupt in the cell: now if it runs, when it begins if it has not."""
        with self._lock:
            if self._running == cell:
                # To that thread and no other: only then do its waits in C end at once.
                signal.pthread_kill(self._main_thread, signal.SIGINT)
            else:
                self._stopped.add(cell)
