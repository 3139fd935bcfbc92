"""Ctrl-C as news instead of an exception that can fall between any two steps.

It knows the process's SIGINT, nothing of cells.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["ctrl_c"]


@contextmanager
def ctrl_c(on_ctrl_c: Callable[[], None]) -> Iterator[None]:
    """Call ``on_ctrl_c`` for each SIGINT meanwhile; elsewhere than on the main thread do nothing.

    A KeyboardInterrupt out of the blue could lose an event that was just taken from a queue, and
    with it the end of a cell. The callback runs between two bytecodes: it must be re-entrant (as
    `queue.SimpleQueue.put` is).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: on_ctrl_c())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
