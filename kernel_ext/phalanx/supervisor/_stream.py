"""``sys.stdout`` and ``sys.stderr`` of a rank: ipykernel's, mended for what cells print.

It knows ipykernel's stream; descriptors and messages are others'.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread, OutStream

from phalanx.rank import BytesToText, DescriptorCapture, escape_surrogates

__all__ = ["Stream"]

# Characters of one message: a long text goes in pieces, each sent before the next is taken, so
# that a line of 100 MB needs its own memory and not that of four copies (of 4 bytes a character).
PIECE = 1 << 20


class Stream(OutStream):  # type: ignore[misc]
    """ipykernel's stream, without its own capture: that loses what comes at a cell's end."""

    def __init__(self, session: Any, pub_thread: Any, name: str) -> None:
        super().__init__(session, pub_thread, name, watchfd=False)
        _need_no_descriptors(self.pub_thread)
        self.buffer = BytesToText(self)
        self._capture: DescriptorCapture | None = None
        self._n_unsent = 0  # about: threads may lose a count, which only delays a flush

    def fileno(self) -> int:
        """Return the descriptor that a subprocess may write to."""
        return 2 if self.name == "stderr" else 1

    def capture(self, read_fd: int) -> DescriptorCapture:
        """Take what comes through this pipe as well, in the order it was written."""
        self._capture = DescriptorCapture(read_fd, self._take)
        return self._capture

    def write(self, string: Any) -> int | None:
        """Write text, any text, of any length."""
        # First what was written past Python before this. Not where the output thread says
        # something, for which a drain may wait, and not in a forked child: the pipe is ours.
        is_sender = threading.current_thread() is getattr(self.pub_thread, "thread", None)
        if self._capture is not None and not is_sender and self._is_master_process():
            self._capture.drain()
        return self._take(string)

    def _take(self, string: Any) -> int | None:
        if not isinstance(string, str):
            refused: int | None = super().write(string)  # it raises
            return refused
        text = escape_surrogates(string)
        for begin in range(0, len(text), PIECE):
            super().write(text[begin : begin + PIECE])
            self._n_unsent += min(PIECE, len(text) - begin)
            if self._n_unsent >= PIECE:
                self.flush()
        return len(string)

    def flush(self) -> None:
        """Send what was written."""
        self._n_unsent = 0
        super().flush()


def _need_no_descriptors(thread: IOPubThread) -> None:
    """Have output go out where the user's cell has taken the last descriptor.

    ipykernel opens a socket for each thread that prints, and pyzmq one for the first message that
    is long. Without them threads ended, also ours that reads descriptor 1, so that what was written
    there next filled the pipe and waited for ever; and half of a message was sent.
    """

    def schedule(task: Callable[[], Any]) -> None:
        if thread.thread.is_alive():
            thread.io_loop.add_callback(task)
        else:
            task()

    thread.schedule = schedule
    zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)  # as a long message: what it needs stays
