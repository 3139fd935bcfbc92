"""Ask all hosts for their facts, and whether they reach each other."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.protocol import HostPlan, RemoteOptions

from ..probe.talk import HostTalk

_PINGS = 3


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


async def look(plans: Sequence[HostPlan], question: ProbeQuestion) -> list[Probe]:
    """Ask all hosts at once; the first is this machine.

    Each of the three steps on a host may take the timeout of the remote options.
    """
    timeout_s = question.remote.timeout_s
    probes = [Probe(plan) for plan in plans]
    talks = [HostTalk(plan, question.remote) for plan in plans]

    async def step(index: int, work: Callable[[int], Awaitable[None]]) -> None:
        probe, talk = probes[index], talks[index]
        await talk.attempt(work(index), timeout_s)
        probe.why_not, probe.stage = talk.failure, talk.stage

    async def meet(index: int) -> None:
        probe, talk = probes[index], talks[index]
        talk.begin()
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
