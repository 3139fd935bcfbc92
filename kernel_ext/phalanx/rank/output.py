"""Capture, record and limit a rank's output.

`DescriptorCapture` reads a pipe, `OutputRecord` writes the file that the supervisor reads, and
`OutputThrottle` slows a rank that prints faster than the client draws. `publish_sweep` and
`publish_links` measure, and display the results for the client.
"""

from __future__ import annotations

import codecs
import ctypes
import os
import select
import threading
import time
from collections.abc import Callable
from functools import cache

import msgspec
from IPython.display import display

from phalanx.distributed.bench import limits_of_ranks, measure_links, sizes_between, sweep
from phalanx.distributed.bootstrap.init import init
from phalanx.protocol import (
    LIMITS_MIME,
    LINKS_DONE_MIME,
    LINKS_MIME,
    MEASUREMENT_MIME,
    OUTPUT_GAP,
    PublishSweep,
)

KEPT_NBYTES = 256 << 20  # the newest output; the blocks of older output are freed
_PUNCH_EVERY_NBYTES = 64 << 20
# Bytes that a rank may have sent and no client has drawn. Four ranks that print faster than a
# notebook draws cost the notebook 16 MiB; between 256 KiB and 4 MiB the output came equally fast.
WINDOW_NBYTES = 4 << 20

# After so long without an ack of a client, a rank prints on: the client may be stopped, or gone.
PATIENCE_S = 5.0


class DescriptorCapture:
    """Read a pipe on a dedicated thread, and at once in `drain`.

    One lock makes reading and writing on one step: when `drain` returns, all bytes that were
    written to the pipe before the call have been passed on, by this thread or by the other. The
    lock is reentrant, because a signal handler that prints may run in the middle of a drain on the
    same thread.
    """

    def __init__(self, read_fd: int, write: Callable[[str], object]) -> None:
        self._fd = read_fd
        self._write = write
        self._lock = threading.RLock()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        os.set_blocking(read_fd, False)
        threading.Thread(target=self._run, name=f"output-{read_fd}", daemon=True).start()

    def drain(self) -> bool:
        """Pass on all bytes written so far; False after the pipe's end."""
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
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while True:
            poller.poll()
            if not self.drain():
                return


_PUNCH_HOLE, _KEEP_SIZE = 2, 1  # linux/falloc.h


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class OutputRecord:
    """Append a rank's output to a file, from any thread.

    The disk space is bounded if the file system can punch holes (tmpfs, ext4, xfs, btrfs and
    overlays of these). A write that fails for lack of space leaves `OUTPUT_GAP`: a hole, which
    needs no space. The next append tries to write again.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._end = self._begin = os.fstat(fd).st_size
        self._has_gap = False  # the file ends with a gap

    def append(self, text: str) -> int | None:
        """Append text; return the file's length in bytes, None on failure."""
        # A forked child has a copy of the lock, which another thread may have held at the fork.
        if os.getpid() != self._pid:
            return None
        # Zero bytes mark a gap, so output must not have any.
        data = memoryview(text.replace("\0", "␀").encode(errors="replace"))
        with self._lock:
            try:
                while data:
                    n_written = os.write(self._fd, data)
                    self._end += n_written
                    self._has_gap = False
                    data = data[n_written:]
            except OSError:
                self._leave_gap()
                return None
            self._forget_old()
            return self._end

    def _leave_gap(self) -> None:
        if self._has_gap:
            return
        try:
            os.ftruncate(self._fd, self._end + len(OUTPUT_GAP))
        except OSError:
            return  # the next write that fails tries again
        self._end += len(OUTPUT_GAP)
        self._has_gap = True

    def _forget_old(self) -> None:
        if self._end - self._begin < KEPT_NBYTES + _PUNCH_EVERY_NBYTES:
            return
        begin, length = self._begin, self._end - KEPT_NBYTES - self._begin
        self._begin += length
        punch = getattr(_libc(), "fallocate64", None)
        if punch is not None:
            off = ctypes.c_int64
            # If the file system cannot punch holes the file grows, as any log does.
            punch(self._fd, _PUNCH_HOLE | _KEEP_SIZE, off(begin), off(length))


