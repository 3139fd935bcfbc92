"""One child process of a supervisor: started, watched, read and ended.

It knows processes, pipes and the event loop; it knows nothing of ranks, epochs or cells.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ._output import OutputPipe

__all__ = ["ChildProcess", "die_with_parent", "exit_reason"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent dies; called first of all in a child.

    Where the parent is gone already, the process ends here. (Linux; elsewhere the closed
    channel to the parent tells.)
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


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


class ChildProcess:
    """A child with its own session, reaped by the running event loop.

    ``stdout`` and ``stderr`` (both may be the same pipe) are the child's from here on and closed
    with it; `tail` is the end of what was read of them. ``on_exit(status)`` is called once.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        pass_fds: Sequence[int],
        stdout: OutputPipe,
        stderr: OutputPipe,
        on_exit: Callable[[int], None],
    ) -> None:
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self.exited = asyncio.Event()
        self.status: int | None = None
        self._pipes = (stdout,) if stdout is stderr else (stdout, stderr)
        try:
            # start_new_session: a Ctrl-C in the terminal is not the ranks' business, and the
            # whole group (with what a rank started) can be killed at once.
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout.write_fd,
                stderr=stderr.write_fd,
                env=dict(env),
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except BaseException:
            for pipe in self._pipes:
                pipe.finish()
            raise
        for pipe in self._pipes:
            pipe.child_started()
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
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
        for pipe in self._pipes:
            pipe.finish()
        # Whatever the child started and left behind goes with it.
        self._signal_group(signal.SIGKILL)
        self.exited.set()
        self._on_exit(self.status)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def terminate(self) -> None:
        """Ask the child to end (SIGTERM to it alone)."""
        if self.status is None:
            self._popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the child and all it started, at once."""
        if self.status is None:
            self._signal_group(signal.SIGKILL)
