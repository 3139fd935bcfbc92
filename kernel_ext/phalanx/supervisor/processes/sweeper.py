"""Start the process that kills what ranks leave behind.

`Sweeper` starts `sweep_main.py`, tells it which children started and ended, and starts it again if
it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from .child import exit_reason
from .sweep_main import FLAGS, MARK, start_of
from .system import open_pidfd

log = logging.getLogger(__name__)

VARIABLE = MARK.decode().rstrip("=")
STOP_S = 1.0  # a sweep takes milliseconds; a longer one goes on without us
MAX_STARTS = 10  # after so many kills, assume that they are on purpose


class Sweeper:
    """Kill what the supervisor's children leave behind, even after its death.

    Start a child with the variables of `mark` in its environment, then call `started`. The
    socket at ``socket_path``, if any, is removed after the supervisor's death.
    """

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._world = f"{os.getpid()}.{start_of(os.getpid()) or 0}"
        self._loop = asyncio.get_running_loop()
        self._serials = itertools.count(1)
        self._children: dict[int, int] = {}  # pid -> serial
        self._popen: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._n_starts = 0
        self._gone = asyncio.Event()
        self._is_stopping = False

    def mark(self) -> tuple[int, dict[str, str]]:
        """Return a new child's serial number, and the variables for its environment.

        All marks of a world have the same length (`serve_forks`).
        """
        if not self._n_starts:
            self.start()
        serial = next(self._serials)
        return serial, {VARIABLE: f"{self._world}.{serial:09}"}

    def start(self) -> None:
        """Start the process; without this the first `mark` does."""
        self._n_starts += 1
        script = str(Path(__file__).with_name("sweep_main.py"))
        self._popen = subprocess.Popen(
            [sys.executable, *FLAGS, script, self._world, self._socket_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Leave the mark out: a supervisor that was started by a rank of another world is killed
            # with that world, and this process has to sweep afterwards.
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        os.set_blocking(self._popen.stdin.fileno(), False)
        self._pidfd = open_pidfd(self._popen.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        for pid, serial in self._children.items():
            self._say(f"+{pid} {serial:09}")

    def started(self, pid: int, serial: int) -> None:
        self._children[pid] = serial
        self._say(f"+{pid} {serial:09}")

    def gone(self, pid: int) -> None:
        """Kill what a reaped child has left behind."""
        serial = self._children.pop(pid)
        self._say(f"-{pid} {serial:09}")

    def ending(self) -> None:
        """Announce the end of all children.

        What they leave behind is killed after the last one.
        """
        if not self._is_stopping:
            self._say("~")

    def _say(self, line: str) -> None:
        if self._popen is not None and self._popen.stdin is not None:
            # Ignore errors: the process may have been killed (its successor gets all children) or
            # stopped.
            with contextlib.suppress(OSError):
                os.write(self._popen.stdin.fileno(), line.encode() + b"\n")

    def _reap(self) -> None:
        assert self._popen is not None
        status = self._popen.wait()
        self._finish()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._popen = None
        # the process was killed before the end of its work
        if status < 0 and self._n_starts < MAX_STARTS:
            self.start()
            if self._is_stopping:
                self._finish()
            return
        if status:
            log.warning("the process that sweeps up has ended (%s)", exit_reason(status))
        self._gone.set()

    def _finish(self) -> None:
        """Announce the end once, though `stop` and `_reap` both call this."""
        stdin = None if self._popen is None else self._popen.stdin
        if stdin is not None and not stdin.closed:
            self._say(".")
            stdin.close()

    async def stop(self) -> None:
        """Kill all that is left, and end the process; idempotent."""
        self._is_stopping = True
        if self._popen is None:
            return
        self._finish()
        try:
            await asyncio.wait_for(self._gone.wait(), STOP_S)
        except asyncio.TimeoutError:
            # The process ends by itself. Continue it in case it was stopped by a signal.
            self._popen.send_signal(signal.SIGCONT)
