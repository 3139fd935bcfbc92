"""What a launcher needs of this machine before anything is started by it: commands, a folder.

It looks, and asks the scheduler how it is; nothing is submitted or changed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.hosts import TITLES, job_hosts
from phalanx.supervisor import job_folder

from ._finding import Finding

__all__ = ["check_launcher"]

_ANSWER_S = 10.0
# File systems that several machines see, as /proc/mounts calls them.
_SHARED = re.compile(
    r"nfs|lustre|gpfs|beegfs|ceph|glusterfs|cifs|smb|afs|panfs|orangefs|pvfs|9p|virtiofs|fuse\.sshfs"
    r"|daos|weka|fhgfs|moosefs|quobyte"
)


class _Kind(NamedTuple):
    """The commands of a scheduler: which start a process within a job, submit one, and tell of it.

    ``version`` are words that make ``teller`` say what it is, by which ``sign`` knows its own kind;
    never one that submits, which takes what it does not know for a job. ``ask`` reaches the
    scheduler. ``is_fed``: keys go over a standard input within a job, and need no folder.
    """

    start: str
    submit: str
    version: tuple[str, ...]
    sign: str
    ask: tuple[str, ...] = ()
    is_fed: bool = True


_KINDS = {
    "slurm": _Kind(
        "srun", "sbatch", ("srun", "--version"), r"slurm|^srun: ", ("sinfo", "--noheader")
    ),
    "pbs": _Kind("pbsdsh", "qsub", ("qstat", "--version"), r"pbs|version:", ("qstat", "-q"), False),
    "sge": _Kind("qrsh", "qsub", ("qconf", "-help"), r"\bS?GE\b|grid engine", ("qconf", "-sql")),
    "lsf": _Kind("blaunch", "bsub", ("bqueues", "-V"), r"\blsf\b", ("bqueues",)),
    "htcondor": _Kind(
        "", "condor_submit", ("condor_version",), r"condor", ("condor_status", "-totals")
    ),
    "mpi": _Kind("mpirun", "", ("mpirun", "--version"), r"mpi|hydra"),
}


def check_launcher(
    launcher: str, nodes: int, environ: Mapping[str, str], *, has_hosts: bool
) -> Iterator[Finding]:
    """Check this machine for starts by a launcher; ``nodes``: a job of so many is to be submitted.

    ``has_hosts``: they were named, and are not to be those of a job.
    """
    its, title = _KINDS[launcher], TITLES[launcher]
    program = its.submit if nodes or not its.start else its.start
    path = shutil.which(program)
    if path is None:
        text = f"there is no {program} on the PATH"
        mend = f"go to a machine of the {title} cluster, or load its module"
        if launcher == "mpi":
            mend = "install Open MPI or MPICH, or name the hosts without --launcher: by ssh"
        yield Finding("launcher", "fail", "", text, mend)
        return
    yield _kind(launcher, path)
    if its.ask:
        yield _asked(its.ask, title)
    if not nodes and not has_hosts:
        yield _job(launcher, environ)
    if nodes or not its.is_fed:
        yield _folder()


def _run(words: Sequence[str]) -> tuple[int, str]:
    """Return the exit status of a command and all that it says."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_ANSWER_S:g} s"
    except OSError as error:
        return 1, f"{words[0]}: {error.strerror}"
    return done.returncode, done.stdout.decode(errors="replace")


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing")


def _kind(launcher: str, path: str) -> Finding:
    its, title = _KINDS[launcher], TITLES[launcher]
    teller = its.version[0]
    if shutil.which(teller) is None:
        text = f"{path} has no {teller} beside it: is it {title}'s?"
        return Finding(
            "launcher", "fail", "", text, f"the folder of {title}'s commands on the PATH"
        )
    status, said = _run(its.version)
    is_beside = Path(path).parent == Path(shutil.which(teller) or "").parent
    if is_beside and re.search(its.sign, said, re.IGNORECASE | re.MULTILINE):
        version = "" if status else f" ({_first(said)})"
        return Finding("launcher", "ok", "", f"{path} is {title}'s{version}")
    text = f"{path} is not {title}'s, as it seems: {' '.join(its.version)} says {_first(said)}"
    others = [name for name, it in _KINDS.items() if it.submit == its.submit and name != launcher]
    mend = f"--launcher {' or '.join(others)}" if others else f"{title}'s folder first on the PATH"
    return Finding("launcher", "fail", "", text, mend)


def _asked(words: Sequence[str], title: str) -> Finding:
    status, said = _run(words)
    if status:
        text = f"{title} does not answer {' '.join(words)}: {_first(said)}"
        mend = "is this machine one of its cluster, and is the scheduler up?"
        return Finding("scheduler", "fail", "", text, mend)
    return Finding("scheduler", "ok", "", f"{title} answers {words[0]}")


def _job(launcher: str, environ: Mapping[str, str]) -> Finding:
    try:
        found = job_hosts(launcher, environ)
    except ValueError as error:
        return Finding("job", "fail", "", str(error))
    slots = ", ".join(f"{host.ssh} {host.slots}" for host in found.hosts)
    return Finding("job", "ok", "", f"{found.source}, its hosts and slots: {slots}")


def _folder() -> Finding:
    """Whether the nodes see the folder in which supervisors find their keys, as far as one can see."""
    folder = job_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    kind = _file_system(there)
    if _SHARED.search(kind):
        return Finding("shared", "ok", "", f"{folder} is on {kind}, which nodes can have as well")
    text = f"{folder} is on {kind or 'a file system'} that may be this machine's alone"
    return Finding("shared", "note", "", text, "PHALANX_JOB_DIR=a folder that all nodes have")


def _file_system(path: Path) -> str:
    """Return the kind of file system that holds a path; "" where that is not told."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    real = path.resolve()
    holding = [(point, kind) for point, kind in mounts if real.is_relative_to(point)]
    return max(holding, key=lambda its: len(its[0]), default=("", ""))[1]
