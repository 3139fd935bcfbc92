"""Show labelled lines of ranks on the terminal, and read its input.

`LabelledLines` works on bytes and decodes nothing, so no character is cut or lost. The mode of the
terminal and the flags of its descriptor stay unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PARTIAL_LINE_AFTER_S = 0.1  # an unfinished line is shown after this time, as it may be a prompt
MAX_LINE = 1 << 20  # bytes kept of an unfinished line; longer lines are shown in parts

_Source = tuple[int, str]  # (rank, "stdout" or "stderr")
_Written = list[tuple[str, bytes]]
# A line that is rewritten from its start (carriage return) gets its label again.
_BEFORE_LABEL = re.compile(rb"\n(?=.)|\r(?=[^\r\n])", re.DOTALL)

STREAMS = {"stdout": 1, "stderr": 2}
LAUNCHER = -1  # used as a rank: unlabelled lines of the program that started the ranks
_NBYTES = 1 << 16
_BACKGROUND_S = 0.5  # poll interval: no signal reports a return to the foreground (`fg`)


def rank_label(size: int) -> Callable[[int], bytes]:
    """Return a function that makes labels of equal width from ranks.

    Examples
    --------
    >>> rank_label(12)(3)
    b'[ 3] '
    """
    width = len(str(size - 1))
    return lambda rank: f"[{rank:>{width}}] ".encode()


@dataclass
class _PartialOutput:
    """Output of one rank on one stream since its last whole line.

    ``kept`` has not been shown. ``is_begun``: a part of this line has been shown.
    """

    kept: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    is_begun: bool = False
    ends_with_return: bool = False  # the part already shown
    has_return: bool = False  # the part in `kept`
    shows_at: float | None = None


class LabelledLines:
    r"""Merges the output of all ranks, line by line.

    Parameters
    ----------
    label : callable
        Returns the label of a rank.
    screens : mapping of str to object
        Target of each stream; equal values mean the same screen, where lines must not mix.

    Examples
    --------
    >>> lines = LabelledLines(rank_label(2), {"stdout": 1, "stderr": 1})
    >>> lines.feed(0, "stdout", b"one\ntw", 0.0), lines.feed(1, "stderr", b"(Pdb) ", 0.0)
    ([('stdout', b'[0] one\n')], [])
    >>> lines.feed(0, "stdout", b"o\n", 0.0), lines.due(0.2)
    ([('stdout', b'[0] two\n')], [('stderr', b'[1] (Pdb) ')])
    >>> lines.feed(1, "stderr", b"ok\n", 0.3)
    [('stderr', b'ok\n')]
    """

    def __init__(self, label: Callable[[int], bytes], screens: Mapping[str, object]) -> None:
        self._label = label
        self._screens = screens
        self._unfinished: dict[_Source, _PartialOutput] = {}
        self._open: dict[object, _Source] = {}  # screen -> source of the unfinished line on it

    def feed(self, rank: int, stream: str, data: bytes, now: float) -> _Written:
        """Take a rank's output; return the bytes to write now."""
        line = self._unfinished.setdefault((rank, stream), _PartialOutput())
        end = data.rfind(b"\n") + 1
        written: _Written = []
        if end:
            line.kept.append(data[:end])
            written = self._show(rank, stream, line, b"".join(line.kept))
            line.kept, line.nbytes, line.has_return, line.shows_at = [], 0, False, None
        if end < len(data):
            rest = data[end:]
            line.kept.append(rest)
            line.nbytes += len(rest)
            # A progress bar is redrawn without pause, so the time counts from its first return.
            if line.shows_at is None or not line.has_return:
                line.shows_at = now + PARTIAL_LINE_AFTER_S
            line.has_return = line.has_return or b"\r" in rest
            if line.nbytes >= MAX_LINE:
                written += self._show_part(rank, stream, line)
        return written

    @property
    def next_due(self) -> float | None:
        """Return when `due` has output, if nothing is fed before."""
        times = [t.shows_at for t in self._unfinished.values() if t.shows_at is not None]
        return min(times, default=None)

    def due(self, now: float) -> _Written:
        """Return unfinished lines that have waited `PARTIAL_LINE_AFTER_S`."""
        written: _Written = []
        for (rank, stream), line in self._unfinished.items():
            if line.shows_at is not None and line.shows_at <= now:
                written += self._show_part(rank, stream, line)
        return written

    def finish(self, rank: int, stream: str) -> _Written:
        """Show the rest of a rank's output after the rank's last write."""
        line = self._unfinished.pop((rank, stream), _PartialOutput())
        rest = b"".join(line.kept)
        # Complete a labelled line with a newline; without labels keep the bytes as written.
        if self._label(rank) and (rest or line.is_begun):
            rest += b"\n"
        return self._show(rank, stream, line, rest) if rest else []

    def end_line(self, stream: str) -> _Written:
        """End the open line on the stream's screen, before our own line."""
        opened = self._open.pop(self._screens[stream], None)
        if opened is None:
            return []
        if opened in self._unfinished:
            self._unfinished[opened].is_begun = False
        return [(opened[1], b"\n")]

    def line_was_typed(self) -> None:
        """Note that the terminal echoed a newline: no line is open."""
        for stream in self._screens:
            self.end_line(stream)

    def _show_part(self, rank: int, stream: str, line: _PartialOutput) -> _Written:
        data = b"".join(line.kept)
        end = len(data) - _n_cut(data)
        line.kept = [data[end:]] if end < len(data) else []
        line.nbytes, line.has_return, line.shows_at = len(data) - end, False, None
        return self._show(rank, stream, line, data[:end]) if end else []

    def _show(self, rank: int, stream: str, line: _PartialOutput, data: bytes) -> _Written:
        screen = self._screens[stream]
        source = rank, stream
        label = self._label(rank)
        written = [] if self._open.get(screen) == source else self.end_line(stream)
        if not line.is_begun or (line.ends_with_return and data[:1] not in {b"\n", b"\r"}):
            written.append((stream, label + self._labelled(data, label)))
        else:
            written.append((stream, self._labelled(data, label)))
        line.is_begun = not data.endswith(b"\n")
        line.ends_with_return = data.endswith(b"\r")
        if line.is_begun:
            self._open[screen] = source
        else:
            self._open.pop(screen, None)
        return written

    @staticmethod
    def _labelled(data: bytes, label: bytes) -> bytes:
        """Put the label before each line except the first."""
        if not label:
            return data
        if b"\r" in data:
            return _BEFORE_LABEL.sub(lambda found: found[0] + label, data)
        return data[:-1].replace(b"\n", b"\n" + label) + data[-1:]


