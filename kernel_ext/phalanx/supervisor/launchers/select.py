"""Choose the launcher that the options name.

A launcher starts a host's supervisor, gives it its first line and reports its end. Later messages
go over `HostServer`. `_LocalProcess` is the launcher for several "hosts" on this machine.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

from phalanx.hosts import TITLES, explain_ssh, found_job, ssh_command
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.protocol.host import HostUp

from ..processes.child import ChildProcess, OutputPipe, exit_reason
from .remote_command import (
    SCRIPT,
    SSH_FAILED,
    CommandOutcome,
    HostProcess,
    HostStart,
    HostUnreachable,
    LaunchSpec,
    last_line,
    launch_by,
)
from .scheduler_step import launch_in_job

__all__ = ["HostProcess", "HostStart", "HostUnreachable", "launch_host", "ssh_launch"]


async def launch_host(asked: HostStart) -> HostProcess:
    """Start a host's supervisor and give it its first line.

    Raises
    ------
    HostUnreachable
        The supervisor could not be started.
    """
    plan, remote = asked.plan, asked.remote
    if remote.launcher == "ssh":
        return await launch_by(ssh_launch(plan, remote, SCRIPT), asked)
    if asked.gathering is not None:
        from .batch import launch_as_job

        return await launch_as_job(asked, asked.gathering)
    if remote.launcher in TITLES:
        return await launch_in_job(asked)
    if remote.launcher != "local":
        raise HostUnreachable(plan.name, f"there is no launcher {remote.launcher!r}")
    try:
        return _LocalProcess(asked.first_line, remote)
    except OSError as error:
        raise HostUnreachable(plan.name, f"it could not be started: {error}") from error


def ssh_launch(plan: HostPlan, remote: RemoteOptions, script: str) -> LaunchSpec:
    """Describe how ssh runs a script of `far_script` on a host."""
    python = remote.python or sys.executable

    def run_there(words: str) -> list[str]:
        return ssh_command(plan.name, plan.port, remote.ssh_args, words, remote.timeout_s)

    return LaunchSpec(
        plan,
        python,
        run_there(f"exec /bin/sh -c {shlex.quote(script)} phalanx {shlex.quote(python)}"),
        missing="there is no ssh on this machine: install OpenSSH's client",
        waiting="ssh has not got in yet",
        why=_why_not_in,
        again=run_there,
    )


def _why_not_in(outcome: CommandOutcome) -> str:
    """Explain an ssh that ended before the far shell began."""
    if outcome.status != SSH_FAILED:
        line = last_line(outcome.stderr)
        said = f": {line}" if line else ""
        return f"it lets us in, but runs no commands ({exit_reason(outcome.status)}{said})"
    text = explain_ssh(outcome.plan.name, outcome.plan.port, outcome.stderr)
    # Some clusters allow no ssh between a job's hosts.
    return f"{text}; within a job, --launcher mpi needs no ssh" if found_job(os.environ) else text


class _LocalProcess:
    """A host supervisor on this machine.

    The supervisor outlives its root, as on other machines.
    """

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

    async def look(self, up: HostUp) -> str:
        return ""  # the supervisor's end is known at once

    def farewell(self) -> None:
        pass  # the supervisor ends by itself

    def kill(self) -> None:
        self._child.kill()


class _Line:
    """Standard input of a child with one line.

    The line is kept in memory only, as it holds keys.
    """

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
        """Write as much as the pipe accepts; close after the last byte.

        The event loop calls this again when the pipe is writable.
        """
        try:
            while self._left:
                self._left = self._left[os.write(self._write_fd, self._left) :]
        except BlockingIOError:
            return
        except OSError:  # the child has ended: its exit status tells why
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