class OutputThrottle:
    """Make printing threads wait while the client has too much to draw.

    The throttle is off outside of cells, and in a cell when the client acknowledges nothing for
    `PATIENCE_S`. The thread that receives the client's acks must never wait (`never_in`), nor the
    thread that sends the output.

    Examples
    --------
    >>> window = OutputThrottle()
    >>> window.begin()
    >>> window.add(100)
    100
    >>> window.wait()  # at once: there is space
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._news = threading.Condition()
        self._pid = os.getpid()
        self._never: set[int] = set()
        self._sent = 0
        self._drawn = 0
        self._is_limited = False

    def never_in(self, *threads: int | None) -> None:
        """Exempt these threads, by ident, from waiting."""
        self._never.update(ident for ident in threads if ident is not None)

    def begin(self) -> None:
        """Begin a cell."""
        with self._news:
            self._drawn = self._sent
            self._is_limited = True

    def end(self) -> None:
        """End a cell; waiting threads go on."""
        with self._news:
            self._is_limited = False
            self._news.notify_all()

    def add(self, nbytes: int) -> int:
        """Count sent bytes; return the total."""
        if os.getpid() != self._pid:  # a forked child has a copy of the lock
            return self._sent
        with self._news:
            self._sent += nbytes
            return self._sent

    def on_drawn(self, sent: int) -> None:
        """Take the client's ack that all bytes up to ``sent`` are drawn."""
        with self._news:
            self._drawn = max(self._drawn, min(sent, self._sent))
            self._is_limited = True
            self._news.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether more than `WINDOW_NBYTES` are sent and not drawn."""
        return self._is_limited and self._sent - self._drawn > WINDOW_NBYTES

    def wait(self) -> None:
        """Wait until there is space.

        The wait ends on an interrupt, or after `PATIENCE_S` without an ack.
        """
        if not self.is_full or threading.get_ident() in self._never or os.getpid() != self._pid:
            return
        with self._news:
            drawn, until_s = self._drawn, self._clock() + PATIENCE_S
            while self.is_full:
                left_s = until_s - self._clock()
                if left_s <= 0:
                    self._is_limited = False
                    self._news.notify_all()
                    return
                self._news.wait(left_s)
                if self._drawn != drawn:
                    drawn, until_s = self._drawn, self._clock() + PATIENCE_S


_TELL_S = 0.25  # the widget's refresh interval


def publish_sweep(task: PublishSweep) -> None:
    """Sweep with all ranks; rank 0 publishes each measurement."""
    is_first = init().rank() == 0
    sizes = sizes_between(task.begin, task.end, task.factor)
    # Bad options fail here, before the limits are measured.
    measurements = sweep(task.op, sizes, dtype=task.dtype, iterations=task.iterations)
    if task.with_limits:
        limits = limits_of_ranks()
        if is_first:
            display({LIMITS_MIME: msgspec.to_builtins(limits)}, raw=True)
    for measurement in measurements:
        if is_first:
            display({MEASUREMENT_MIME: msgspec.to_builtins(measurement)}, raw=True)


def publish_links() -> None:
    """Measure all links between ranks; rank 0 publishes progress and result."""
    is_first = init().rank() == 0
    tell_at_s = time.monotonic() + _TELL_S

    def tell(n_done: int) -> None:
        nonlocal tell_at_s
        if time.monotonic() >= tell_at_s:
            display({LINKS_DONE_MIME: {"n_done": n_done}}, raw=True)
            tell_at_s = time.monotonic() + _TELL_S

    found = measure_links(progress=tell if is_first else None)
    if is_first:
        display({LINKS_MIME: msgspec.to_builtins(found)}, raw=True)