def _n_cut(data: bytes) -> int:
    """Return how many last bytes are an incomplete UTF-8 character.

    Examples
    --------
    >>> _n_cut("1 €".encode()), _n_cut("1 €".encode()[:-1])
    (0, 2)
    """
    for n in range(1, min(3, len(data)) + 1):
        byte = data[-n]
        if byte >= 0xC0:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
            return n if n < length else 0
        if byte < 0x80:
            return 0
    return 0


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
    """Shows whole lines of ranks with labels.

    Parameters
    ----------
    label : {"rank", "host", "none"}
        Kind of label.
    hosts : sequence of str
        Name of each rank's host, by rank.
    """

    def __init__(self, label: str, hosts: Sequence[str], *, is_verbose: bool) -> None:
        screens = {name: _identity(fd) for name, fd in STREAMS.items()}
        self.lines = LabelledLines(_labels(label, hosts), screens)
        self._size = len(hosts)
        self._is_verbose = is_verbose
        self._logs: dict[tuple[int, str], IO[bytes]] = {}

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

    def feed(self, rank: int, stream: str, data: bytes, now: float) -> None:
        """Show a rank's output, and write it to the rank's file."""
        self.write(self.lines.feed(rank, stream, data, now))
        if (rank, stream) in self._logs:
            self._log(rank, stream, data)

    def _log(self, rank: int, stream: str, data: bytes) -> None:
        """Write to a rank's file; the first error ends the file."""
        file = self._logs[rank, stream]
        try:
            _write_all(file.fileno(), data)
        except OSError as error:
            del self._logs[rank, stream]
            self.say(f"{file.name}: {error.strerror}; it ends here, and the ranks go on")

    def finish(self, rank: int) -> None:
        """Show the rest of a rank's output after the rank's last write."""
        for stream in STREAMS:
            self.write(self.lines.finish(rank, stream))

    def write(self, written: Iterable[tuple[str, bytes]]) -> None:
        """Write bytes to our streams."""
        for stream, data in written:
            try:
                _write_all(STREAMS[stream], data)
            except OSError as error:
                name = f"standard {'output' if stream == 'stdout' else 'error'}"
                raise OSError(error.errno, error.strerror, name) from error

    def say(self, text: str) -> None:
        """Print a line of the launcher."""
        line = f"phalanx launch: {text}\n".encode()
        self.write([*self.lines.end_line("stderr"), ("stderr", line)])

    def say_verbose(self, text: str) -> None:
        """Print a line of the launcher if ``--verbose`` is set."""
        if self._is_verbose:
            self.say(text)


def _identity(fd: int) -> object:
    """Return a value that is equal for descriptors of the same file."""
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
        except BlockingIOError:  # another process has made our terminal non-blocking
            select.select([], [fd], [])


def exit_code(status: int) -> int:
    """Return a shell's exit code for a status of `subprocess`.

    Examples
    --------
    >>> exit_code(3), exit_code(-9)
    (3, 137)
    """
    return status if status >= 0 else 128 - status


class InputThread:
    """Reads standard input on a thread and hands it on.

        The end of the input is handed on as b"". Make this object on the main thread.

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
        # In the background a read of the terminal would stop us (SIGTTIN). If ignored, the read
        # fails.
        self._previous = signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        # A daemon: nothing can end a thread's read of a terminal.
        threading.Thread(target=self._run, name="phalanx-stdin", daemon=True).start()

    def close(self) -> None:
        """Restore the signal handler; the thread ends with the process."""
        signal.signal(signal.SIGTTIN, self._previous)

    def _run(self) -> None:
        is_terminal = os.isatty(0)
        while True:
            try:
                data = os.read(0, _NBYTES)
            except OSError as error:
                if error.errno == errno.EIO and is_terminal and _is_in_background():
                    time.sleep(_BACKGROUND_S)
                    continue
                data = b""  # closed, or the terminal is gone
            if is_terminal and data.endswith(b"\n"):
                self._on_line()
            self._give(data)
            if not data:
                return


def _is_in_background() -> bool:
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False
