"""Starting a host's supervisor over ssh: one ssh for each host, which is ours and dies with us.

What is secret goes over its standard input. The far side says on its standard output how far it
has got, in lines that no banner or shell start-up file would say. It knows ssh's command line,
nothing of what the supervisor is told or does.
"""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import sys
from collections.abc import Callable

from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.protocol.scripts import cost

from ._host_process import HostUnreachable
from ._output import OutputPipe
from ._process import ChildProcess
from ._ssh_words import Heard, why_not_up
from ._streams import ForwardedPipe

__all__ = ["SshHost", "launch_over_ssh"]

SLOW_S = 3.0
_CONNECT_S = 10  # to a host that does not answer; one that is far and busy has let us in by then
_IN, _FOUND, _BEGUN = (b"phalanx-host: " + word for word in (b"in", b"python", b"begun"))
_LINE_MAX_NBYTES = 4096

# Run by sh whatever the login shell is; no ' and no ! in it, which shells treat differently.
# The first newline ends what a start-up file may have left in the line. The shell stays to tell by
# which signal its child was killed, which ssh would not.
_SCRIPT = (
    f'echo; echo "{_IN.decode()}"; p="$1"; case "$p" in "~/"*) p="$HOME/${{p#??}}";; esac; '
    f'command -v "$p" >/dev/null 2>&1 || exit 127; echo "{_FOUND.decode()}"; '
    '"$p" -m phalanx.supervisor host; exit $?'
)


def _command(plan: HostPlan, remote: RemoteOptions, python: str) -> list[str]:
    """Return ssh's command line: of what is said twice ssh takes the first."""
    ours = {
        "BatchMode": "yes",  # there is nobody to ask
        "LogLevel": "ERROR",  # no banner on stderr, but why it failed
        "RequestTTY": "no",
        "RemoteCommand": "none",
        "ControlMaster": "no",  # it may use a connection that is there, but keeps none for others
    }
    weak = {"ConnectTimeout": str(min(_CONNECT_S, math.ceil(remote.timeout_s)))}
    far = f"exec /bin/sh -c {shlex.quote(_SCRIPT)} phalanx {shlex.quote(python)}"
    return [
        "ssh",
        *(f"-o{key}={value}" for key, value in ours.items()),
        *(("-p", str(plan.port)) if plan.port else ()),
        *remote.ssh_args,
        *(f"-o{key}={value}" for key, value in weak.items()),
        "--",
        plan.name,
        far,
    ]


class _FirstLine:
    """The input of a child: one line, and no end of it for as long as the child runs."""

    def __init__(self, line: bytes) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        self._rest = memoryview(line)
        self._loop = asyncio.get_running_loop()
        self._loop.add_writer(self._write_fd, self._write)

    def child_started(self) -> None:
        """Close the reading end: the child has its own now."""
        os.close(self.read_fd)
        self.read_fd = -1

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._write_fd, self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it has ended: its exit tells
            self._rest = self._rest[:0]
        if not self._rest:
            self._loop.remove_writer(self._write_fd)

    def close(self) -> None:
        """End the child's input; idempotent."""
        if self._write_fd >= 0:
            self._loop.remove_writer(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1
        if self.read_fd >= 0:
            self.child_started()


class SshHost:
    """One ssh with a host's supervisor at its far end."""

    def __init__(self, plan: HostPlan, first_line: bytes, remote: RemoteOptions) -> None:
        self._plan = plan
        self._python = remote.python or sys.executable
        self._seen: set[bytes] = set()
        self._line = b""
        loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._ended: asyncio.Future[str] = loop.create_future()
        self._stdout = ForwardedPipe(self._on_stdout)
        self._stderr = OutputPipe()
        try:
            self._child = ChildProcess(
                _command(plan, remote, self._python),
                env=os.environ,
                cwd=".",
                pass_fds=(),
                stdin=_FirstLine(first_line.rstrip(b"\n") + b"\n"),
                stdout=self._stdout,
                stderr=self._stderr,
                on_exit=self._on_exit,
                tied=True,
            )
        except FileNotFoundError:
            text = "there is no ssh on this machine: install OpenSSH's client"
            raise HostUnreachable(plan.name, text) from None

    @property
    def has_begun(self) -> bool:
        """Whether the supervisor runs, and goes on to reach the root."""
        return _BEGUN in self._seen

    @property
    def _phase(self) -> str:
        if _FOUND in self._seen:
            return "it has let us in, its Python has not answered yet"
        if _IN in self._seen:
            return "it has let us in, its shell has not answered yet"
        return "ssh has not got in yet"

    def _on_stdout(self, data: bytes) -> None:
        self._stdout.taken(cost(data))
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-_LINE_MAX_NBYTES:]
        if found := {_IN, _FOUND, _BEGUN}.intersection(line.rstrip(b"\r") for line in lines):
            self._seen |= found
            self._news.set()

    def _on_exit(self, status: int) -> None:
        is_in, has_python = _IN in self._seen, _FOUND in self._seen
        stderr = self._stderr.tail
        heard = Heard(self._plan, self._python, is_in, has_python, status, stderr)
        self._ended.set_result(why_not_up(heard))
        self._news.set()

    async def wait_begun(self, timeout_s: float, on_slow: Callable[[str], None]) -> None:
        """Wait until the supervisor runs there.

        Raises
        ------
        HostUnreachable
            It has ended, or the time is over.
        """
        loop = asyncio.get_running_loop()
        start, was_slow = loop.time(), False
        while not self.has_begun:
            if self._ended.done():
                raise HostUnreachable(self._plan.name, self._ended.result())
            spent = loop.time() - start
            if spent >= timeout_s:
                raise HostUnreachable(self._plan.name, f"{self._phase}, after {timeout_s:g} s")
            if spent >= SLOW_S and not was_slow:
                was_slow = True
                on_slow(self._phase)
            until = timeout_s if was_slow else min(SLOW_S, timeout_s)
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), until - spent)
            except (asyncio.TimeoutError, TimeoutError):
                continue

    async def ended(self) -> str:
        """Wait for its end; words for why."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """End the ssh; idempotent. The supervisor sees to itself."""
        self._child.kill()


async def launch_over_ssh(
    plan: HostPlan, first_line: bytes, remote: RemoteOptions, *, on_slow: Callable[[str], None]
) -> SshHost:
    """Start the supervisor of a host over ssh and wait until it runs there.

    Raises
    ------
    HostUnreachable
        It does not; the text says why, and what to do next.
    """
    host = SshHost(plan, first_line, remote)
    try:
        await host.wait_begun(remote.timeout_s, on_slow)
    except BaseException:
        host.kill()
        raise
    return host
