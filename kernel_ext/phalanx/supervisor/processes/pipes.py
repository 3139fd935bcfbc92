"""Read and write the standard streams of children, with back-pressure both ways.

`ChildOutput` reads one child's output, and `ChildInput` writes its input. `SharedInput` gives the same
input to several children.

Flow control: each piece of output has a cost. The receiver acknowledges the cost when it has
processed the piece. A sender waits while `WINDOW_COST` is unacknowledged, so memory is bounded.
"""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
from collections import deque
from collections.abc import Callable

TAIL_CHARACTERS = 16_384  # kept to explain a death

WINDOW_COST = 256 << 10  # four pipes full: enough to keep a reader and a writer busy at once
_MESSAGE_COST = 256  # about the overhead of a message, so that tiny messages count too

# Most input bytes kept for a rank that does not read while another does; all ranks share one copy.
# No more than a window of them waits for the fastest rank, which may be on another host.
MAX_BEHIND = (64 << 20) + WINDOW_COST

READ_NBYTES = 1 << 16  # capacity of a pipe on Linux
_GETPIPE_SZ = getattr(fcntl, "F_GETPIPE_SZ", None)  # in Python since 3.10, but not on every system


def cost(data: bytes) -> int:
    """Return the cost of a piece in a window of `WINDOW_COST`.

    Examples
    --------
    >>> cost(b"") < cost(b"x") < WINDOW_COST
    True
    """
    return len(data) + _MESSAGE_COST


