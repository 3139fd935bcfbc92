"""Starting the supervisor of another host, by the way that the options name.

A launcher gives it its first line and tells of its end; what is said to it afterwards goes another
way. Here is the launcher of this very machine, for worlds of several "hosts" on one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from phalanx.hosts import TITLES
from phalanx.protocol import RemoteOptions

from ._host_process import HostProcess, HostStart, HostUnreachable
from ._in_job import launch_in_job
from ._output import OutputPipe
from ._process import ChildProcess, exit_reason
from ._ssh import launch_over_ssh

__all__ = ["HostProcess", "HostStart", "HostUnreachable", "launch_host"]


async def launch_host(asked: HostStart) -> HostProcess:
    """Start the supervisor of a host and give it its first line.

    Raises
    ------
    HostUnreachable
        It cannot be started there.
    """
    plan, remote = asked.plan, asked.remote
    if remote.launcher == "ssh":
        return await launch_over_ssh(asked)
    if remote.job.nodes:
        from ._batch import launch_as_job

        return await launch_as_job(asked)
    if remote.launcher in TITLES:
        return await launch_in_job(asked)
    if remote.launcher != "local":
        raise HostUnreachable(plan.name, f"there is no launcher {remote.launcher!r}")
    try:
        return _LocalProcess(asked.first_line, remote)
    except OSError as error:
        raise HostUnreachable(plan.name, f"it could not be started: {error}") from error


class _LocalProcess:
    """A host supervisor on this machine. It outlives its root, as one elsewhere does."""

    def __init__(self, first_line: bytes, remote: RemoteOptions) -> None:
        output = OutputPipe()
        self._child = ChildProcess(
            [remote.python or sys.executable, "-m", "phalanx.supervisor", "host"],
            env=os.environ,
            cwd=str(Path.cwd()),
            pass_fds=(),
            stdin=_Line(first_line),
            stdout=output,
            stderr=output,
            on_exit=lambda status: None,
        )

    @property
    def is_over(self) -> bool:
        return self._child.status is not None

    async def ended(self) -> str:
        await self._child.exited.wait()
        status = self._child.status or 0
        said = self._child.tail.strip().splitlines()
        if status < 0:
            return f"its supervisor was {exit_reason(status)}"
        return said[-1] if said and status else f"its supervisor {exit_reason(status)}"

    def look(self) -> None:
        pass  # its end is known at once

    def farewell(self) -> None:
        pass  # it ends by itself

    def kill(self) -> None:
        self._child.kill()


class _Line:
    """A child's standard input that is one line: in memory only, for it holds keys."""

    def __init__(self, line: bytes) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._left = line
        self._loop = asyncio.get_running_loop()

    def child_started(self) -> None:
        self._close_read_fd()
        self._loop.add_writer(self._write_fd, self._write)
        self._write()

    def _write(self) -> None:
        """Give what the pipe takes, the rest when the child has read that; then its input ends."""
        try:
            while self._left:
                self._left = self._left[os.write(self._write_fd, self._left) :]
        except BlockingIOError:
            return
        except OSError:  # it has ended, which says why by itself
            pass
        self.close()

    def _close_read_fd(self) -> None:
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1

    def close(self) -> None:
        self._close_read_fd()
        if self._write_fd >= 0:
            self._loop.remove_writer(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1
