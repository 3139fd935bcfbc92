"""What must hold between hosts: names, ports, clocks, logins. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ._finding import Finding, Status, Task, odd, on
from ._probing import Probe

__all__ = ["check_clocks", "check_logins", "check_names", "check_ports", "say_clocks", "say_ports"]

_MOST_CLOCK_S = 1.0


def check_names(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    status: Status = "fail" if task.backend == "mpi" else "note"  # only MPI goes by names
    for name in there[0].facts["names"]:
        for probe, other, here in odd(there, partial(_far, name)):
            if other is None or here is None:
                continue
            text = (
                f"{name} is {', '.join(other) or 'not known'}, "
                f"and {', '.join(here) or 'not known'} on this machine"
            )
            mend = f"the same line for {name} in /etc/hosts of both"
            yield Finding("names", status, probe.plan.name, text, mend)


def _far(name: str, probe: Probe) -> list[str] | None:
    """What a name resolves to; None where that is the host itself, which may say loopback."""
    found: list[str] = probe.facts["names"][name]
    is_own = name.partition(".")[0].lower() == probe.facts["hostname"].partition(".")[0].lower()
    return None if is_own else found


def check_ports(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    for probe in there:
        for address, port in probe.ports.items():
            if isinstance(port, str):
                text = f"its ranks cannot listen on {address}: {port}"
                mend = "the addresses in the hostfile (ips), or --interface"
                yield Finding("ports", "fail", probe.plan.name, text, mend)
        if probe.why_not:
            yield Finding("ports", "fail", probe.plan.name, probe.why_not)
        if task.question.remote.interface and not probe.facts["interface"]:
            text = f"it has no interface {task.question.remote.interface} with an address"
            yield Finding("ports", "fail", probe.plan.name, text, on(probe.plan, "ip -br address"))
    for probe in there:
        for target, why in probe.reached:
            if why and not target.why_not:
                text = f"{probe.plan.name} does not reach it at {why}"
                source = next(iter(probe.ports), "ITS-ADDRESS")
                command = f"sudo ufw allow proto tcp from {source}"
                mend = f"{on(target.plan, command)} (or as its firewall is told)"
                yield Finding("ports", "fail", target.plan.name, text, mend)


def say_ports(there: Sequence[Probe]) -> str:
    n_paths = sum(len(probe.reached) for probe in there)
    return f"each host reaches each other ({n_paths} ways)"


def check_clocks(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe in there[1:]:
        if abs(probe.clock_s) - probe.clock_error_s > _MOST_CLOCK_S:
            text = (
                f"its clock is {abs(probe.clock_s):.1f} s {'fast' if probe.clock_s > 0 else 'slow'}"
            )
            mend = on(probe.plan, "sudo timedatectl set-ntp true")
            yield Finding("clocks", "fail", probe.plan.name, text, mend)


def say_clocks(there: Sequence[Probe]) -> str:
    most = max(abs(probe.clock_s) + probe.clock_error_s for probe in there[1:] or there)
    return f"within {max(most, 0.001):.3f} s"


def check_logins(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe in there:
        if not probe.facts["has_ssh"]:
            yield Finding(
                "logins", "fail", probe.plan.name, "it has no ssh, which mpirun needs there"
            )
        for other, why in probe.logged_in:
            if why:
                target = other.plan.name
                mend = on(probe.plan, f"ssh-copy-id {target}")
                yield Finding("logins", "fail", probe.plan.name, f"ssh {target}: {why}", mend)
