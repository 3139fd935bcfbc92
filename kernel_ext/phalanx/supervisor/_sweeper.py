"""The supervisor's hand on the process that ends what ranks leave behind (`_sweep.py`).

It starts that process, tells it who was started and who is gone, and starts another one if
somebody kills it. It knows process ids and marks, nothing of ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ._process import exit_reason
from ._sweep import FLAGS, MARK, start_of
from ._system import open_pidfd

__all__ = ["Sweeper"]

log = logging.getLogger(__name__)

VARIABLE = MARK.decode().rstrip("=")
STOP_S = 1.0  # a sweep takes milliseconds; what takes longer is done when we are gone
MAX_STARTS = 10  # somebody who kills it that often means it


class Sweeper:
    """Ends whatever the children of this supervisor leave behind, and with it the supervisor's own.

    A child is started with the variables of `mark` in its environment, then named to `started`.
    The file at ``record_path``, if any, goes with the supervisor too, once nobody has it locked.
    """

    def __init__(self, record_path: str) -> None:
        self._record_path = record_path
        self._world = f"{os.getpid()}.{start_of(os.getpid()) or 0}"
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, int] = {}  # pid -> serial
        self._popen: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._n_starts = 0
        self._gone = asyncio.Event()
        self._is_stopping = False

    def mark(self, serial: int) -> dict[str, str]:
        """Return what a child's environment says; serials are never used twice."""
        return {VARIABLE: f"{self._world}.{serial}"}

    def start(self, env: Mapping[str, str]) -> None:
        """Start the process; ``env`` is the supervisor's own environment."""
        self._n_starts += 1
        script = str(Path(__file__).with_name("_sweep.py"))
        self._popen = subprocess.Popen(
            [sys.executable, *FLAGS, script, self._world, self._record_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # Not marked itself: a supervisor that a rank of another world has started goes with
            # that world, and this process has to sweep after it.
            env={name: value for name, value in env.items() if name != VARIABLE},
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        os.set_blocking(self._popen.stdin.fileno(), False)
        self._pidfd = open_pidfd(self._popen.pid)
        self._loop.add_reader(self._pidfd, self._reap, env)
        for pid, serial in self._children.items():
            self._say(f"+{pid} {serial}")

    def started(self, pid: int, serial: int) -> None:
        """Learn of a child."""
        self._children[pid] = serial
        self._say(f"+{pid} {serial}")

    def gone(self, pid: int) -> None:
        """End what a child that was reaped has left behind."""
        serial = self._children.pop(pid)
        self._say(f"-{pid} {serial}")

    def ending(self) -> None:
        """Learn that all children are being ended: what they leave behind goes with the last."""
        if not self._is_stopping:
            self._say("~")

    def _say(self, line: str) -> None:
        if self._popen is not None and self._popen.stdin is not None:
            # To one that is being killed (the next one is told all), or that was stopped.
            with contextlib.suppress(OSError):
                os.write(self._popen.stdin.fileno(), line.encode() + b"\n")

    def _reap(self, env: Mapping[str, str]) -> None:
        assert self._popen is not None
        status = self._popen.wait()
        self._finish()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._popen = None
        if status < 0 and self._n_starts < MAX_STARTS:  # killed, and not at the end of its work
            self.start(env)
            if self._is_stopping:
                self._finish()
            return
        if status:
            log.warning("the process that sweeps up has ended (%s)", exit_reason(status))
        self._gone.set()

    def _finish(self) -> None:
        """Tell it that this is the end, once: `_reap` comes after `stop`."""
        stdin = None if self._popen is None else self._popen.stdin
        if stdin is not None and not stdin.closed:
            self._say(".")
            stdin.close()

    async def stop(self) -> None:
        """Sweep up all that is left, and end the process; idempotent."""
        self._is_stopping = True
        if self._popen is None:
            return
        self._finish()
        try:
            await asyncio.wait_for(self._gone.wait(), STOP_S)
        except asyncio.TimeoutError:
            # It ends by itself; in case that somebody has stopped it:
            self._popen.send_signal(signal.SIGCONT)
