"""Forward a script's standard streams, with back-pressure both ways.

`InputLog` keeps the input for the ranks of a host, and `InputPipe` writes it to one child.
`ForwardedPipe` reads one child's output.

Flow control: each piece of output has a cost. The receiver acknowledges the cost when it has
processed the piece. A sender waits while `WINDOW_COST` is unacknowledged, so memory is bounded.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterable

from .child import ChildInput, ChildOutput

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


class InputLog:
    """Keep a host's input until its slowest rank has taken it.

    The fastest reader determines how much input is requested, so a rank that does not read does not
    delay the others. A rank that leaves more than ``max_behind`` bytes unread is given up
    (`laggards`).

    Examples
    --------
    >>> log = InputLog([0, 1])
    >>> log.append(b"yes")
    >>> bytes(log.next(0)), log.n_taken
    (b'yes', 0)
    >>> log.advance(0, 3)
    >>> log.next(0), bytes(log.next(1)), log.n_taken
    (None, b'yes', 3)
    """

    def __init__(self, ranks: Iterable[int], max_behind: int = MAX_BEHIND) -> None:
        self._places = dict.fromkeys(ranks, 0)
        self._pieces: deque[tuple[int, bytes]] = deque()  # (offset of the first byte, bytes)
        self._n_bytes = 0
        self.is_ended = False
        self._max_behind = max_behind
        self.n_taken = 0  # bytes taken by the fastest rank

    def append(self, data: bytes) -> None:
        """Add input; empty ``data`` is its end, and later data is ignored."""
        if not data:
            self.is_ended = True
        elif not self.is_ended:
            if self._places:
                self._pieces.append((self._n_bytes, data))
            self._n_bytes += len(data)

    def next(self, rank: int) -> memoryview | None:
        """Return some input that a rank has not got, or None."""
        place = self._places.get(rank, self._n_bytes)
        for start, data in self._pieces:
            if place < start + len(data):
                return memoryview(data)[max(0, place - start) :]
        return None

    def advance(self, rank: int, nbytes: int) -> None:
        self._places[rank] += nbytes
        self.n_taken = max(self.n_taken, self._places[rank])
        self._trim()

    def is_at_end(self, rank: int) -> bool:
        return self.is_ended and self._places.get(rank, self._n_bytes) == self._n_bytes

    def drop(self, rank: int) -> None:
        """Forget a rank that takes no more input."""
        if self._places.pop(rank, None) is not None:
            self._trim()

    def rejoin(self, rank: int) -> None:
        """Have a new process of a rank take part.

        It gets the input that no rank was given yet.
        """
        kept = self._pieces[0][0] if self._pieces else self._n_bytes
        self._places[rank] = max(self.n_taken, kept)
        self._trim()

    def laggards(self) -> list[tuple[int, int]]:
        """Return the ranks to give up, with their unread bytes."""
        unread = {rank: self._n_bytes - place for rank, place in self._places.items()}
        return [(rank, nbytes) for rank, nbytes in unread.items() if nbytes > self._max_behind]

    def _trim(self) -> None:
        slowest = min(self._places.values(), default=self._n_bytes)
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][1]) <= slowest:
            self._pieces.popleft()


class ForwardedPipe(ChildOutput):
    """Output that is forwarded as it arrives; its ``tail`` stays empty.

    Reading stops while the receiver holds output worth `WINDOW_COST` or more. A child that prints
    without end then waits in its own write, instead of filling memory.
    """

    def __init__(self, forward: Callable[[bytes], None]) -> None:
        super().__init__()
        self._forward = forward
        self._in_hand = 0
        self._is_reading = True

    def taken(self, amount: int) -> None:
        """Record that the receiver has handled output worth ``amount``."""
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
        """Forward one piece; return its size, 0 if there is none."""
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

    def _read_rest(self) -> None:
        """Forward the rest, beyond the window.

        At most one capacity of the pipe is read: a descendant of the child may go on writing.
        """
        left = READ_NBYTES if _GETPIPE_SZ is None else fcntl.fcntl(self.read_fd, _GETPIPE_SZ)
        while left > 0 and (nbytes := self._read()):
            left -= nbytes


class InputPipe(ChildInput):
    """A child's standard input, fed from the log that all ranks share.

    ``on_progress`` is called when the child of this rank was given input.
    """

    def __init__(self, log: InputLog, rank: int, on_progress: Callable[[], None]) -> None:
        super().__init__()
        self._log = log
        self._rank = rank
        self._on_progress = on_progress
        self._is_waiting = False

    def feed(self) -> None:
        """Write as much as the child takes now, and the rest later."""
        is_full = False
        while self._write_fd >= 0 and not is_full and (piece := self._log.next(self._rank)):
            try:
                self._log.advance(self._rank, os.write(self._write_fd, piece))
            except BlockingIOError:
                is_full = True
            except OSError:  # the child has closed its input, or ended
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
        if self._write_fd >= 0:  # else a new process may have the rank's place in the log
            self._log.drop(self._rank)
        super().close()
