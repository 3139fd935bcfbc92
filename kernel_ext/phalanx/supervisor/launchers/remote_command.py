"""Run a local command that starts a supervisor at its far end.

The command is ssh, srun or mpirun (`LaunchSpec`), and ends with this process. The supervisor's
first line holds secret keys: it goes over standard input, never on a command line.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.protocol.host import HostUp

from ..processes.child import ChildProcess, exit_reason
from ..processes.pipes import ChildInput, ChildOutput, cost

if TYPE_CHECKING:
    from .slurm_job import SlurmJobs


# the supervisor's only line on standard output: it runs, and connects to the root
BEGUN = "phalanx-host: begun"

SLOW_S = 3.0
SSH_FAILED = 255  # exit status of ssh's own failures; any other status is the far command's
_GONE = "phalanx-host: gone"
_LINE_MAX_NBYTES = 4096
_ANSWER_MAX_NBYTES = 4 << 20  # of a program that answers questions
# Check by /bin/sh whether a supervisor has died; arguments: its pid and its host's name. The name
# given to ssh may lead to another host later, where the pid means nothing. A dead process keeps its
# pid until it is reaped; the first process of some containers never reaps.
_LOOK = (
    'echo; [ "$(uname -n)" = "$2" ] || exit 0; '
    'kill -0 "$1" 2>/dev/null && { grep -q "^State:.[ZX]" "/proc/$1/status" 2>/dev/null || exit 0; }; '
    f'echo "{_GONE}"'
)


class HostStart(NamedTuple):
    """Request to start a host's supervisor, for any launcher.

    ``first_line`` is the first line that the supervisor reads; it holds keys. ``on_slow`` gets a
    text about a slow step. A launcher gives up after ``remote.timeout_s``. With ``jobs`` a job of
    Slurm is submitted for the hosts that start together.
    """

    plan: HostPlan
    first_line: bytes
    remote: RemoteOptions
    on_slow: Callable[[str], None]
    jobs: SlurmJobs | None = None


class HostUnreachable(Exception):
    """A host's supervisor could not be started; ``text`` tells users why."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.name = name
        self.text = text

    def __str__(self) -> str:
        """Return the host's name and the text in one line."""
        return f"{self.name}: {self.text}"


# What the far end prints: its shell runs, it has found a Python, the supervisor runs.
_STAGES = _IN, _FOUND, _BEGUN = b"phalanx-host: in", b"phalanx-host: python", BEGUN.encode()


def far_script(run: str) -> str:
    """Return a script for /bin/sh that finds and runs a Python.

    The argument of the script names the Python; ``run`` uses it as ``"$p"``. The script has no '
    and no !, which login shells treat differently. The first echo ends a line that a start-up file
    may have begun.
    """
    return (
        f'echo; echo "{_IN.decode()}"; p="$1"; case "$p" in "~/"*) p="$HOME/${{p#??}}";; esac; '
        f'command -v "$p" >/dev/null 2>&1 || exit 127; echo "{_FOUND.decode()}"; {run}'
    )


# The shell waits for its child to report the signal that killed it, which ssh would not report.
SCRIPT = far_script('"$p" -m phalanx.supervisor host; exit $?')


class LaunchSpec(NamedTuple):
    """Command to start one host's supervisor, and texts for its errors.

    Attributes
    ----------
    plan : HostPlan
        The host.
    python : str
        Python on the host.
    command : sequence of str
        Local command.
    missing : str
        Error text if the command does not exist here.
    waiting : str
        Text while the far shell has not begun.
    why : callable
        Turns the outcome of a command that ended before the far shell began into an error text.
    on_end : callable, optional
        Called when the command has ended.
    again : callable, optional
        Makes the command that runs other words on the host.
    is_here : bool
        The command becomes the supervisor, which outlives this process as on other machines.
    leave : callable, optional
        Called when the supervisor is given up, maybe several times.
    why_over : callable, optional
        Asks why the host itself is gone; "": it is not.
    """

    plan: HostPlan
    python: str
    command: Sequence[str]
    missing: str
    waiting: str
    why: Callable[[CommandOutcome], str]
    on_end: Callable[[], None] | None = None
    again: Callable[[str], Sequence[str]] | None = None
    is_here: bool = False
    leave: Callable[[], None] | None = None
    why_over: Callable[[], Awaitable[str]] | None = None


class CommandOutcome(NamedTuple):
    """Outcome of a command; ``has_python``: the far shell has found Python."""

    way: LaunchSpec
    has_python: bool
    status: int
    stderr: str


