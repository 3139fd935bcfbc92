"""Runs the doctor's script on all hosts at once and asks it: each with a time limit of its own.

It knows ssh, what starts processes within a job, and the script; what the answers mean is decided
in `_checks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ipaddress
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.hosts import TITLES
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.supervisor import (
    Heard,
    HostUnreachable,
    ssh_command,
    start_words,
    why_ended,
    why_not_in,
)

from . import _probe

__all__ = ["FED", "Probe", "Question", "look"]

FED = ("slurm", "mpi")  # launchers that hand an input on, and words as they are

_IN, _FOUND = "phalanx-doctor: in", "phalanx-doctor: python"
_LINE_MAX_NBYTES = 4 << 20
_PINGS = 3
# No quotes in it: it stands inside those of sh, and those of the login shell.
_RECEIVE = "import sys;exec(sys.stdin.read(int(sys.stdin.readline())))"
_SCRIPT = (
    f'echo; echo "{_IN}"; p="$1"; case "$p" in "~/"*) p="$HOME/${{p#??}}";; esac; '
    f'command -v "$p" >/dev/null 2>&1 || exit 127; echo "{_FOUND}"; exec "$p" -u -c "{_RECEIVE}"'
)


@dataclass(frozen=True)
class Question:
    """What all hosts are asked, and how they are reached."""

    remote: RemoteOptions
    folder: str = ""
    script: str = ""
    is_both_ways: bool = False


@dataclass(eq=False)
class Probe:
    """What one host has answered; ``why_not`` says why it has not."""

    plan: HostPlan
    why_not: str = ""
    stage: str = "ssh"
    facts: dict[str, Any] = field(default_factory=dict)
    clock_s: float = 0.0
    clock_error_s: float = 0.0
    # By address: the port it listens on, or why it cannot.
    ports: dict[str, int | str] = field(default_factory=dict)
    # The other hosts, each with why it was not reached: empty where it was.
    reached: list[tuple[Probe, str]] = field(default_factory=list)
    logged_in: list[tuple[Probe, str]] = field(default_factory=list)

    @property
    def has_answered(self) -> bool:
        """Whether its facts are known."""
        return bool(self.facts)


class _Silent(Exception):
    """The host has ended, or says something else."""


class _Talk:
    """One script that runs on a host."""

    def __init__(self, probe: Probe, question: Question) -> None:
        self._probe = probe
        self._remote = question.remote
        is_far = not probe.plan.is_local and self._remote.launcher in FED
        self._way = self._remote.launcher if is_far else "ssh"
        probe.stage = self._way
        far = "" if probe.plan.is_local else question.remote.python
        self._python = far or sys.executable  # what is here is what the others are compared with
        self._process: asyncio.subprocess.Process | None = None
        self._seen: set[str] = set()

    async def begin(self) -> None:
        """Start it and send it its code."""
        script = ["/bin/sh", "-c", _SCRIPT, "phalanx", self._python]
        plan = self._probe.plan
        if self._way != "ssh":
            try:
                script = [*start_words(plan, self._remote), *script]
            except HostUnreachable as error:
                raise _Silent(error.text) from None
        elif not plan.is_local:
            script = ssh_command(plan, self._remote, f"exec {shlex.join(script)}")
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *script, stdin=pipe, stdout=pipe, stderr=pipe, limit=_LINE_MAX_NBYTES
        )
        code = inspect.getsource(_probe)
        self._write(f"{len(code)}\n{code}")

    def _write(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())

    async def ask(self, word: str, asked: Any = None) -> Any:
        """Ask and wait for the answer; `_Silent` where none comes."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            self._write(json.dumps([word, asked]) + "\n")
            while line := (await self._process.stdout.readline()).decode(errors="replace"):
                if line.startswith(_probe.MARK):
                    return json.loads(line[len(_probe.MARK) :])
                self._seen.add(line.strip())
        except (ConnectionError, ValueError) as error:
            raise _Silent(str(error)) from error
        raise _Silent(await self._last_words())

    async def _last_words(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        stderr = (await self._process.stderr.read()).decode(errors="replace")
        status = await self._process.wait()
        is_in, has_python = _IN in self._seen, _FOUND in self._seen
        self._probe.stage = "python" if is_in else self._way
        if has_python:
            lines = stderr.strip().splitlines() or ["it said nothing"]
            return f"its Python does not run the checks: {lines[-1]}"
        if self._way != "ssh" and not is_in:
            lines = [line.strip() for line in stderr.splitlines() if line.strip(" -*\t")]
            return f"{TITLES[self._way]} does not start a process there: {(lines or ['it said nothing'])[0]}"
        heard = Heard(self._way, self._probe.plan, self._python, is_in, has_python, status, stderr)
        return why_ended(heard) if is_in or status < 0 else why_not_in(heard)

    @property
    def is_by_ssh(self) -> bool:
        """Whether ssh has brought us there."""
        return self._way == "ssh" and not self._probe.plan.is_local

    def phase(self) -> str:
        """How far it has got, for a time that is over."""
        if _FOUND in self._seen:
            return "its Python has not answered"
        self._probe.stage = "python" if _IN in self._seen else self._way
        way = "ssh" if self._way == "ssh" else TITLES[self._way]
        return "its shell has not answered" if _IN in self._seen else f"{way} has not got in"

    async def end(self) -> None:
        """End it: its input ends, and what does not heed that is killed."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            try:
                await asyncio.wait_for(self._process.wait(), 1.0)
            except (asyncio.TimeoutError, TimeoutError):
                self._process.kill()
                await self._process.wait()


async def look(
    plans: Sequence[HostPlan], names: Sequence[str], question: Question, timeout_s: float
) -> list[Probe]:
    """Ask all hosts at once.

    Parameters
    ----------
    plans : sequence of HostPlan
        The first is this machine, where the root supervisor would run.
    names : sequence of str
        To be resolved on each host.
    timeout_s : float
        For each host and each of its three steps.
    """
    probes = [Probe(plan) for plan in plans]
    talks = [_Talk(probe, question) for probe in probes]

    async def step(index: int, work: Any) -> None:
        try:
            await asyncio.wait_for(work(index), timeout_s)
        except _Silent as error:
            probes[index].why_not = str(error)
        except (asyncio.TimeoutError, TimeoutError):
            probes[index].why_not = f"{talks[index].phase()}, after {timeout_s:g} s"
        except FileNotFoundError:
            probes[index].why_not = "there is no ssh on this machine: install OpenSSH's client"

    async def meet(index: int) -> None:
        probe, talk = probes[index], talks[index]
        await talk.begin()
        asked = {
            "names": names, "folder": question.folder, "script": question.script,
            "interface": question.remote.interface,
        }  # fmt: skip
        told = await talk.ask("facts", asked)
        probe.clock_error_s = float("inf")
        for _ in range(_PINGS):
            begun = time.time()
            there = await talk.ask("time")
            error_s = (time.time() - begun) / 2
            if error_s < probe.clock_error_s:
                probe.clock_s, probe.clock_error_s = there - begun - error_s, error_s
        if not talk.is_by_ssh:
            told["came_by"] = []  # that of the shell in which the job was begun
        probe.facts = told

    async def listen(index: int) -> None:
        probes[index].ports = await talks[index].ask("listen", _addresses(probes, index))

    async def reach(index: int) -> None:
        probe, talk = probes[index], talks[index]
        others = [i for i, other in enumerate(probes) if i != index and other.has_answered]
        targets = {str(other): _endpoints(probes, index, other) for other in others}
        answers = await talk.ask("reach", targets)
        probe.reached = [(probes[int(other)], why) for other, why in answers.items()]
        if question.is_both_ways and probe.facts["has_ssh"]:
            logins = {
                str(other): [*_port(probes[other].plan), "--", _login(probes, index, other)]
                for other in others
                if probes[other].plan.ranks
            }
            answers = await talk.ask("log_in", logins)
            probe.logged_in = [(probes[int(other)], why) for other, why in answers.items()]

    every = range(len(probes))
    try:
        await asyncio.gather(*(step(index, meet) for index in every))
        there = [index for index in every if probes[index].has_answered]
        for work in (listen, reach) if len(there) > 1 else ():
            # One that was too late is not asked again: its next answer would be to the question before.
            await asyncio.gather(*(step(i, work) for i in there if not probes[i].why_not))
    finally:
        await asyncio.gather(*(talk.end() for talk in talks))
    return probes


def _port(plan: HostPlan) -> list[str]:
    return ["-p", str(plan.port)] if plan.port else []


def _login(probes: Sequence[Probe], index: int, other: int) -> str:
    """What host ``index`` calls another: as MPI's launcher the hostfile's name, if that is one there."""
    plan = probes[other].plan
    endpoints = _endpoints(probes, index, other)
    return endpoints[0][0] if plan.is_local and endpoints else plan.name


def _endpoints(probes: Sequence[Probe], index: int, other: int) -> list[tuple[str, int]]:
    """Where host ``index`` would reach another, as its ranks would: the likeliest first."""
    seen = probes[index].facts["came_by"][:1] if probes[other].plan.is_local else []
    ports = probes[other].ports
    ordered = sorted(ports, key=lambda address: address not in seen)
    return [(address, port) for address in ordered if isinstance(port := ports[address], int)]


def _addresses(probes: Sequence[Probe], index: int) -> list[str]:
    """Where a host's ranks would listen: as told, else on what ssh has gone through."""
    probe = probes[index]
    told: list[str] = [*probe.plan.addresses, *probe.facts["interface"]]
    if told:
        return list(dict.fromkeys(told))
    if probe.plan.is_local:
        # Where the others have seen us come from.
        seen = [other.facts["came_by"][:1] for other in probes if other.has_answered]
        found = {address for words in seen for address in words}
        return sorted(found) or _known(probes, probe)
    came_by: list[str] = probe.facts["came_by"]
    return came_by[2:3] or _known(probes, probe)


def _known(probes: Sequence[Probe], probe: Probe) -> list[str]:
    """What the other hosts take its name for, but for loopback."""
    name = probe.plan.name.rpartition("@")[2]
    found = [
        address
        for other in probes
        if other is not probe and other.has_answered
        for address in other.facts["names"].get(name, [])
    ]
    return [text for text in dict.fromkeys(found) if not ipaddress.ip_address(text).is_loopback]