class ChildOutput:
    """A pipe that a child writes to, and that this process reads.

    Each piece goes to ``forward``. Reading stops while the receiver holds output worth `WINDOW_COST`
    or more. A child that prints without end then waits in its own write, instead of filling memory.
    Without ``forward`` the last output is kept in ``tail``.

    When a rank's kernel is up, the rank reads its own output, to send it with its cells: it inherits
    the reading end as well. `release` leaves the reading to the rank. When the rank dies, `finish`
    reads the output that the rank had not read.

    ``is_over``: the pipe's end was read, or the pipe was closed.
    """

    def __init__(self, forward: Callable[[bytes], None] | None = None) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.tail = ""
        self.is_over = False
        self._forward = forward
        self._in_hand = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        os.set_blocking(self.read_fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.read_fd, self._read)

    def _read(self) -> int:
        """Read one piece; return its size, 0 if there is none."""
        try:
            data = os.read(self.read_fd, READ_NBYTES)
        except BlockingIOError:
            return 0
        self.is_over = not data
        if self._forward is None:
            self.tail = (self.tail + self._decoder.decode(data))[-TAIL_CHARACTERS:]
        elif data:
            self._in_hand += cost(data)
            self._forward(data)
        if self.is_over or self._in_hand >= WINDOW_COST:
            self._loop.remove_reader(self.read_fd)
        return len(data)

    def taken(self, amount: int) -> None:
        """Record that the receiver has handled output worth ``amount``."""
        self._in_hand = max(0, self._in_hand - amount)
        if not self.is_over and self._in_hand < WINDOW_COST:
            self._loop.add_reader(self.read_fd, self._read)

    def child_started(self) -> None:
        """Close our copy of the child's end."""
        os.close(self.write_fd)
        self.write_fd = -1

    def release(self) -> None:
        """Leave the reading to the child; drop what was read so far."""
        if self.read_fd >= 0:  # else the rank died after its message that it was up
            self._loop.remove_reader(self.read_fd)
            self.tail = ""

    def finish(self) -> None:
        """Read what the child has left, beyond the window, and close; idempotent.

        At most one capacity of the pipe is read: a descendant of the child may go on writing.
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


class ChildInput:
    """A pipe that a child reads from, and that this process writes.

    ``n_taken`` counts the bytes that the child was given, and ``n_waiting`` those that wait until it
    takes them. ``on_taken`` is called when it was given some, or has closed its end.
    """

    def __init__(self, on_taken: Callable[[], None] = lambda: None) -> None:
        self.n_taken = self.n_waiting = 0
        self._on_taken = on_taken
        self._pieces: deque[memoryview] = deque()
        self._is_ending = False
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._loop = asyncio.get_running_loop()

    @property
    def is_open(self) -> bool:
        return self._write_fd >= 0

    def child_started(self) -> None:
        """Close our copy of the child's end."""
        os.close(self.read_fd)
        self.read_fd = -1

    def write(self, data: bytes) -> None:
        """Give input to the child, now or later; empty ``data`` ends it."""
        if self.is_open:
            if data:
                self._pieces.append(memoryview(data))
                self.n_waiting += len(data)
            else:
                self._is_ending = True
            self._write()

    def _write(self) -> None:
        """Write as much as the child takes now, and the rest later."""
        n_before = self.n_taken
        try:
            while self._pieces:
                nbytes = os.write(self._write_fd, self._pieces[0])
                self.n_taken += nbytes
                self.n_waiting -= nbytes
                self._pieces[0] = self._pieces[0][nbytes:]
                if not self._pieces[0]:
                    self._pieces.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._write_fd, self._write)
        except OSError:  # the child has closed its input, or ended
            self.end()
        else:
            self._loop.remove_writer(self._write_fd)
            if self._is_ending:
                self.end()
        if self.n_taken > n_before or not self.is_open:
            self._on_taken()

    def end(self) -> None:
        """End the child's input now; idempotent."""
        if self.is_open:
            self._loop.remove_writer(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1
            self._pieces.clear()
            self.n_waiting = 0

    def close(self) -> None:
        """Close both ends; idempotent."""
        self.end()
        if self.read_fd >= 0:
            self.child_started()


class SharedInput:
    """Give the same input to the ranks of a host.

    ``on_taken`` gets the bytes that the fastest rank was given so far: it determines how much input
    is requested, so a rank that does not read does not delay the others. The input of a rank that
    leaves more than ``max_behind`` bytes unread ends, and ``on_cut`` gets the rank and these bytes.
    """

    def __init__(
        self,
        on_taken: Callable[[int], None],
        on_cut: Callable[[int, int], None],
        max_behind: int = MAX_BEHIND,
    ) -> None:
        self._on_taken = on_taken
        self._on_cut = on_cut
        self._max_behind = max_behind
        self._pipes: dict[int, ChildInput] = {}
        self._n_written = self._n_taken = 0
        self._is_ended = False
        # Input that no rank was given, and where it ends; none if no rank has input.
        self._new: deque[tuple[int, bytes]] = deque()

    def open(self, rank: int) -> ChildInput:
        """Make the input of a rank's new process.

        The process gets what no rank was given.
        """
        pipe = self._pipes[rank] = ChildInput(self._update)
        unread = b"".join(piece[self._n_taken - end :] for end, piece in self._new)
        pipe.n_taken = self._n_written - len(unread)
        for piece in (*([unread] if unread else []), *([b""] if self._is_ended else [])):
            pipe.write(piece)
        return pipe

    def write(self, data: bytes) -> None:
        """Give input to all ranks; empty ``data`` ends it."""
        if self._is_ended:
            return
        self._is_ended = not data
        self._n_written += len(data)
        self._new.append((self._n_written, data))
        for rank, pipe in self._pipes.items():
            pipe.write(data)
            if pipe.n_waiting > self._max_behind:
                self._on_cut(rank, pipe.n_waiting)
                pipe.end()
        self._update()

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()

    def _update(self) -> None:
        n_taken = max((pipe.n_taken for pipe in self._pipes.values()), default=0)
        if n_taken > self._n_taken:
            self._n_taken = n_taken
            self._on_taken(n_taken)
        is_for_none = not any(pipe.is_open for pipe in self._pipes.values())
        while self._new and (is_for_none or self._new[0][0] <= self._n_taken):
            self._new.popleft()
