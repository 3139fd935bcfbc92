"""The file in which a rank notes all that it shows, so that it can be seen again later.

It knows the descriptor of an append-only file that its supervisor reads; nothing of messages.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache

__all__ = ["OutputRecord"]

KEPT_NBYTES = 256 << 20  # the end of what was shown; what lies before it gives its blocks back
_PUNCH_EVERY_NBYTES = 64 << 20
_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # linux/falloc.h


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class OutputRecord:
    """Appends what is shown, from any thread, and says where it ends.

    Its disk space is bounded (where the file system can punch holes: tmpfs, ext4, xfs, btrfs and
    overlays of these). Once a write fails, for want of space, nothing more is noted.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._end = self._begin = os.fstat(fd).st_size
        self._is_broken = False

    def append(self, text: str) -> int | None:
        """Note a piece of text; where it ends, in bytes, or None if it could not be noted."""
        # A forked child has a copy of the lock, which another thread of ours may have held.
        if self._is_broken or os.getpid() != self._pid:
            return None
        data = memoryview(text.encode(errors="replace"))
        with self._lock:
            try:
                while data:
                    n_written = os.write(self._fd, data)
                    self._end += n_written
                    data = data[n_written:]
            except OSError:
                self._is_broken = True
                return None
            self._forget_old()
            return self._end

    def _forget_old(self) -> None:
        if self._end - self._begin < KEPT_NBYTES + _PUNCH_EVERY_NBYTES:
            return
        begin, length = self._begin, self._end - KEPT_NBYTES - self._begin
        self._begin += length
        punch = getattr(_libc(), "fallocate64", None)
        if punch is not None:
            off = ctypes.c_int64
            # Where it cannot be done the file grows, as any log does.
            punch(self._fd, _PUNCH_HOLE | _KEEP_SIZE, off(begin), off(length))
