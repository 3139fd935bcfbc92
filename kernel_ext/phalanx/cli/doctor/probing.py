"""Run the doctor's script on all hosts at once.

The script is `probe_main`; ssh or a job's launcher starts it. `doctor` judges the answers.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
_PINGS = 3
# No quotes in it: sh and the login shell each put quotes around it.
_RECEIVE = "import sys;exec(sys.stdin.read(int(sys.stdin.readline())))"
_SCRIPT = far_script(f'exec "$p" -u -c "{_RECEIVE}"')


@dataclass(frozen=True)
class ProbeQuestion:
    """The questions for all hosts, and how to reach the hosts."""

    remote: RemoteOptions
    backend: str = "any"
    folder: str = ""
    script: str = ""
    names: Sequence[str] = ()  # to resolve on each host


@dataclass(eq=False)
class Probe:
    """The answers of one host; ``why_not``: why there are none."""

    plan: HostPlan
    why_not: str = ""
    stage: str = "ssh"
    facts: dict[str, Any] = field(default_factory=dict)
    clock_s: float = 0.0
    clock_error_s: float = 0.0
    # By address: the listening port, or why the host cannot listen.
    ports: dict[str, int | str] = field(default_factory=dict)
    # The other hosts, each with the error text of the connection; "" if it was reached.
    reached: list[tuple[Probe, str]] = field(default_factory=list)
    logged_in: list[tuple[Probe, str]] = field(default_factory=list)

    @property
    def has_answered(self) -> bool:
        """Whether the facts of the host are known."""
        return bool(self.facts)


class _Silent(Exception):
    """The script has ended, or sent an invalid answer."""


class _Talk:
    """The script on one host, and the connection to it."""

    def __init__(self, probe: Probe, question: ProbeQuestion) -> None:
        self._probe = probe
        self._remote = question.remote
        is_far = not probe.plan.is_local and self._remote.launcher in TITLES
        self._way = self._remote.launcher if is_far else "ssh"
        probe.stage = self._way
        self._command: RemoteCommand | None = None
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()

    def _launch(self) -> LaunchSpec:
        plan = self._probe.plan
        way = ssh_launch(plan, self._remote, _SCRIPT)
        if self._way == "ssh" and not plan.is_local:
            return way._replace(on_end=self._on_end)
        # The other hosts are compared with this Python.
        python = sys.executable if plan.is_local else way.python
        words = [] if plan.is_local else start_words(plan, self._remote)
        command = [*words, "/bin/sh", "-c", _SCRIPT, "phalanx", python]
        missing = f"there is no {command[0]} on this machine"
        return way._replace(python=python, command=command, missing=missing, on_end=self._on_end)

    async def begin(self) -> None:
        """Start the script and send its code."""
        code = inspect.getsource(probe_main)
        try:
            way = self._launch()
            self._command = RemoteCommand(way, f"{len(code)}\n{code}".encode(), self._on_line)
        except HostUnreachable as error:
            raise _Silent(error.text) from None

    def _on_line(self, line: bytes) -> None:
        if line.startswith(_MARK):
            self._answers.put_nowait(line[len(_MARK) :])

    def _on_end(self) -> None:
        self._answers.put_nowait(None)

    async def ask(self, word: str, asked: Any = None) -> Any:
        """Ask and wait for the answer; raise `_Silent` if none comes."""
        assert self._command is not None
        self._command.write((json.dumps([word, asked]) + "\n").encode())
        answer = await self._answers.get()
        if answer is None:
            raise _Silent(await self._last_output())
        try:
            return json.loads(answer)
        except ValueError as error:
            raise _Silent(str(error)) from error

    async def _last_output(self) -> str:
        assert self._command is not None
        why, outcome = await self._command.ended(), self._command.outcome
        assert outcome is not None
        self._probe.stage = "python" if outcome.is_in else self._way
        if outcome.has_python:
            lines = outcome.stderr.strip().splitlines() or ["without an error message"]
            return f"its Python does not run the checks: {lines[-1]}"
        if self._way != "ssh" and not outcome.is_in:
            lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip(" -*\t")]
            said = (lines or ["no error message"])[0]
            return f"{TITLES[self._way]} does not start a process there: {said}"
        return why

    @property
    def is_by_ssh(self) -> bool:
        """Whether the host was reached by ssh."""
        return self._way == "ssh" and not self._probe.plan.is_local

    def phase(self) -> str:
        """Describe the stage of the start, for a timeout message."""
        is_in = self._command is not None and self._command.is_in
        if self._command is not None and self._command.has_python:
            return "its Python has not answered"
        self._probe.stage = "python" if is_in else self._way
        way = "ssh" if self._way == "ssh" else TITLES[self._way]
        return "its shell has not answered" if is_in else f"{way} has not got in"

    async def end(self) -> None:
        """Close the script's input; kill the script after 1 s."""
        if self._command is not None:
            await self._command.end(1.0)


