"""What this process writes to its descriptors 1 and 2 past Python: C, subprocesses, crashes.

It knows a pipe's reading end and a function that takes text.
"""

from __future__ import annotations

import codecs
import os
import select
import threading
from collections.abc import Callable

from phalanx.distributed import take_stack_signals

__all__ = ["DescriptorCapture"]


class DescriptorCapture:
    """Reads a pipe on a thread of its own, and at once for whoever calls `drain`.

    One lock makes reading and handing on one step: when `drain` returns, everything that was
    written before it was called has been handed on, by this thread or by the other. A signal
    handler that prints may come in the middle of it, on the same thread.
    """

    def __init__(self, read_fd: int, write: Callable[[str], object]) -> None:
        self._fd = read_fd
        self._write = write
        self._lock = threading.RLock()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        os.set_blocking(read_fd, False)
        threading.Thread(target=self._run, name=f"output-{read_fd}", daemon=True).start()

    def drain(self) -> bool:
        """Hand on what was written so far; False once nothing can come any more."""
        with self._lock:
            while True:
                try:
                    data = os.read(self._fd, 1 << 16)
                except BlockingIOError:
                    return True
                if not data:
                    return False
                self._write(self._decoder.decode(data))

    def _run(self) -> None:
        take_stack_signals()  # Python's poll goes on after a signal
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while True:
            poller.poll()
            if not self.drain():
                return
