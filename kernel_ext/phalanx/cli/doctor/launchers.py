"""Check whether a launcher can start ranks from this machine.

The checks only read; nothing is submitted or changed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.hosts import TITLES, job_hosts

from .checks import Finding

_ANSWER_S = 10.0


class _Commands(NamedTuple):
    """The commands of a scheduler, and a pattern that matches ``start --version``.

    ``start`` starts a process in a job, ``submit`` submits a job, ``ask`` queries the scheduler.
    """

    start: str
    submit: str
    sign: str
    ask: tuple[str, ...] = ()


_KINDS = {
    "slurm": _Commands("srun", "salloc", r"slurm|^srun: ", ("sinfo", "--noheader")),
    "mpi": _Commands("mpirun", "", r"mpi|hydra"),
}


def check_launcher(
    launcher: str, nodes: int, environ: Mapping[str, str], *, has_hosts: bool
) -> Iterator[Finding]:
    """Check whether a launcher can start ranks from this machine.

    ``nodes``: number of nodes of a job to submit, or 0. ``has_hosts``: the user named the hosts, so
    the hosts of a job are not needed.
    """
    its, title = _KINDS[launcher], TITLES[launcher]
    program = its.submit if nodes else its.start
    path = shutil.which(program)
    if path is None:
        text = f"there is no {program} on the PATH"
        fix = f"go to a machine of the {title} cluster, or load its module"
        if launcher == "mpi":
            fix = "install Open MPI or MPICH, or name the hosts without --launcher: by ssh"
        yield Finding("launcher", "fail", "", text, fix)
        return
    yield _kind(launcher, path)
    if its.ask:
        yield _asked(its.ask, title)
    if not nodes and not has_hosts:
        yield check_job_hosts(launcher, environ)


def _run(words: Sequence[str]) -> tuple[int, str]:
    """Run a command; return its exit status and its output."""
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
    """Check that a command is the scheduler's.

    Only ``start`` is run: ``submit`` could submit a job.
    """
    its, title = _KINDS[launcher], TITLES[launcher]
    start = shutil.which(its.start)
    if start is None:
        text = f"{path} has no {its.start} beside it: is it {title}'s?"
        fix = f"the folder of {title}'s commands on the PATH"
        return Finding("launcher", "fail", "", text, fix)
    status, said = _run([its.start, "--version"])
    is_beside = Path(path).parent == Path(start).parent
    if is_beside and re.search(its.sign, said, re.IGNORECASE | re.MULTILINE):
        version = "" if status else f" ({_first(said)})"
        return Finding("launcher", "ok", "", f"{path} is {title}'s{version}")
    text = f"{path} is not {title}'s, as it seems: {its.start} --version says {_first(said)}"
    return Finding("launcher", "fail", "", text, f"{title}'s folder first on the PATH")


def _asked(words: Sequence[str], title: str) -> Finding:
    status, said = _run(words)
    if status:
        text = f"{title} does not answer {' '.join(words)}: {_first(said)}"
        fix = "is this machine one of its cluster, and is the scheduler up?"
        return Finding("scheduler", "fail", "", text, fix)
    return Finding("scheduler", "ok", "", f"{title} answers {words[0]}")


def check_job_hosts(launcher: str, environ: Mapping[str, str]) -> Finding:
    """Check whether the hosts of the job can be read."""
    try:
        found = job_hosts(launcher, environ)
    except ValueError as error:
        return Finding("job", "fail", "", str(error))
    slots = ", ".join(f"{host.ssh} {host.slots}" for host in found.hosts)
    return Finding("job", "ok", "", f"{found.source}, its hosts and slots: {slots}")