class RemoteCommand:
    """A local command that runs a supervisor or program elsewhere.

    ``on_line``: receives each line that the far end prints, for programs that answer questions.
    """

    def __init__(
        self, way: LaunchSpec, first_line: bytes, on_line: Callable[[bytes], None] | None = None
    ) -> None:
        self._way = way
        self._on_line = on_line
        self._stdin = ChildInput()
        self._stdin.write(first_line.rstrip(b"\n") + b"\n")
        self._stage = 0  # how many of `_STAGES` the far end has reached
        self._line = b""
        loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self.is_over = False  # whether the far command itself has ended, with its own exit status
        self._ended: asyncio.Future[str] = loop.create_future()
        try:
            self._stdout = ChildOutput(self._on_stdout)
            self._stderr = ChildOutput()
            self._child = ChildProcess(
                way.command,
                env=os.environ,
                cwd=".",
                pass_fds=(),
                stdin=self._stdin,
                stdout=self._stdout,
                stderr=self._stderr,
                on_exit=self._on_exit,
                tied=not way.is_here,
            )
        except BaseException as error:
            if way.on_end is not None:
                way.on_end()
            if isinstance(error, FileNotFoundError):
                raise HostUnreachable(way.plan.name, way.missing) from None
            raise

    @property
    def has_begun(self) -> bool:
        """Whether the supervisor is known to run."""
        return self._stage == len(_STAGES)

    @property
    def is_in(self) -> bool:
        """Whether the shell at the far end runs."""
        return self._stage > 0

    @property
    def has_python(self) -> bool:
        return self._stage > 1

    @property
    def _phase(self) -> str:
        if self.has_python:
            return "it has let us in, its Python has not answered yet"
        if self.is_in:
            return "it has let us in, its shell has not answered yet"
        return self._way.waiting

    @property
    def stderr(self) -> str:
        return self._stderr.tail

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    async def end(self, patience_s: float) -> None:
        """End the far end's input; kill the command after ``patience_s``."""
        self._stdin.close()
        try:
            await asyncio.wait_for(self._child.exited.wait(), patience_s)
        except (asyncio.TimeoutError, TimeoutError):
            self._child.kill()
            await self._child.exited.wait()

    def _on_stdout(self, data: bytes) -> None:
        self._stdout.taken(cost(data))
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-(_LINE_MAX_NBYTES if self._on_line is None else _ANSWER_MAX_NBYTES) :]
        if self._on_line is not None:
            for line in lines:
                self._on_line(line)
        for line in lines:
            if (said := line.rstrip(b"\r")) in _STAGES:
                self._stage = max(self._stage, 1 + _STAGES.index(said))
                self._news.set()

    def _on_exit(self, status: int) -> None:
        way = self._way
        self.is_over = way.is_here or (self.is_in and 0 <= status != SSH_FAILED)
        outcome = CommandOutcome(way, self.has_python, status, self._stderr.tail)
        self._ended.set_result(why_ended(outcome) if self.is_in or status < 0 else way.why(outcome))
        if way.on_end is not None:
            way.on_end()
        self._news.set()

    async def wait_begun(self, timeout_s: float, on_slow: Callable[[str], None]) -> None:
        """Wait until the supervisor runs; `HostUnreachable` says why it does not."""
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
        """Wait for the end; return the reason.

        An example: ``its supervisor was killed by signal 9 (SIGKILL)``.
        """
        why = await asyncio.shield(self._ended)
        if self._way.why_over is None or not (gone := await self._way.why_over()):
            return why
        self.is_over = True
        return gone

    async def look(self, up: HostUp) -> str:
        """Ask the host how an unreachable supervisor has ended; "" if unknown.

        Ask only if the command has ended without the far exit status: the far shell was killed with
        the supervisor, or the local command was killed.
        """
        if self._way.again is None or not self._ended.done() or self.is_over:
            return ""
        words = shlex.join(["exec", "/bin/sh", "-c", _LOOK, "phalanx", str(up.pid), up.name])
        output = ChildOutput()
        try:
            child = ChildProcess(
                self._way.again(words),
                env=os.environ,
                cwd=".",
                pass_fds=(),
                stdout=output,
                stderr=output,
                on_exit=lambda status: None,
                tied=True,
            )
        except OSError:  # no process can be started here: the silence timeout will decide
            return ""
        try:
            await child.exited.wait()
        finally:
            child.kill()
        has_died = _GONE in child.tail.splitlines()
        return f"its supervisor has died there (process {up.pid} is gone)" if has_died else ""

    def kill(self) -> None:
        """End the command; idempotent. A supervisor elsewhere ends by itself."""
        self._child.kill()
        if self._way.leave is not None:
            self._way.leave()


async def launch_by(way: LaunchSpec, asked: HostStart) -> RemoteCommand:
    """Start a host's supervisor; `HostUnreachable` says why it does not run."""
    host = RemoteCommand(way, asked.first_line)
    try:
        await host.wait_begun(asked.remote.timeout_s, asked.on_slow)
    except BaseException:
        host.kill()
        raise
    return host


def why_ended(outcome: CommandOutcome) -> str:
    """Return an error text for a far side that has ended."""
    if outcome.status < 0:
        its = "supervisor" if outcome.way.is_here else outcome.way.command[0]
        return f"its {its} was {exit_reason(outcome.status)}"
    if not outcome.has_python:
        return f"there is no {outcome.way.python} there: say with --python where its Python is"
    if re.search(r"No module named '?phalanx\b", outcome.stderr):
        return (
            f"phalanx is not installed in {outcome.way.python} there: install it, "
            "or name another Python with --python"
        )
    if 128 < outcome.status < SSH_FAILED:  # exit status that a shell gives for a signal
        return f"its supervisor was {exit_reason(128 - outcome.status)}"
    line = last_line(outcome.stderr)
    if "Traceback (most recent call last)" in outcome.stderr:
        return f"its supervisor failed ({line}): has it the same version of phalanx?"
    if outcome.status == SSH_FAILED:
        return f"its {outcome.way.command[0]} connection was lost{f': {line}' if line else ''}"
    silent = f"its supervisor {exit_reason(outcome.status)} and said nothing"
    return line or f"{silent}: is {outcome.way.python} a Python?"


def last_line(text: str) -> str:
    """Return the last line with text; ignore srun's own if possible."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("srun: ")] or lines
    return said[-1] if said else ""
