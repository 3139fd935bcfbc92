"""What ranks write, on its way to this process's streams and to log files."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from ._labels import LabelledLines, rank_label

__all__ = ["LAUNCHER", "STREAMS", "Screen", "exit_code", "how_ended"]

STREAMS = {"stdout": 1, "stderr": 2}
LAUNCHER = -1  # in a rank's place: lines of what has started the ranks, without a label


class Screen:
    """Shows the lines of ranks whole and labelled.

    Parameters
    ----------
    label : {"rank", "host", "none"}
        What lines begin with.
    hosts : sequence of str
        By rank, the name of the host where it runs.
    """

    def __init__(self, label: str, hosts: Sequence[str], *, is_verbose: bool) -> None:
        screens = {name: _identity(fd) for name, fd in STREAMS.items()}
        self.lines = LabelledLines(_labels(label, hosts), screens)
        self._size = len(hosts)
        self._is_verbose = is_verbose
        self._logs: dict[tuple[int, str], BinaryIO] = {}

    def open_logs(self, folder: Path | None, stack: ExitStack) -> None:
        """Write each rank's output to files there, too."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self._size):
            for stream in STREAMS:
                path = folder / f"rank-{rank}.{stream}"
                self._logs[rank, stream] = stack.enter_context(path.open("wb", buffering=0))

    def feed(self, rank: int, stream: str, data: bytes, now: float) -> None:
        """Take what a rank wrote."""
        self.write(self.lines.feed(rank, stream, data, now))
        if (rank, stream) in self._logs:
            self._logs[rank, stream].write(data)

    def finish(self, rank: int) -> None:
        """Show the rest of what a rank wrote: it will not write again."""
        for stream in STREAMS:
            self.write(self.lines.finish(rank, stream))

    def write(self, written: Iterable[tuple[str, bytes]]) -> None:
        """Write bytes to our streams."""
        for stream, data in written:
            _write_all(STREAMS[stream], data)

    def say(self, text: str) -> None:
        """Say a line of our own."""
        line = f"phalanx launch: {text}\n".encode()
        self.write([*self.lines.end_line("stderr"), ("stderr", line)])

    def say_verbose(self, text: str) -> None:
        """Say a line that only ``--verbose`` wants."""
        if self._is_verbose:
            self.say(text)


def _identity(fd: int) -> object:
    """Equal for descriptors that lead to the same file."""
    try:
        found = os.fstat(fd)
    except OSError:
        return fd
    return found.st_dev, found.st_ino


def _labels(kind: str, hosts: Sequence[str]) -> Callable[[int], bytes]:
    if kind == "none":
        return lambda rank: b""
    by_rank = rank_label(len(hosts))

    def label(rank: int) -> bytes:
        if rank == LAUNCHER:
            return b""
        return f"[{hosts[rank]} {rank}] ".encode() if kind == "host" else by_rank(rank)

    return label


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody else has made our terminal non-blocking
            select.select([], [fd], [])


def how_ended(status: int) -> str:
    """Words for a status as `subprocess` gives it.

    Examples
    --------
    >>> how_ended(3), how_ended(-9)
    ('exited with status 3', 'killed by signal 9 (SIGKILL)')
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"killed by signal {-status} ({name})"


def exit_code(status: int) -> int:
    """A shell's number for a status as `subprocess` gives it.

    Examples
    --------
    >>> exit_code(3), exit_code(-9)
    (3, 137)
    """
    return status if status >= 0 else 128 - status
