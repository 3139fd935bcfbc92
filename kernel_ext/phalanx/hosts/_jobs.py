"""The hosts of the batch job that this process is in, as a hostfile, whichever scheduler's it is.

It reads the environment and the files that schedulers leave there; it starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ._host import Host, Hostfile
from ._slurm import slurm_hosts

__all__ = ["LAUNCHERS", "TITLES", "Recognised", "found_job", "job_hosts", "recognised"]

# What `--launcher` takes, as its help says it.
LAUNCHERS = {
    "ssh": "by ssh, one for each host (the default)",
    "slurm": "by srun, within a job of Slurm's; --nodes N: a job is submitted with sbatch",
    "pbs": "by pbsdsh, within a job of OpenPBS, PBS Pro or Torque; --nodes N: with qsub",
    "sge": "by qrsh -inherit, within a job of Grid Engine's; --nodes N: an array of jobs, with qsub",
    "lsf": "by blaunch, within a job of LSF's; --nodes N: with bsub",
    "htcondor": "--nodes N: N jobs in HTCondor's pool, with condor_submit",
    "mpi": "by mpirun, which uses what it was built for: a job's nodes, or --hosts",
    "local": "a trial: all of them on this machine",
}
TITLES = {
    "slurm": "Slurm",
    "pbs": "PBS",
    "sge": "Grid Engine",
    "lsf": "LSF",
    "htcondor": "HTCondor",
    "mpi": "MPI",
}


class _Kind(NamedTuple):
    """How a scheduler tells a job of its hosts.

    ``signs``: variables, one of which every job of several hosts has; ``job``: that with its
    number; ``read`` finds the hosts and their slots; ``begin``: how such a job is begun.
    """

    signs: tuple[str, ...]
    job: str
    read: Callable[[Mapping[str, str]], dict[str, int]]
    begin: str


def _lines(path: str) -> list[list[str]]:
    return [line.split() for line in Path(path).read_text().splitlines() if line.strip()]


def _counted(names: Iterable[str]) -> dict[str, int]:
    """Count names that stand once for each slot, in the order of their first places."""
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _pbs(environ: Mapping[str, str]) -> dict[str, int]:
    return _counted(words[0] for words in _lines(environ["PBS_NODEFILE"]))


def _sge(environ: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, slots, *_ in _lines(environ["PE_HOSTFILE"]):  # a line for each queue on the host
        found[name] = found.get(name, 0) + int(slots)
    return found


def _lsf(environ: Mapping[str, str]) -> dict[str, int]:
    if path := environ.get("LSB_DJOB_HOSTFILE", ""):
        return _counted(words[0] for words in _lines(path))
    words = environ["LSB_MCPU_HOSTS"].split()
    return {name: int(n) for name, n in zip(words[::2], words[1::2], strict=True)}


_KINDS = {
    "slurm": _Kind(("SLURM_JOB_NODELIST",), "SLURM_JOB_ID", lambda _: {}, "salloc or sbatch"),
    "pbs": _Kind(("PBS_NODEFILE",), "PBS_JOBID", _pbs, "qsub"),
    "sge": _Kind(("PE_HOSTFILE",), "JOB_ID", _sge, "qsub or qrsh, with -pe"),
    "lsf": _Kind(("LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS"), "LSB_JOBID", _lsf, "bsub"),
}


def found_job(environ: Mapping[str, str]) -> str:
    """Return the launcher of the job that this process is in; "" in none, or in several.

    Examples
    --------
    >>> found_job({"PBS_NODEFILE": "/var/spool/pbs/aux/12.server"}), found_job({})
    ('pbs', '')
    """
    found = [name for name, its in _KINDS.items() if any(environ.get(key) for key in its.signs)]
    return found[0] if len(found) == 1 else ""


def job_hosts(launcher: str, environ: Mapping[str, str], *, with_slots: bool = True) -> Hostfile:
    """Return the hosts of the job in their order; the slots of each are its share of the job.

    Raises
    ------
    ValueError
        This process is in no such job, or what tells of its hosts cannot be read.
    """
    if launcher == "mpi":
        launcher = found_job(environ)
        if not launcher:
            msg = "mpi: name the hosts with --hosts or --hostfile, or start it within a job"
            raise ValueError(msg)
    if launcher == "htcondor":
        msg = "htcondor: say how many jobs to submit, --nodes N: a job of HTCondor's has one host"
        raise ValueError(msg)
    if launcher == "slurm":
        return slurm_hosts(environ, with_slots=with_slots)
    its = _KINDS[launcher]
    title, number = TITLES[launcher], environ.get(its.job, "").partition(".")[0]
    if not any(environ.get(sign) for sign in its.signs):
        msg = (
            f"this is no {title} job: start it in {its.begin}, or say --nodes N, "
            "and a job is submitted"
        )
        raise ValueError(msg)
    try:
        found = its.read(environ)
        hosts = tuple(Host(name, slots=n if with_slots else -1) for name, n in found.items())
    except (OSError, ValueError, IndexError, KeyError) as error:
        sign = next(sign for sign in its.signs if environ.get(sign))
        text = f"{title} does not say which hosts this job has ({sign}: {error}): use --hosts"
        raise ValueError(text) from None
    if not hosts:
        msg = f"{title} says that this job has no hosts: name them with --hosts"
        raise ValueError(msg)
    return Hostfile(hosts, source=f"{title}'s job {number}")


class Recognised(NamedTuple):
    """What a job that we are in means for a start that names no hosts: ``note`` is said of it."""

    launcher: str | None
    note: str = ""


def recognised(environ: Mapping[str, str], n: int | None) -> Recognised:
    """Say how to start on the hosts of the job that we are in; ``n`` is what a user has said.

    A job of one host is no reason to do anything but what is done without it. With a number of
    ranks and nothing else it is not clear which hosts are meant: this machine, as everywhere.
    """
    launcher = found_job(environ)
    if not launcher:
        return Recognised(None)
    try:
        found = job_hosts(launcher, environ)
    except ValueError:  # it is of a job that is over, or of another machine
        return Recognised(None)
    if len(found.hosts) < 2:
        return Recognised(None)
    if n is not None:
        return Recognised(
            None,
            f"{found.source} has {len(found.hosts)} hosts; -n {n} alone starts ranks on this one: "
            f"--launcher {launcher} starts {n} on each",
        )
    names = ", ".join(host.ssh for host in found.hosts[:8])
    more = f" and {len(found.hosts) - 8} more" if len(found.hosts) > 8 else ""
    text = f"{found.source}: ranks start on its hosts, {names}{more} (--hosts localhost: only here)"
    return Recognised(launcher, text)
