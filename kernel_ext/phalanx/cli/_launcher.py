"""One launch from start to exit status: events in, lines and signals out.

It knows the script's events and this process's streams and signals; the ranks are the workspace's.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from phalanx.protocol.scripts import AllEnded, InputCut, NotStarted, Output, RankEnded, Started
from phalanx.workspace import RootGone, Script, ScriptEvent

from ._labels import LabelledLines, rank_label
from ._stdin import InputThread

__all__ = ["Launcher", "exit_code"]

_FDS = {"stdout": 1, "stderr": 2}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TIMED_OUT = 124  # as timeout(1)


class _ToldTwiceError(BaseException):
    """The user insists: leave whatever is being waited for."""


class Launcher:
    """Runs a command on ranks and shows what they say."""

    def __init__(
        self,
        options: argparse.Namespace,
        command: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
    ) -> None:
        self._options = options
        self._command = command
        self._cwd = cwd
        self._env = env
        self._size: int = options.repeat_hosts
        screens = {name: _identity(fd) for name, fd in _FDS.items()}
        self._lines = LabelledLines(_labels(options.label, self._size), screens)
        self._logs: dict[tuple[int, str], BinaryIO] = {}
        self._statuses: dict[int, int] = {}
        self._line_typed = False
        self._signal = 0  # the first that we were sent
        self._timed_out = False

    def run(self) -> int:
        """Start, show, wait; the exit status."""
        try:
            with ExitStack() as stack:
                return self._run(stack)
        except _ToldTwiceError:
            return 128 + self._signal

    def _run(self, stack: ExitStack) -> int:
        self._open_logs(stack)
        script = stack.enter_context(
            Script(
                self._command,
                self._size,
                cwd=self._cwd,
                env=self._env,
                transport=self._options.transport,
                grace_s=self._options.grace,
            )
        )
        self._handle_signals(script, stack)
        reader = InputThread(script.input, lambda: self._on_line_typed(script))
        stack.callback(reader.close)
        self._say_verbose(f"supervisor {script.root_pid}, {' '.join(self._command)}")
        return self._follow(script)

    def _follow(self, script: Script) -> int:
        """Show what happens until all is over."""
        limit = self._options.timeout
        ends_at = None if limit is None else time.monotonic() + limit
        while True:
            event = script.next(self._wait_s(ends_at))
            now = time.monotonic()
            if self._line_typed:
                self._line_typed = False
                self._lines.line_was_typed()
            if isinstance(event, Output):
                self._write(self._lines.feed(event.rank, event.stream, event.data, now))
                if self._logs:
                    self._logs[event.rank, event.stream].write(event.data)
                script.taken(event)
            elif event is not None:
                code = self._on_news(event, script)
                if code is not None:
                    return code
            self._write(self._lines.due(now))
            if ends_at is not None and now >= ends_at:
                ends_at = None
                self._timed_out = True
                self._say(f"the ranks did not end within {limit:g} s and are ended")
                script.signal(signal.SIGTERM)

    def _wait_s(self, ends_at: float | None) -> float | None:
        times = [time_ for time_ in (self._lines.next_due, ends_at) if time_ is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _on_news(self, event: ScriptEvent, script: Script) -> int | None:
        """Handle what is no output; the exit status if this is the end."""
        if isinstance(event, Started):
            for rank, pid in enumerate(event.pids):
                self._say_verbose(f"rank {rank}: process {pid}")
        elif isinstance(event, RankEnded):
            self._statuses[event.rank] = event.status
            for stream in _FDS:
                self._write(self._lines.finish(event.rank, stream))
            self._say_verbose(f"rank {event.rank} {_how(event.status)}")
        elif isinstance(event, InputCut):
            behind = f"{event.nbytes >> 20} MiB"
            self._say(f"rank {event.rank} left {behind} of input unread; its input ends here")
        elif isinstance(event, NotStarted):
            self._say(f"the ranks could not be started: {event.message}")
            return 1
        elif isinstance(event, AllEnded):
            return self._conclude(event)
        elif isinstance(event, RootGone):
            raise script.failure()
        return None

    def _conclude(self, event: AllEnded) -> int:
        if self._signal:
            return 128 + self._signal
        if self._timed_out:
            return TIMED_OUT
        if event.culprit < 0:
            ended = next((status for status in event.statuses if status), 0)
            if ended:  # by a signal, and not by one of ours
                self._say("the ranks were ended by a signal to their supervisor")
            return exit_code(ended)
        status = event.statuses[event.culprit]
        rest = "; the others were ended" if event.is_forced else ""
        self._say(f"rank {event.culprit} {_how(status)}{rest}")
        return exit_code(status)

    # -- streams ------------------------------------------------------------------------------

    def _open_logs(self, stack: ExitStack) -> None:
        folder: Path | None = self._options.log_dir
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self._size):
            for stream in _FDS:
                path = folder / f"rank-{rank}.{stream}"
                self._logs[rank, stream] = stack.enter_context(path.open("wb", buffering=0))

    def _on_line_typed(self, script: Script) -> None:
        self._line_typed = True
        script.wake()

    def _write(self, written: Iterable[tuple[str, bytes]]) -> None:
        for stream, data in written:
            _write_all(_FDS[stream], data)

    def _say(self, text: str) -> None:
        self._write(
            [*self._lines.end_line("stderr"), ("stderr", f"phalanx launch: {text}\n".encode())]
        )

    def _say_verbose(self, text: str) -> None:
        if self._options.verbose:
            self._say(text)

    # -- signals ------------------------------------------------------------------------------

    def _handle_signals(self, script: Script, stack: ExitStack) -> None:
        def on_signal(number: int, _: FrameType | None) -> None:
            script.signal(signal.Signals(number))
            if self._signal and number == signal.SIGINT:
                raise _ToldTwiceError
            self._signal = self._signal or number

        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if previous is not signal.SIG_IGN:  # else nohup or a shell's & wants us to stay
                signal.signal(number, on_signal)
                stack.callback(signal.signal, number, previous)


def _identity(fd: int) -> object:
    """Equal for descriptors that lead to the same file."""
    try:
        found = os.fstat(fd)
    except OSError:
        return fd
    return found.st_dev, found.st_ino


def _labels(kind: str, size: int) -> Callable[[int], bytes]:
    if kind == "none":
        return lambda rank: b""
    if kind == "host":
        host = socket.gethostname()
        return lambda rank: f"[{host} {rank}] ".encode()
    return rank_label(size)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody else has made our terminal non-blocking
            select.select([], [fd], [])


def _how(status: int) -> str:
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
