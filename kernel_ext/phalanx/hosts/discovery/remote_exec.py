"""Run shell commands on all hosts in parallel, and collect their results."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from ..host import Host
from ..ssh import explain_ssh, ssh_command

_MOST_NBYTES = 4_000_000  # system_profiler of a Mac with a tree of hubs prints some 100,000
_HEAD = """
PATH=$PATH:/usr/sbin:/sbin:/usr/bin:/bin
LC_ALL=C; export LC_ALL PATH
"""


class ShellCommand(NamedTuple):
    """A command of a script; ``ends``: its failure ends the script."""

    text: str
    ends: bool = False


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    output: str


@dataclass(frozen=True)
class Answer:
    """Results of the commands that ran on a host, or the failure."""

    results: tuple[CommandResult, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class HostShells:
    """Shells on hosts.

    They are reached over ssh, with ``ssh_args``; the hosts in ``local`` are this machine.
    """

    hosts: Sequence[Host]
    local: Collection[Host] = ()
    ssh_args: Sequence[str] = ()

    def run(
        self,
        scripts: Mapping[int, Sequence[ShellCommand]],
        timeout_s: float,
        *,
        prelude: str = "",
        say: Callable[[str], None] = lambda _: None,
    ) -> dict[int, Answer]:
        """Run scripts in parallel, by host index, for at most ``timeout_s``.

        ``prelude`` defines shell functions for the commands. ``say`` gets the command line that
        starts each shell.
        """
        mark = secrets.token_hex(16)
        end_s = time.monotonic() + timeout_s
        with contextlib.ExitStack() as stack:
            runs = []
            for place, commands in scripts.items():
                host = self.hosts[place]
                far = ssh_command(host.ssh, host.port, self.ssh_args, "sh -s", timeout_s / 2)
                words = ["sh", "-s"] if host in self.local else far
                say(f"{host.ssh}: {' '.join(words)}")
                script, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
                script.write(_script(prelude, commands, mark).encode())
                script.seek(0)
                run = _Run(host, words, commands, script, out, err)
                stack.callback(run.kill)
                runs.append(run)
            # A Ctrl-C interrupts the main thread only. There it could fall between the start of a
            # process and the line that notes the process.
            with ThreadPoolExecutor(max(1, len(runs))) as threads:
                list(threads.map(_Run.start, runs))
            answers = [run.answer(end_s, timeout_s, mark) for run in runs]
        return dict(zip(scripts, answers, strict=True))


def _script(prelude: str, commands: Sequence[ShellCommand], mark: str) -> str:
    """Return a shell script that marks each command's output.

    The marks are random, so that a login's messages cannot be mistaken for output.
    """
    lines = (
        f"printf '\\n{mark} begin\\n'; {{ {command.text}\n}} </dev/null 2>&1; s=$?; "
        f"printf '\\n{mark} end %s\\n' $s; {'[ $s = 0 ] || exit 0' if command.ends else ':'}\n"
        for command in commands
    )
    return "".join([_HEAD, prelude, "\n", *lines])


def marked_results(text: str, mark: str) -> tuple[CommandResult, ...]:
    r"""Extract the results of a script's commands.

    Examples
    --------
    >>> marked_results("Welcome!\n\nM begin\nLinux\n\nM end 0\n", "M")
    (CommandResult(status=0, output='Linux\n'),)
    """
    found = re.findall(
        rf"^{mark} begin\n(.*?)\n?^{mark} end (\d+)$", text, re.MULTILINE | re.DOTALL
    )
    return tuple(CommandResult(int(status), output) for output, status in found)


@dataclass(eq=False)
class _Run:
    """One host's shell.

    It reads and writes files: a pipe would need a thread that reads it.
    """

    host: Host
    words: Sequence[str]
    commands: Sequence[ShellCommand]
    script: BinaryIO
    out: BinaryIO
    err: BinaryIO
    process: subprocess.Popen[bytes] | None = None
    failure: str = ""

    def start(self) -> None:
        try:
            self.process = subprocess.Popen(
                self.words,
                stdin=self.script,
                stdout=self.out,
                stderr=self.err,
                start_new_session=True,  # Ctrl-C is ours; ssh is to end when we say so
            )
        except OSError as error:
            self.failure = f"{self.words[0]} cannot be run: {error.strerror}"

    def answer(self, end_s: float, timeout_s: float, mark: str) -> Answer:
        """Wait for the end of the script, or for ``end_s``."""
        if self.process is None:
            return Answer(failure=self.failure)
        try:
            status = self.process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Answer(failure=f"it has not answered within {timeout_s:g} s")
        if (nbytes := os.fstat(self.out.fileno()).st_size) > _MOST_NBYTES:
            return Answer(failure=f"it has said too much: {nbytes} characters")
        output = _text(self.out)
        if status == 255 or (status and not output):
            return Answer(failure=explain_ssh(self.host.ssh, self.host.port, _text(self.err)))
        results = marked_results(output, mark)
        last = self.commands[len(results) - 1] if results else None
        has_ended = last is not None and last.ends and results[-1].status != 0
        if len(results) < len(self.commands) and not has_ended:
            return Answer(failure="its shell has not run our script to the end")
        return Answer(results)

    def kill(self) -> None:
        """Kill the shell and its children, which share a session."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
