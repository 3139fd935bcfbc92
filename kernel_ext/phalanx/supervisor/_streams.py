"""The pipes behind a script's standard streams, with back-pressure both ways.

They know descriptors and the event loop; what the bytes say, and whose they are, is others'.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable

from phalanx.protocol.scripts import WINDOW_COST, cost

from ._input_log import InputLog

__all__ = ["READ_NBYTES", "ForwardedPipe", "InputPipe"]

READ_NBYTES = 1 << 16  # a pipe's capacity on Linux
_GETPIPE_SZ = getattr(fcntl, "F_GETPIPE_SZ", None)  # Python 3.10 has it, not every system


class ForwardedPipe:
    """A child's standard output or error, handed on as it comes.

    Reading stops while the receiver has more than `WINDOW_COST` of it in hand, so a child that
    prints without end waits in its own write instead of filling memory.
    """

    tail = ""  # nothing is kept: the receiver has shown it already

    def __init__(self, forward: Callable[[bytes], None]) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self._forward = forward
        self._in_hand = 0
        self._is_reading = True
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.read_fd, self._on_readable)

    def child_started(self) -> None:
        """Close our writing end: the child has its own now."""
        os.close(self.write_fd)
        self.write_fd = -1

    def release(self) -> None:
        """Nobody else reads this pipe."""

    def taken(self, amount: int) -> None:
        """The receiver is done with this much."""
        self._in_hand = max(0, self._in_hand - amount)
        if not self._is_reading and not self.is_over and self._in_hand < WINDOW_COST:
            self._is_reading = True
            self._loop.add_reader(self.read_fd, self._on_readable)

    def _on_readable(self) -> None:
        self._read()
        if self._in_hand >= WINDOW_COST or self.is_over:
            self._loop.remove_reader(self.read_fd)
            self._is_reading = False

    def _read(self) -> int:
        """Hand on one piece; how much it was, 0 when there is none for now, or ever."""
        try:
            data = os.read(self.read_fd, READ_NBYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.is_over = True
            return 0
        self._in_hand += cost(data)
        self._forward(data)
        return len(data)

    def finish(self) -> None:
        """Hand on what is still in the pipe, whatever the window says, and close; idempotent.

        At most what fits into the pipe: something the child left behind may go on writing.
        """
        if self.read_fd >= 0:
            left = READ_NBYTES if _GETPIPE_SZ is None else fcntl.fcntl(self.read_fd, _GETPIPE_SZ)
            while left > 0 and (nbytes := self._read()):
                left -= nbytes
            self._loop.remove_reader(self.read_fd)
            os.close(self.read_fd)
            self.read_fd = -1
            self.is_over = True
        if self.write_fd >= 0:
            self.child_started()


class InputPipe:
    """A child's standard input, fed from its place in the log that all ranks share.

    Parameters
    ----------
    on_progress : callable
        Called when the child has been given something.
    """

    def __init__(self, log: InputLog, rank: int, on_progress: Callable[[], None]) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._log = log
        self._rank = rank
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._is_waiting = False

    def child_started(self) -> None:
        """Close the reading end: the child has its own now."""
        os.close(self.read_fd)
        self.read_fd = -1

    def feed(self) -> None:
        """Write what the child has not got and will take now; the rest when it takes more."""
        is_full = False
        while self._write_fd >= 0 and not is_full and (piece := self._log.next(self._rank)):
            try:
                self._log.advance(self._rank, os.write(self._write_fd, piece))
            except BlockingIOError:
                is_full = True
            except OSError:  # it has closed its input, or ended
                self.close()
            self._on_progress()
        if self._write_fd < 0:
            return
        if self._log.is_at_end(self._rank):
            self.close()
        elif is_full is not self._is_waiting:
            self._is_waiting = is_full
            if is_full:
                self._loop.add_writer(self._write_fd, self.feed)
            else:
                self._loop.remove_writer(self._write_fd)

    def close(self) -> None:
        """End the child's input; idempotent."""
        if self._write_fd >= 0:
            self._loop.remove_writer(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1
            self._log.drop(self._rank)
        if self.read_fd >= 0:
            self.child_started()
