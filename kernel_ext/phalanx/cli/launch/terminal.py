"""Show labelled lines of ranks on the terminal, and read its input.

The mode of the terminal and the flags of its descriptor stay unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import queue
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO

from phalanx.protocol.os_text import shown

from .lines import BACKGROUND_S, LabelledLines, rank_label

STREAMS = {"stdout": 1, "stderr": 2}
LAUNCHER = -1  # used as a rank: unlabelled lines of the program that started the ranks
_NBYTES = 1 << 16


def _open_log(path: Path) -> IO[bytes]:
    """Open a new, unbuffered file that only this user may read."""

    def open_private(name: str, flags: int) -> int:
        fd = os.open(name, flags, 0o600)
        if stat.S_ISREG(os.fstat(fd).st_mode):  # an old file may have other modes
            with contextlib.suppress(PermissionError):
                os.fchmod(fd, 0o600)
        return fd

    return io.FileIO(path, "w", opener=open_private)


class Screen:
    """Shows whole lines of ranks with labels, on a thread.

    Only the thread waits for readers. It does what the methods ask for in their order.

    Parameters
    ----------
    label : {"rank", "host", "none"}
        Kind of label.
    size : int
        Number of ranks.
    host_of : callable
        Returns the name of a rank's host.
    """

    def __init__(
        self, label: str, size: int, host_of: Callable[[int], str], *, is_verbose: bool
    ) -> None:
        screens = {name: _identity(fd) for name, fd in STREAMS.items()}
        # A terminal that knows no escape sequences is written to as a file is.
        sizes = {
            screens[name]: partial(_drawing_size, fd)
            for name, fd in STREAMS.items()
            if os.isatty(fd) and os.environ.get("TERM") not in (None, "", "dumb")
        }
        self._lines = LabelledLines(_labels(label, size, host_of), screens, sizes)
        self._size = size
        self._is_verbose = is_verbose
        self._logs: dict[tuple[int, str], IO[bytes]] = {}
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def open_logs(self, folder: Path | None, stack: ExitStack) -> None:
        """Also write each rank's output to files in ``folder``."""
        if folder is None:
            return
        # For this user alone; an existing folder keeps its permissions.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for rank in range(self._size):
            for stream in STREAMS:
                file = stack.enter_context(_open_log(folder / f"rank-{rank}.{stream}"))
                self._logs[rank, stream] = file

    def start(self, on_error: Callable[[OSError], None]) -> None:
        """Start the thread.

        ``on_error`` gets the first error, on the event loop; nothing is shown after it.
        """
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._finished = asyncio.Event()
        # A daemon: nothing can end a thread's write to a pipe that nobody reads.
        threading.Thread(target=self._run, name="phalanx-screen", daemon=True).start()

    def feed(self, rank: int, stream: str, data: bytes, then: Callable[[], object]) -> None:
        """Show a rank's output, then call ``then`` on the event loop."""
        self._work.put(partial(self._feed, rank, stream, data))
        self._work.put(partial(self._call, then))

    def finish(self, rank: int) -> None:
        """Show the rest of a rank's output after the rank's last write."""
        self._work.put(partial(self._finish, rank))

    def line_was_typed(self) -> None:
        """End the lines that the user has answered."""
        self._work.put(lambda: self._write(self._lines.line_was_typed()))

    def say(self, text: str) -> None:
        """Print a line of the launcher."""
        self._work.put(partial(self._say, text))

    def say_verbose(self, text: str) -> None:
        """Print a line of the launcher if ``--verbose`` is set."""
        if self._is_verbose:
            self.say(text)

    def abandon(self) -> None:
        """Do not wait in `close`."""
        self._finished.set()

    async def close(self) -> None:
        """Wait until everything is shown."""
        self._work.put(partial(self._call, self._finished.set))
        await self._finished.wait()

    # -- on the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                due = self._lines.next_due
                with contextlib.suppress(queue.Empty):
                    wait_s = None if due is None else max(0.0, due - time.monotonic())
                    self._work.get(timeout=wait_s)()
                self._write(self._lines.due(time.monotonic()))
        except OSError as error:
            self._call(self._on_error, error)
        except ValueError:  # a log file was closed: the launch has ended without us
            pass

    def _call(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _feed(self, rank: int, stream: str, data: bytes) -> None:
        self._write(self._lines.feed(rank, stream, data, time.monotonic()))
        file = self._logs.get((rank, stream))
        if file is None:
            return
        try:
            _write_all(file.fileno(), data)
        except OSError as error:  # the first error ends the file
            del self._logs[rank, stream]
            self._say(f"{file.name}: {error.strerror}; it ends here, and the ranks go on")

    def _finish(self, rank: int) -> None:
        for stream in STREAMS:
            self._write(self._lines.finish(rank, stream))

    def _say(self, text: str) -> None:
        line = f"phalanx launch: {shown(text)}\n".encode()
        self._write(self._lines.say("stderr", line))

    def _write(self, written: Iterable[tuple[str, bytes]]) -> None:
        """Write bytes to our streams."""
        for stream, data in written:
            try:
                _write_all(STREAMS[stream], data)
            except OSError as error:
                name = f"standard {'output' if stream == 'stdout' else 'error'}"
                raise OSError(error.errno, error.strerror, name) from error


def _identity(fd: int) -> object:
    """Return a value that is equal for descriptors of the same file."""
    try:
        found = os.fstat(fd)
    except OSError:
        return fd
    return found.st_dev, found.st_ino


def _drawing_size(fd: int) -> tuple[int, int]:
    """Return a terminal's columns and rows; (0, 0) in the background."""
    if _is_in_background(fd):
        return 0, 0
    try:
        size = os.get_terminal_size(fd)
    except OSError:  # the terminal is gone
        return 0, 0
    return size.columns or 80, size.lines or 24


def _labels(kind: str, size: int, host_of: Callable[[int], str]) -> Callable[[int], bytes]:
    if kind == "none":
        return lambda rank: b""
    by_rank = rank_label(size)

    def label(rank: int) -> bytes:
        if rank == LAUNCHER:
            return b""
        by_host = f"[{host_of(rank)} {rank}] ".encode(errors="surrogateescape")
        return by_host if kind == "host" else by_rank(rank)

    return label


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another process has made our terminal non-blocking
            select.select([], [fd], [])


class InputThread:
    """Reads standard input on a thread and hands it on.

    The end of the input is handed on as b"".

    Parameters
    ----------
    give : callable
        Gets the bytes; may block until they are needed.
    on_line : callable
        Called when a terminal has echoed the end of a typed line.
    """

    def __init__(self, give: Callable[[bytes], None], on_line: Callable[[], None]) -> None:
        self._give = give
        self._on_line = on_line
        # A daemon: nothing can end a thread's read of a terminal.
        threading.Thread(target=self._run, name="phalanx-stdin", daemon=True).start()

    def _run(self) -> None:
        # In the background a read of the terminal would stop us. If SIGTTIN is blocked, it fails.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
        is_terminal = os.isatty(0)
        while True:
            try:
                data = os.read(0, _NBYTES)
            except OSError as error:
                if error.errno == errno.EIO and is_terminal and _is_in_background(0):
                    time.sleep(BACKGROUND_S)
                    continue
                data = b""  # closed, or the terminal is gone
            if is_terminal and data.endswith(b"\n"):
                self._on_line()
            self._give(data)
            if not data:
                return


def _is_in_background(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False
