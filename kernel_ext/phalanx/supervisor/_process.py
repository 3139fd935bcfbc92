"""One child process of a supervisor: started, watched, read and ended.

It knows processes, pipes and the event loop; it knows nothing of ranks, epochs or cells.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ._courtesy import pushing_in
from ._system import end_with_parent, open_pidfd

__all__ = [
    "ChildInput",
    "ChildOutput",
    "ChildProcess",
    "exit_reason",
]

log = logging.getLogger(__name__)

# What a program that has ended well left behind in its pipes' other processes (`> >(tee log)`)
# may still be written for so long; nobody waits for it meanwhile but the end of the launch.
LAST_WORDS_S = 0.5


def exit_reason(status: int) -> str:
    """Words for a return code as `subprocess` gives it.

    Examples
    --------
    >>> exit_reason(-11), exit_reason(3)
    ('killed by signal 11 (SIGSEGV)', 'exited with status 3')
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    return f"killed by signal {-status} ({name})"


class ChildOutput(Protocol):
    """A pipe that a child writes to."""

    @property
    def write_fd(self) -> int:
        """The child's end."""

    @property
    def tail(self) -> str:
        """The end of what it wrote, where that is kept."""

    @property
    def is_over(self) -> bool:
        """Whether nobody holds the writing end any more, as far as was read."""

    def child_started(self) -> None:
        """Close the child's end here: it has its own now."""

    def release(self) -> None:
        """Leave the reading to the child itself."""

    def finish(self) -> None:
        """Take the last words and close; idempotent."""


class ChildInput(Protocol):
    """A pipe that a child reads from."""

    @property
    def read_fd(self) -> int:
        """The child's end."""

    def child_started(self) -> None:
        """Close the child's end here: it has its own now."""

    def close(self) -> None:
        """End the child's input; idempotent."""


class ChildProcess:
    """A child with its own session, reaped by the running event loop.

    ``stdin``, ``stdout`` and ``stderr`` (the last two may be the same pipe) are the child's from
    here on and closed with it; `tail` is the end of what was read of them. ``on_exit(status)`` is
    called once. A child that is not ours and cannot call `die_with_parent` is ``tied`` instead.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        pass_fds: Sequence[int],
        stdout: ChildOutput,
        stderr: ChildOutput,
        on_exit: Callable[[int], None],
        stdin: ChildInput | None = None,
        tied: bool = False,
    ) -> None:
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self.exited = asyncio.Event()
        self.status: int | None = None
        self._stdin = stdin
        self._is_tied = tied
        self._pipes = (stdout,) if stdout is stderr else (stdout, stderr)
        try:
            # start_new_session: a Ctrl-C in the terminal is not the ranks' business, and the
            # whole group (with what a rank started) can be killed at once.
            with pushing_in():
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL if stdin is None else stdin.read_fd,
                    stdout=stdout.write_fd,
                    stderr=stderr.write_fd,
                    env=dict(env),
                    cwd=cwd,
                    pass_fds=pass_fds,
                    start_new_session=True,
                    # Where there is such a thing the supervisor's own code runs on one thread, so a fork
                    # is safe; a wrapper process would cost 20 ms a rank.
                    preexec_fn=end_with_parent(os.getpid()) if tied else None,  # noqa: PLW1509
                )
        except BaseException:
            if stdin is not None:
                stdin.close()
            for pipe in self._pipes:
                pipe.finish()
            raise
        if stdin is not None:
            stdin.child_started()
        for pipe in self._pipes:
            pipe.child_started()
        self.pid = self._popen.pid
        try:
            self._pidfd = open_pidfd(self.pid)
        except OSError:  # no descriptor is left: a child that cannot be watched must not live
            self._popen.kill()
            self._popen.wait()
            if stdin is not None:
                stdin.close()
            for pipe in self._pipes:
                pipe.finish()
            raise
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def tail(self) -> str:
        """The end of what the child wrote."""
        return "".join(pipe.tail for pipe in self._pipes)

    def release_output(self) -> None:
        """Leave its output to the child itself, until it dies."""
        for pipe in self._pipes:
            pipe.release()

    def _reap(self) -> None:
        self.status = self._popen.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._stdin is not None:
            self._stdin.close()
        waits = self._is_tied and self.status == 0
        self._bury(self._loop.time() + LAST_WORDS_S if waits else 0.0)

    def _bury(self, until: float) -> None:
        """End what the child left behind, and say that all is over."""
        if self._loop.time() < until and not all(pipe.is_over for pipe in self._pipes):
            self._loop.call_later(0.005, self._bury, until)
            return
        for pipe in self._pipes:
            try:
                pipe.finish()
            except Exception:  # whoever takes the last words must not hide the end
                log.exception("the last words of process %d are lost", self.pid)
        # Whatever the child started and left behind goes with it.
        self._signal_group(signal.SIGKILL)
        self.exited.set()
        self._on_exit(self.status or 0)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def terminate(self) -> None:
        """Ask the child to end (SIGTERM to it alone)."""
        if self.status is None:
            self._popen.send_signal(signal.SIGTERM)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the child and all it started, as a terminal does."""
        if self.status is None:
            self._signal_group(number)

    def kill(self) -> None:
        """End the child and all it started, at once."""
        if self.status is None:
            self._signal_group(signal.SIGKILL)
