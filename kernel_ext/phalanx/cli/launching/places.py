"""Choose where a launch's ranks run, and check schedulers for the doctor.

The scheduler checks only read; nothing is submitted or changed. Options of `mlx.launch` that this
engine does not need are accepted, with a note that they have no effect.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phalanx.hosts import (
    TITLES,
    add_host_arguments,
    count_of,
    idle_notes,
    job_hosts,
    job_options,
    ssh_words,
)
from phalanx.supervisor import job_folder

from ..common import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.hosts import Hostfile
    from phalanx.workspace import Placement

_ANSWER_S = 10.0
# File systems shared by machines, as named in /proc/mounts.
_SHARED = re.compile(
    r"nfs|lustre|gpfs|beegfs|ceph|glusterfs|cifs|smb|afs|panfs|orangefs|pvfs|9p|virtiofs|fuse\.sshfs"
    r"|daos|weka|fhgfs|moosefs|quobyte"
)

BACKENDS = ("any", "ring", "mpi")
_LATER = ("nccl", "jaccl", "jaccl-ring")
_PORTS = "the system gives the ports of this engine"
_IDLE = {
    "--starting-port": _PORTS,
    "--nccl-port": "there is no NCCL here",
}


class _SchedulerCommands(NamedTuple):
    """The commands of a scheduler.

    ``start`` starts a process in a job, ``submit`` submits a job. ``version`` is a command that
    prints the product's name; ``sign`` is the pattern that matches it. ``version`` must not be a
    submit command, which could take unknown words for a job. ``ask`` queries the scheduler.
    """

    start: str
    submit: str
    version: tuple[str, ...]
    sign: str
    ask: tuple[str, ...] = ()


_KINDS = {
    "slurm": _SchedulerCommands(
        "srun", "sbatch", ("srun", "--version"), r"slurm|^srun: ", ("sinfo", "--noheader")
    ),
    "mpi": _SchedulerCommands("mpirun", "", ("mpirun", "--version"), r"mpi|hydra"),
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
    if nodes:
        yield _folder()


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


def _folder() -> Finding:
    """Check whether the key folder is on a shared file system.

    Supervisors on the nodes read their keys there. The type of the file system is only a hint.
    """
    folder = job_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    kind = _file_system(there)
    if _SHARED.search(kind):
        return Finding("shared", "ok", "", f"{folder} is on {kind}, which nodes can have as well")
    text = f"{folder} is on {kind or 'a file system'} that may be this machine's alone"
    return Finding("shared", "note", "", text, "PHALANX_JOB_DIR=a folder that all nodes have")


def _file_system(path: Path) -> str:
    """Return the file system type of a path; "" if unknown."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    real = path.resolve()
    holding = [(point, kind) for point, kind in mounts if real.is_relative_to(point)]
    return max(holding, key=lambda its: len(its[0]), default=("", ""))[1]


def _backend(text: str) -> str:
    if text in _LATER:
        msg = (
            f"'{text}' is not in this release; 'any' and 'ring' (tcp, shared memory) and 'mpi' are"
        )
        raise argparse.ArgumentTypeError(msg)
    if text not in BACKENDS:
        msg = f"there is no backend '{text}'; there are: any, ring, mpi"
        raise argparse.ArgumentTypeError(msg)
    return text


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for hosts and remote settings."""
    add = parser.add_argument
    add_host_arguments(
        add,
        helps={
            "--python": "runs scripts and modules, and the hosts' supervisors (default: this one)"
        },
    )
    add(
        "--backend", type=_backend,
        help="any or ring: this engine; mpi: mpirun starts the ranks (the one on the PATH, else "
        "beside this Python), and its exit status is ours (default: the hostfile's, else any)",
    )  # fmt: skip
    add(
        "--no-verify-script", action="store_true",
        help="do not look first whether the script is there on every host",
    )  # fmt: skip
    for names in (("--starting-port", "-p"), ("--nccl-port",)):
        add(
            *names,
            type=count_of("the number of ports"),
            metavar="N",
            help=f"no effect here: {_IDLE[names[0]]}",
        )


def idle_options(options: argparse.Namespace, *, has_hosts: bool) -> list[str]:
    """Say for each option without effect why it has none."""
    here = {} if has_hosts else {"--connections-per-ip": "all ranks run here"}
    return idle_notes(options, {**_IDLE, **here})


def read_hosts(options: argparse.Namespace) -> Hostfile | None:
    """Read the hosts that the options name.

    None if all ranks run here, or on nodes of a job that is still to be submitted.

    Raises
    ------
    ValueError
        The list or the file is wrong, or both are given.
    """
    from phalanx.hosts import parse_hosts, read_hostfile, uses_job

    if options.hosts is not None and options.hostfile is not None:
        msg = "give --hosts or --hostfile, not both"
        raise ValueError(msg)
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    launcher = options.launcher
    if options.hostfile is None and not options.nodes and uses_job(launcher, os.environ):
        return job_hosts(launcher, os.environ, with_slots=options.n is None)
    return None if options.hostfile is None else read_hostfile(options.hostfile)


def place(
    options: argparse.Namespace, hostfile: Hostfile | None, env: Mapping[str, str]
) -> Placement:
    """Return the number of ranks and their hosts.

    ``env`` is set for the ranks of other hosts.

    Raises
    ------
    ValueError
        An option is wrong, or contradicts another option.
    """
    from phalanx.protocol import RemoteOptions
    from phalanx.workspace import Placement, resolve_placement

    job = job_options(options)
    if hostfile is None and not job.nodes:
        idle = {
            "--interface": options.interface, "--ssh-arg": options.ssh_arg,
            "--launcher": options.launcher, "--boot-timeout": options.boot_timeout,
        }  # fmt: skip
        asked = [name for name, value in idle.items() if value]
        if asked:
            msg = f"{' and '.join(asked)}: only with --hosts or --hostfile"
            raise ValueError(msg)
        return Placement(options.n or 1, (), RemoteOptions(env=dict(env)))
    import msgspec

    found = resolve_placement(
        options.n,
        hostfile=hostfile and msgspec.structs.replace(hostfile, backend="", envs=()),
        python=options.python,
        cwd=options.cwd,
        env=env,
        ssh_args=ssh_words(options),
        interface=options.interface,
        launcher=options.launcher,
        boot_timeout=options.boot_timeout,
        connections_per_ip=options.connections_per_ip,
        job=job,
    )
    is_here = len(found.hosts) == 1 and found.hosts[0].is_local
    return replace(found, hosts=()) if is_here else found


def host_names(at: Placement) -> tuple[str, ...]:
    """Return each rank's host, by the user's name for it."""
    own = socket.gethostname()
    if not at.hosts:
        return (own,) * at.ranks
    return tuple(
        own if plan.is_local else plan.name.rpartition("@")[2]
        for plan in at.hosts
        for _ in range(plan.ranks)
    )


def terminal_size() -> dict[str, str]:
    """Return our terminal's size as variables for the ranks.

    The ranks have pipes, so they cannot ask a terminal.
    """
    for fd in (1, 2, 0):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            if size.columns > 0 and size.lines > 0:  # else a terminal that does not know its size
                return {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return {}
