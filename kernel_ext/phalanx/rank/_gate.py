"""Which cell this rank runs, and stopping exactly that one.

It knows a cell's name and the process's SIGINT; nothing of kernels or messages.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CellGate", "uninterrupted"]

# Interrupts a wait and does nothing else: to Python code it is nothing, and programs that are
# started from here ignore it unless they ask for it.
NUDGE = signal.SIGURG


class CellGate:
    """Delivers an interrupt to the cell it was meant for: once, and never to another.

    An interrupt may come before the cell has begun (it waits in the shell's queue) or after it
    has ended. The main thread calls `begin` and `end`, any other thread `interrupt`; one lock
    makes "is it running?" and the signal one step. The caller of `end` must have taken SIGINT
    off Python's default handler first, so that a signal sent just before harms no one.

    A signal that comes between the interpreter's last look for signals and a wait in C (the main
    thread gives up the GIL there, which lets our thread run: it is likely, not rare) is noted, but
    ends no wait: `time.sleep(60)` sleeps on. So the main thread is nudged until it has looked.

    Made on the main thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._main_thread = threading.main_thread().ident or 0
        self._running: str | None = None
        self._stopped: set[str] = set()
        self._is_sent = False  # SIGINT, to the cell that runs
        self._has_looked = True  # the main thread, for signals, since then
        self._runs_code = False
        signal.signal(NUDGE, self._on_nudge)

    def _on_nudge(self, number: int, frame: object) -> None:
        # Python's handlers run by number: SIGINT's, a smaller one, has run before.
        self._has_looked = True

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
            self._is_sent = self._runs_code = False
            was_stopped = cell in self._stopped
            self._stopped.clear()
        if was_stopped:
            raise KeyboardInterrupt

    def begin_code(self) -> None:
        """Go on to the user's code; only the first call in a cell counts.

        If the cell was interrupted since it began, something that ran before the code (IPython's
        callbacks do) has swallowed that: it is interrupted anew.
        """
        with self._lock:
            is_lost = self._is_sent and not self._runs_code
            self._runs_code = True
        if is_lost:
            signal.raise_signal(signal.SIGINT)

    def end(self) -> None:
        """Leave the cell."""
        with self._lock:
            self._running = None

    def interrupt(self, cell: str) -> None:
        """Raise KeyboardInterrupt in the cell: now if it runs, when it begins if it has not."""
        with self._lock:
            if self._running == cell:
                self._is_sent, self._has_looked = True, False
                # To that thread and no other: only then do its waits in C end at once.
                signal.pthread_kill(self._main_thread, signal.SIGINT)
            else:
                self._stopped.add(cell)

    def nudge(self, cell: str) -> bool:
        """End the wait that the main thread may have begun after `interrupt`, unseen by it.

        Returns
        -------
        bool
            Whether to call this again in a moment: it has not looked for signals yet.
        """
        with self._lock:
            if self._running != cell or self._has_looked:
                return False
            signal.pthread_kill(self._main_thread, NUDGE)
            return True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let no interrupt come here; one that comes meanwhile is lost.

    For what is shown of a cell that has failed: where one rank was stopped in an operation the
    others fail, and each is stopped itself while it shows that. IPython would swallow the stop
    there as well, and print that it did.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # it had come a moment before
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
