"""Find the hosts of this process's batch job.

Reads the environment and the files that schedulers leave. Only `scontrol` is run, to expand Slurm's
list of nodes. Slurm has a launcher; on the hosts of other schedulers' jobs, ranks start by ssh.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from .host import Host, Hostfile

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")

# The values of `--launcher` and their help texts.
LAUNCHERS = {
    "ssh": "by ssh, one for each host (the default): of --hosts, or of a job that this runs in",
    "slurm": "by srun, within a job of Slurm's; --nodes N: a job is submitted with salloc",
    "mpi": "by mpirun, which uses what it was built for: a job's nodes, or --hosts",
    "local": "a trial: all of them on this machine",
}

# The launchers that use a job's hosts unless hosts are named.
TITLES = {"slurm": "Slurm", "mpi": "MPI"}


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's short form of tasks per node; empty if malformed.

    Examples
    --------
    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    found = [_TASKS.fullmatch(part) for part in text.split(",")]
    if any(match is None for match in found):
        return []
    return [int(match[1]) for match in found if match for _ in range(int(match[2] or 1))]


class _JobKind(NamedTuple):
    """Description of one scheduler's jobs.

    ``signs``: environment variables, at least one of which is set in every job of several hosts.
    ``job``: the variable with the job's number. ``read``: returns the hosts and their slots.
    """

    title: str
    signs: tuple[str, ...]
    job: str
    read: Callable[[Mapping[str, str]], dict[str, int]]


def _lines(path: str) -> list[list[str]]:
    return [line.split() for line in Path(path).read_text().splitlines() if line.strip()]


def _counted(names: Iterable[str]) -> dict[str, int]:
    """Count names listed once per slot, in order of first appearance."""
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _pbs(environ: Mapping[str, str]) -> dict[str, int]:
    return _counted(words[0] for words in _lines(environ["PBS_NODEFILE"]))


def _sge(environ: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, slots, *_ in _lines(environ["PE_HOSTFILE"]):  # one line per queue of the host
        found[name] = found.get(name, 0) + int(slots)
    return found


def _lsf(environ: Mapping[str, str]) -> dict[str, int]:
    if path := environ.get("LSB_DJOB_HOSTFILE", ""):
        return _counted(words[0] for words in _lines(path))
    words = environ["LSB_MCPU_HOSTS"].split()
    return {name: int(n) for name, n in zip(words[::2], words[1::2], strict=True)}


def _slurm(environ: Mapping[str, str]) -> dict[str, int]:
    command = ["scontrol", "show", "hostnames", environ["SLURM_JOB_NODELIST"]]
    said = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=20
    )
    names = said.stdout.split()
    slots = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", ""))
    return dict(zip(names, slots if len(slots) == len(names) else [-1] * len(names), strict=True))


_SLURM = "slurm"
_KINDS = {  # by the names of their launchers, of which only Slurm's is left
    _SLURM: _JobKind("Slurm", ("SLURM_JOB_NODELIST",), "SLURM_JOB_ID", _slurm),
    "pbs": _JobKind("PBS", ("PBS_NODEFILE",), "PBS_JOBID", _pbs),
    "sge": _JobKind("Grid Engine", ("PE_HOSTFILE",), "JOB_ID", _sge),
    "lsf": _JobKind("LSF", ("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS"), "LSB_JOBID", _lsf),
}


def check_launcher_name(launcher: str) -> None:
    """Raise `ValueError` if there is no such launcher."""
    if launcher in LAUNCHERS:
        return
    if launcher in _KINDS:
        title = _KINDS[launcher].title
        msg = (
            f"there is no launcher {launcher!r} any more: within a job of {title}, ranks start by ssh "
            "on the job's hosts (leave --launcher out, or with -n say --launcher ssh)"
        )
        raise ValueError(msg)
    msg = f"there is no launcher {launcher!r}; there are: {', '.join(LAUNCHERS)}"
    raise ValueError(msg)


def found_job(environ: Mapping[str, str]) -> str:
    """Return the scheduler of this process's job; "" for none or several.

    Examples
    --------
    >>> found_job({"PBS_NODEFILE": "/var/spool/pbs/aux/12.server"}), found_job({})
    ('pbs', '')
    """
    found = [name for name, its in _KINDS.items() if any(environ.get(key) for key in its.signs)]
    return found[0] if len(found) == 1 else ""


def uses_job(launcher: str | None, environ: Mapping[str, str]) -> bool:
    """Whether a start without named hosts uses a job's hosts."""
    return launcher in TITLES or (launcher == "ssh" and found_job(environ) != "")


def job_hosts(launcher: str, environ: Mapping[str, str], *, with_slots: bool = True) -> Hostfile:
    """Return the hosts of the job in order, with their slots.

    Raises `ValueError`: this process is in no such job, or the list of hosts cannot be read.
    """
    kind = found_job(environ)
    if launcher == _SLURM:
        kind = _SLURM if environ.get("SLURM_JOB_NODELIST") else ""
    if not kind:
        msg = f"{launcher}: name the hosts with --hosts or --hostfile, or start it within a job"
        if launcher == _SLURM:
            msg = (
                "this is no Slurm job: start it in salloc or sbatch, name nodes with --hosts, or "
                "say --nodes N, and a job is submitted"
            )
        raise ValueError(msg)
    its = _KINDS[kind]
    try:
        found = its.read(environ)
        hosts = tuple(Host(name, slots=n if with_slots else -1) for name, n in found.items())
    except (OSError, ValueError, IndexError, KeyError, subprocess.SubprocessError) as error:
        sign = next(sign for sign in its.signs if environ.get(sign))
        text = f"{its.title} does not say which hosts this job has ({sign}: {error}): use --hosts"
        raise ValueError(text) from None
    if not hosts:
        msg = f"{its.title} says that this job has no hosts: name them with --hosts"
        raise ValueError(msg)
    return Hostfile(hosts, source=f"{its.title}'s job {environ.get(its.job, '').partition('.')[0]}")


def recognised(environ: Mapping[str, str], n: int | None) -> tuple[str | None, str]:
    """Decide whether a start without named hosts uses the job's hosts.

    Returns the launcher of this process's job, and a note for the user. ``n`` is the number of ranks that the user gave. A job of one host changes nothing. If only the
    number of ranks is given, it is unclear which hosts are meant: ranks start on this machine.
    """
    kind = found_job(environ)
    launcher = _SLURM if kind == _SLURM else "ssh"
    try:
        found = job_hosts(launcher, environ)
    except ValueError:  # no job, or the variables are of one that is over, or of another machine
        return None, ""
    if len(found.hosts) < 2:
        return None, ""
    if n is not None:
        return None, (
            f"{found.source} has {len(found.hosts)} hosts; -n {n} alone starts ranks on this one: "
            f"--launcher {launcher} starts {n} on each"
        )
    names = ", ".join(host.ssh for host in found.hosts[:8])
    more = f" and {len(found.hosts) - 8} more" if len(found.hosts) > 8 else ""
    text = f"{found.source}: ranks start on its hosts, {names}{more} (--hosts localhost: only here)"
    return launcher, text
