"""One child process of a supervisor: started, watched, read and ended.

It knows processes, pipes and the event loop; it knows nothing of ranks, epochs or cells.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

__all__ = ["ChildProcess", "die_with_parent", "exit_reason"]

log = logging.getLogger(__name__)

TAIL_CHARACTERS = 16_384  # of a child's raw output, kept to explain its death
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
    """A child with its own session, read and reaped by the running event loop.

    What it writes to its standard output and error is read and its end kept (`tail`): a kernel
    captures its own output, so this is a crash's last words. ``on_exit(status)`` is called once,
    after the last of it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        pass_fds: Sequence[int],
        on_exit: Callable[[int], None],
    ) -> None:
        self._on_exit = on_exit
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._loop = asyncio.get_running_loop()
        self.tail = ""
        self.exited = asyncio.Event()
        self.status: int | None = None
        self._output, child_end = os.pipe()
        try:
            # start_new_session: a Ctrl-C in the terminal is not the ranks' business, and the
            # whole group (with what a rank started) can be killed at once.
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=child_end,
                stderr=child_end,
                env=dict(env),
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(child_end)
        self.pid = self._popen.pid
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read)
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    def _read(self) -> bool:
        """Take what there is; False when there is no more for now, or ever."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            # The last writer is gone: a child of the rank may have held it longer than the rank.
            self._loop.remove_reader(self._output)
            return False
        text = self._decoder.decode(data)
        if text:
            self.tail = (self.tail + text)[-TAIL_CHARACTERS:]
        return True

    def _reap(self) -> None:
        self.status = self._popen.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        while self._read():
            pass
        self._loop.remove_reader(self._output)
        os.close(self._output)
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
