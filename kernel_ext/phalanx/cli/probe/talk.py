"""Run the script `probe_main` on hosts, and ask it.

ssh or a job's launcher starts the script; its source goes over standard input.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from phalanx.hosts import TITLES
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.supervisor import (
    HostUnreachable,
    LaunchSpec,
    RemoteCommand,
    far_script,
    ssh_launch,
    start_words,
)

from . import probe_main

_MARK = probe_main.MARK.encode()
# No quotes in it: sh and the login shell each put quotes around it.
_RECEIVE = "import sys;exec(sys.stdin.read(int(sys.stdin.readline())))"
_SCRIPT = far_script(f'exec "$p" -u -c "{_RECEIVE}"')


class _Silent(Exception):
    """The script has ended, or sent an invalid answer."""


class HostTalk:
    """The script on one host, and the connection to it.

    ``failure``: why the host has not answered.
    """

    def __init__(self, plan: HostPlan, remote: RemoteOptions) -> None:
        self._plan = plan
        self._remote = remote
        is_far = not plan.is_local and remote.launcher in TITLES
        self._way = remote.launcher if is_far else "ssh"
        self.failure = ""
        self._command: RemoteCommand | None = None
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()

    def _launch(self) -> LaunchSpec:
        plan = self._plan
        way = ssh_launch(plan, self._remote, _SCRIPT)
        if self._way == "ssh" and not plan.is_local:
            return way._replace(on_end=self._on_end)
        # The other hosts are compared with this Python.
        python = sys.executable if plan.is_local else way.python
        words = [] if plan.is_local else start_words(plan, self._remote)
        command = [*words, "/bin/sh", "-c", _SCRIPT, "phalanx", python]
        missing = f"there is no {command[0]} on this machine"
        return way._replace(python=python, command=command, missing=missing, on_end=self._on_end)

    def begin(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Start the script and send its code; ``say`` gets the command line."""
        code = inspect.getsource(probe_main)
        way = self._launch()
        say(f"{self._plan.name}: {shlex.join(way.command)}")
        try:
            self._command = RemoteCommand(way, f"{len(code)}\n{code}".encode(), self._on_line)
        except HostUnreachable as error:
            raise _Silent(error.text) from None

    def _on_line(self, line: bytes) -> None:
        if line.startswith(_MARK):
            self._answers.put_nowait(line[len(_MARK) :])

    def _on_end(self) -> None:
        self._answers.put_nowait(None)

    async def ask(self, word: str, asked: Any = None) -> Any:
        """Ask and wait for the answer; to be called within `attempt`."""
        assert self._command is not None
        self._command.write((json.dumps([word, asked]) + "\n").encode())
        answer = await self._answers.get()
        if answer is None:
            raise _Silent(await self._last_output())
        try:
            return json.loads(answer)
        except ValueError as error:
            raise _Silent(str(error)) from error

    async def attempt(self, work: Awaitable[Any], timeout_s: float) -> Any:
        """Wait for work that asks; if it fails, set ``failure``."""
        try:
            return await asyncio.wait_for(work, timeout_s)
        except _Silent as error:
            self.failure = str(error)
        except (asyncio.TimeoutError, TimeoutError):
            self.failure = f"{self._phase()}, after {timeout_s:g} s"
        return None

    async def _last_output(self) -> str:
        command = self._command
        assert command is not None
        why = await command.ended()
        if command.has_python:
            lines = command.stderr.strip().splitlines() or ["without an error message"]
            return f"its Python does not run our script: {lines[-1]}"
        if self._way != "ssh" and not command.is_in:
            lines = [line.strip() for line in command.stderr.splitlines() if line.strip(" -*\t")]
            said = (lines or ["no error message"])[0]
            return f"{TITLES[self._way]} does not start a process there: {said}"
        return why

    @property
    def is_by_ssh(self) -> bool:
        """Whether the host was reached by ssh."""
        return self._way == "ssh" and not self._plan.is_local

    @property
    def stage(self) -> str:
        """Return "python" once a shell runs there, else "ssh" or the launcher."""
        is_in = self._command is not None and self._command.is_in
        return "python" if is_in else self._way

    def _phase(self) -> str:
        """Describe the stage of the start, for a timeout message."""
        if self._command is not None and self._command.has_python:
            return "its Python has not answered"
        if self.stage == "python":
            return "its shell has not answered"
        return f"{TITLES.get(self._way, 'ssh')} has not got in"

    async def end(self) -> None:
        """Close the script's input; kill the script after 1 s."""
        if self._command is not None:
            await self._command.end(1.0)


class Answer(NamedTuple):
    """Answer of a host, or the reason why there is none."""

    value: Any
    failure: str = ""


@dataclass(frozen=True)
class HostProbes:
    """Hosts to ask, and how to reach them.

    ``say`` gets the command line that starts the script on each host.
    """

    plans: Sequence[HostPlan]
    remote: RemoteOptions
    say: Callable[[str], None] = lambda _: None

    def ask(self, questions: Mapping[int, tuple[str, Any]], timeout_s: float) -> dict[int, Answer]:
        """Ask hosts in parallel, by host index, for at most ``timeout_s``."""
        return asyncio.run(self._ask(questions, timeout_s))

    async def _ask(
        self, questions: Mapping[int, tuple[str, Any]], timeout_s: float
    ) -> dict[int, Answer]:
        async def ask_one(place: int) -> Answer:
            talk = HostTalk(self.plans[place], self.remote)

            async def meet() -> Any:
                talk.begin(self.say)
                return await talk.ask(*questions[place])

            try:
                value = await talk.attempt(meet(), timeout_s)
            finally:
                await talk.end()
            return Answer(value, talk.failure)

        answers = await asyncio.gather(*map(ask_one, questions))
        return dict(zip(questions, answers, strict=True))
