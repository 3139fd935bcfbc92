"""The pipe behind a child's standard output or error, and the end of what was written to it.

It knows descriptors and the event loop, nothing of who writes.
"""

from __future__ import annotations

import asyncio
import codecs
import os

__all__ = ["OutputPipe"]

TAIL_CHARACTERS = 16_384  # kept to explain a death


class OutputPipe:
    """Both ends of a pipe; the child writes, and we read what nobody else reads.

    A rank reads its own output back once its kernel is up, to send it with its cells (it gets
    the reading end as well): `release` leaves the reading to it. When it dies, what it had not
    read yet, its last words, are still in the pipe: `finish` takes them.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.tail = ""
        self._has_ended = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.read_fd, self._read)

    @property
    def is_over(self) -> bool:
        """Whether nobody holds the writing end any more, as far as was read; or it was closed."""
        return self._has_ended or self.read_fd < 0

    def child_started(self) -> None:
        """Close our writing end: the child has its own now."""
        os.close(self.write_fd)
        self.write_fd = -1

    def release(self) -> None:
        """Stop reading; what was read so far was start-up noise."""
        if self.read_fd < 0:  # it said that it is up, and was gone before that was read
            return
        self._loop.remove_reader(self.read_fd)
        self.tail = ""

    def _read(self) -> bool:
        """Take what there is; False when there is no more for now, or ever."""
        try:
            data = os.read(self.read_fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._has_ended = True
            self._loop.remove_reader(self.read_fd)
            return False
        self.tail = (self.tail + self._decoder.decode(data))[-TAIL_CHARACTERS:]
        return True

    def finish(self) -> None:
        """Take the last words and close; idempotent."""
        if self.read_fd >= 0:
            while self._read():
                pass
            self._loop.remove_reader(self.read_fd)
            os.close(self.read_fd)
            self.read_fd = -1
        if self.write_fd >= 0:
            self.child_started()
