"""Starting a host's supervisor by a command of this machine whose far end it is: ssh, srun, mpirun.

The command is ours and dies with us. What is secret goes over its standard input; the far side says
on its standard output how far it has got, in lines that no banner or shell start-up file would say.
It knows what is run there, nothing of which command leads there.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from phalanx.protocol import HostPlan
from phalanx.protocol.scripts import cost

from ._host_process import BEGUN, HostStart, HostUnreachable
from ._output import OutputPipe
from ._process import ChildProcess, exit_reason
from ._streams import ForwardedPipe

__all__ = ["SCRIPT", "FarCommand", "Heard", "Way", "last_line", "launch_by", "why_ended"]

SLOW_S = 3.0
_LOST = 255  # of ssh itself; any other status is the far command's
_IN, _FOUND, _BEGUN = b"phalanx-host: in", b"phalanx-host: python", BEGUN.encode()
_LINE_MAX_NBYTES = 4096

# For /bin/sh, with the Python as its argument; no ' and no ! in it, which login shells treat
# differently. The first newline ends what a start-up file may have left in the line. The shell
# stays to tell by which signal its child was killed, which ssh would not.
SCRIPT = (
    f'echo; echo "{_IN.decode()}"; p="$1"; case "$p" in "~/"*) p="$HOME/${{p#??}}";; esac; '
    f'command -v "$p" >/dev/null 2>&1 || exit 127; echo "{_FOUND.decode()}"; '
    '"$p" -m phalanx.supervisor host; exit $?'
)


class Way(NamedTuple):
    """How one host is reached: the command, and words for what it says.

    ``missing``: why there is no such command here; ``waiting``: that it has not got in yet;
    ``why``: of what was heard of one that ended before the far shell had begun. One that
    ``is_silent`` hands on neither its input nor its output. ``on_end`` is called when it has ended.
    """

    plan: HostPlan
    python: str
    command: Sequence[str]
    missing: str
    waiting: str
    why: Callable[[Heard], str]
    is_silent: bool = False
    on_end: Callable[[], None] | None = None


class Heard(NamedTuple):
    """What is known of a command that has ended: where it had got to, its status, its last words.

    ``is_in``: the far shell has begun. ``has_python``: it has found the Python.
    """

    by: str
    plan: HostPlan
    python: str
    is_in: bool
    has_python: bool
    status: int
    stderr: str


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


class FarCommand:
    """One command with a host's supervisor at its far end."""

    def __init__(self, way: Way, first_line: bytes) -> None:
        self._way = way
        self._seen: set[bytes] = set()
        self._line = b""
        loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self.is_over = False  # the far command itself: it has told its own exit status
        self._ended: asyncio.Future[str] = loop.create_future()
        try:
            self._stdout = ForwardedPipe(self._on_stdout)
            self._stderr = OutputPipe()
            self._child = ChildProcess(
                way.command,
                env=os.environ,
                cwd=".",
                pass_fds=(),
                stdin=None if way.is_silent else _FirstLine(first_line.rstrip(b"\n") + b"\n"),
                stdout=self._stdout,
                stderr=self._stderr,
                on_exit=self._on_exit,
                tied=True,
            )
        except BaseException as error:
            if way.on_end is not None:
                way.on_end()
            if isinstance(error, FileNotFoundError):
                raise HostUnreachable(way.plan.name, way.missing) from None
            raise

    @property
    def has_begun(self) -> bool:
        """Whether the supervisor runs, as far as we hear of it, and goes on to reach the root."""
        return self._way.is_silent or _BEGUN in self._seen

    @property
    def _phase(self) -> str:
        if _FOUND in self._seen:
            return "it has let us in, its Python has not answered yet"
        if _IN in self._seen:
            return "it has let us in, its shell has not answered yet"
        return self._way.waiting

    def _on_stdout(self, data: bytes) -> None:
        self._stdout.taken(cost(data))
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-_LINE_MAX_NBYTES:]
        if found := {_IN, _FOUND, _BEGUN}.intersection(line.rstrip(b"\r") for line in lines):
            self._seen |= found
            self._news.set()

    def _on_exit(self, status: int) -> None:
        has_begun = _BEGUN in self._seen
        is_in, has_python = has_begun or _IN in self._seen, has_begun or _FOUND in self._seen
        self.is_over = (is_in or self._way.is_silent) and 0 <= status != _LOST
        way, stderr = self._way, self._stderr.tail
        heard = Heard(way.command[0], way.plan, way.python, is_in, has_python, status, stderr)
        self._ended.set_result(why_ended(heard) if is_in or status < 0 else way.why(heard))
        if way.on_end is not None:
            way.on_end()
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
                raise HostUnreachable(self._way.plan.name, self._ended.result())
            spent = loop.time() - start
            if spent >= timeout_s:
                text = f"{self._phase}, after {timeout_s:g} s (--boot-timeout S waits longer)"
                raise HostUnreachable(self._way.plan.name, text)
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

    def look(self) -> None:
        """Nothing: its end is known at once."""

    def farewell(self) -> None:
        """Nothing: it ends by itself, and the command with it."""

    def kill(self) -> None:
        """End the command; idempotent. The supervisor sees to itself."""
        self._child.kill()


async def launch_by(way: Way, asked: HostStart) -> FarCommand:
    """Start the supervisor of a host and wait until it runs there.

    Raises
    ------
    HostUnreachable
        It does not; the text says why, and what to do next.
    """
    host = FarCommand(way, asked.first_line)
    try:
        await host.wait_begun(asked.remote.timeout_s, asked.on_slow)
    except BaseException:
        host.kill()
        raise
    return host


def why_ended(heard: Heard) -> str:
    """Return a line on a far side that was reached, and has ended."""
    if heard.status < 0:
        return f"its {heard.by} was {exit_reason(heard.status)}"
    if not heard.has_python:
        return f"there is no {heard.python} there: say with --python where its Python is"
    if re.search(r"No module named '?phalanx\b", heard.stderr):
        return (
            f"phalanx is not installed in {heard.python} there: install it, "
            "or name another Python with --python"
        )
    if 128 < heard.status < _LOST:  # as a shell says it
        return f"its supervisor was {exit_reason(128 - heard.status)}"
    line = last_line(heard.stderr)
    if "Traceback (most recent call last)" in heard.stderr:
        return f"its supervisor failed ({line}): has it the same version of phalanx?"
    if heard.status == _LOST:
        return f"its {heard.by} connection was lost{f': {line}' if line else ''}"
    silent = f"its supervisor {exit_reason(heard.status)} and said nothing"
    return line or f"{silent}: is {heard.python} a Python?"


def last_line(text: str) -> str:
    """Return the last line that says something and is not srun's own word on an exit."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("srun: ")] or lines
    return said[-1] if said else ""