async def look(plans: Sequence[HostPlan], question: ProbeQuestion) -> list[Probe]:
    """Ask all hosts at once; the first is this machine.

    Each of the three steps on a host may take the timeout of the remote options.
    """
    timeout_s = question.remote.timeout_s
    probes = [Probe(plan) for plan in plans]
    talks = [_Talk(probe, question) for probe in probes]

    async def step(index: int, work: Any) -> None:
        try:
            await asyncio.wait_for(work(index), timeout_s)
        except _Silent as error:
            probes[index].why_not = str(error)
        except (asyncio.TimeoutError, TimeoutError):
            probes[index].why_not = f"{talks[index].phase()}, after {timeout_s:g} s"

    async def meet(index: int) -> None:
        probe, talk = probes[index], talks[index]
        await talk.begin()
        asked = {
            "names": list(question.names), "folder": question.folder, "script": question.script,
            "interface": question.remote.interface,
        }  # fmt: skip
        facts = await talk.ask("facts", asked)
        probe.clock_error_s = float("inf")
        for _ in range(_PINGS):
            begun = time.time()
            there = await talk.ask("time")
            error_s = (time.time() - begun) / 2
            if error_s < probe.clock_error_s:
                probe.clock_s, probe.clock_error_s = there - begun - error_s, error_s
        if not talk.is_by_ssh:
            facts["came_by"] = []  # SSH_CONNECTION of the shell that started the job, not ours
        probe.facts = facts

    async def listen(index: int) -> None:
        probes[index].ports = await talks[index].ask("listen", _addresses(probes, index))

    async def reach(index: int) -> None:
        probe, talk = probes[index], talks[index]
        others = [i for i, other in enumerate(probes) if i != index and other.has_answered]
        targets = {str(other): _endpoints(probes, index, other) for other in others}
        answers = await talk.ask("reach", targets)
        probe.reached = [(probes[int(other)], why) for other, why in answers.items()]
        if question.backend == "mpi" and probe.facts["has_ssh"]:
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
            # Skip hosts that timed out: their next answer would belong to the earlier question.
            await asyncio.gather(*(step(i, work) for i in there if not probes[i].why_not))
    finally:
        await asyncio.gather(*(talk.end() for talk in talks))
    return probes


def _port(plan: HostPlan) -> list[str]:
    return ["-p", str(plan.port)] if plan.port else []


def _login(probes: Sequence[Probe], index: int, other: int) -> str:
    """Return the name by which host ``index`` logs in to another.

    It is the hostfile's name, as MPI's launcher uses it; for this machine, an address.
    """
    plan = probes[other].plan
    endpoints = _endpoints(probes, index, other)
    return endpoints[0][0] if plan.is_local and endpoints else plan.name


def _endpoints(probes: Sequence[Probe], index: int, other: int) -> list[tuple[str, int]]:
    """Return the endpoints of another host, the likeliest first.

    They are the endpoints at which ranks of host ``index`` would reach it.
    """
    seen = probes[index].facts["came_by"][:1] if probes[other].plan.is_local else []
    ports = probes[other].ports
    ordered = sorted(ports, key=lambda address: address not in seen)
    return [(address, port) for address in ordered if isinstance(port := ports[address], int)]


def _addresses(probes: Sequence[Probe], index: int) -> list[str]:
    """Return the addresses on which a host's ranks would listen.

    They are the configured addresses, else the address of the ssh connection.
    """
    probe = probes[index]
    given: list[str] = [*probe.plan.addresses, *probe.facts["interface"]]
    if given:
        return list(dict.fromkeys(given))
    if probe.plan.is_local:
        # The addresses of this machine that the other hosts saw in our ssh connections.
        seen = [other.facts["came_by"][:1] for other in probes if other.has_answered]
        found = {address for words in seen for address in words}
        return sorted(found) or _known(probes, probe)
    came_by: list[str] = probe.facts["came_by"]
    return came_by[2:3] or _known(probes, probe)


def _known(probes: Sequence[Probe], probe: Probe) -> list[str]:
    """Return the host's addresses as resolved by others, without loopback."""
    name = probe.plan.name.rpartition("@")[2]
    found = [
        address
        for other in probes
        if other is not probe and other.has_answered
        for address in other.facts["names"].get(name, [])
    ]
    return [text for text in dict.fromkeys(found) if not ipaddress.ip_address(text).is_loopback]
