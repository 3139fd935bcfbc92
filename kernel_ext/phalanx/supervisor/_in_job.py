"""Starting a host's supervisor by a scheduler's own remote start, within a job; or by mpirun.

One start for each host, so that one that is lost can be started anew alone. It knows the command
lines, as data; a job that has still to be submitted is `_batch`'s.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from phalanx.hosts import TITLES
from phalanx.protocol import HostPlan, RemoteOptions

from ._far_command import SCRIPT, FarCommand, Heard, Way, last_line, launch_by
from ._host_process import HostStart, HostUnreachable
from ._key_folder import KeyFolder

__all__ = ["launch_in_job", "start_words"]


class _Start(NamedTuple):
    """How a launcher starts a process on a node of the job.

    ``words`` of its command line, {host} and {index} (the node's first place in the job) filled in,
    then what the user asks of it, then ``end``. A shell of ours (``has_shell``) says on the far side
    how far it has come, where words reach it as they are. What is not ``is_fed`` hands no standard
    input on.
    """

    words: tuple[str, ...]
    end: tuple[str, ...] = ()
    has_shell: bool = False
    is_fed: bool = True
    variables: tuple[str, ...] = ()  # one of which is set where it can be used
    folder: str = ""  # the variable with its folder: a job's PATH may lack it


_STARTS = {
    # A step of one task that may use all that the job has there, beside other steps; outside of a
    # job, a job of its own.
    "slurm": _Start(
        ("srun", "--quiet", "--job-name=phalanx", "--nodes=1", "--ntasks=1", "--cpu-bind=none"),
        ("--nodelist={host}",),
        has_shell=True,
    ),
    # Neither pbsdsh nor PBS's TM hands an input on.
    "pbs": _Start(("pbsdsh", "-n", "{index}"), ("--",), is_fed=False, variables=("PBS_NODEFILE",)),
    "sge": _Start(
        ("qrsh", "-inherit"), ("{host}",), variables=("PE_HOSTFILE",), folder="SGE_BINARY_PATH"
    ),
    "lsf": _Start(("blaunch",), ("{host}",), variables=("LSB_JOBID",), folder="LSF_BINDIR"),
    # A world of one process, whose input is that of mpirun.
    "mpi": _Start(("mpirun", "-n", "1"), ("--host", "{host}"), has_shell=True),
}


async def launch_in_job(asked: HostStart) -> FarCommand:
    """Start the supervisor of a node and wait until it runs there.

    Raises
    ------
    HostUnreachable
        It does not; the text says why.
    """
    plan, remote = asked.plan, asked.remote
    start, title = _STARTS[remote.launcher], TITLES[remote.launcher]
    if start.variables and not any(os.environ.get(name) for name in start.variables):
        text = (
            f"this is no {title} job any more, and {start.words[0]} starts nothing outside of one"
        )
        raise HostUnreachable(plan.name, text)
    python = remote.python or sys.executable
    words = start_words(plan, remote)
    folder = None if start.is_fed else KeyFolder([asked.first_line])
    far = [python, "-m", "phalanx.supervisor", "host", *([str(folder.key(0))] if folder else [])]
    if start.has_shell:
        far = ["/bin/sh", "-c", SCRIPT, "phalanx", python]
    way = Way(
        plan,
        python,
        [*words, *far],
        missing=f"there is no {start.words[0]} on this machine: is it part of a {title} cluster?",
        waiting=f"{title} has not started it yet",
        why=lambda heard: _why_not_started(title, heard, folder),
        is_silent=not start.is_fed,
        on_end=folder.remove if folder else None,
    )
    return await launch_by(way, asked)


def start_words(
    plan: HostPlan, remote: RemoteOptions, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the words that stand before a command that is to run on a node.

    Raises
    ------
    HostUnreachable
        It is none of the job's.
    """
    start, job = _STARTS[remote.launcher], remote.job
    asked = []
    if remote.launcher == "slurm" and "SLURM_JOB_ID" in environ:
        asked = ["--overlap", "--whole", "--mem=0"]
    elif remote.launcher == "slurm":
        said = {"partition": job.queue, "account": job.account, "time": job.time}
        asked = [f"--cpus-per-task={plan.ranks}"]
        asked += [f"--{name}={value}" for name, value in said.items() if value]
    index = _first_place(plan.name, environ) if remote.launcher == "pbs" else 0
    places = {"host": plan.name, "index": index}
    program, *words = start.words
    if shutil.which(program) is None and environ.get(start.folder, ""):
        program = f"{environ[start.folder]}/{program}"
    ours = [word.format(**places) for word in (*words, *asked)]
    return [program, *ours, *job.args, *(word.format(**places) for word in start.end)]


def _first_place(name: str, environ: Mapping[str, str]) -> int:
    """Return the number of the first line of a host in PBS's list: pbsdsh counts them."""
    lines = Path(environ["PBS_NODEFILE"]).read_text().split()
    short = [line.partition(".")[0] for line in lines]
    try:
        return lines.index(name) if name in lines else short.index(name.partition(".")[0])
    except ValueError:
        raise HostUnreachable(name, "it is no node of this PBS job") from None


def _why_not_started(title: str, heard: Heard, folder: KeyFolder | None) -> str:
    if folder is not None and (said := folder.said(0)):
        return said
    lines = [line.strip() for line in heard.stderr.splitlines() if line.strip(" -*\t")]
    said = lines[0].removeprefix("srun: error: ") if lines else ""
    if "phalanx.supervisor" in heard.stderr or "No module named" in heard.stderr:
        said = last_line(heard.stderr)
    return f"{title} does not start it: {said or f'{heard.by} exits with {heard.status}'}"
