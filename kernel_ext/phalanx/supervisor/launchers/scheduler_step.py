"""Start hosts' supervisors within a scheduler's job, or by mpirun.

`launch_in_job` makes one start per host, so that a lost host can be restarted alone. `run_job` is
the main process of a job that `BatchJob` submitted: it starts a supervisor on each node, and ends
with the last of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from phalanx.hosts import TITLES, job_hosts
from phalanx.protocol import HostPlan, RemoteOptions

from ..processes.child import exit_reason
from .remote_command import (
    SCRIPT,
    CommandOutcome,
    HostStart,
    HostUnreachable,
    LaunchSpec,
    RemoteCommand,
    SharedKeyDirectory,
    last_line,
    launch_by,
    say_in,
)

_TAIL_NBYTES = 4096


class _Start(NamedTuple):
    """Command line by which a launcher starts a process on a node.

    Attributes
    ----------
    words : tuple of str
        Words before the user's options. {host} and {index} (the node's first place in the job) are
        filled in.
    end : tuple of str
        Words after the user's options.
    has_shell : bool
        Whether our shell script runs on the node and reports progress. The launcher must pass words
        unchanged.
    is_fed : bool
        Whether the launcher forwards standard input.
    variables : tuple of str
        One of these environment variables is set where the launcher works.
    folder : str
        Environment variable with the launcher's folder: the PATH of a job may lack the folder.
    """

    words: tuple[str, ...]
    end: tuple[str, ...] = ()
    has_shell: bool = False
    is_fed: bool = True
    variables: tuple[str, ...] = ()
    folder: str = ""


_STARTS = {
    # A step of one task that may use all of the job's resources on the node, beside other steps.
    # Outside of a job, srun makes a job of its own.
    "slurm": _Start(
        ("srun", "--quiet", "--job-name=phalanx", "--nodes=1", "--ntasks=1", "--cpu-bind=none"),
        ("--nodelist={host}",),
        has_shell=True,
    ),
    # Neither pbsdsh nor PBS's TM forwards standard input.
    "pbs": _Start(("pbsdsh", "-n", "{index}"), ("--",), is_fed=False, variables=("PBS_NODEFILE",)),
    "sge": _Start(
        ("qrsh", "-inherit"), ("{host}",), variables=("PE_HOSTFILE",), folder="SGE_BINARY_PATH"
    ),
    "lsf": _Start(("blaunch",), ("{host}",), variables=("LSB_JOBID",), folder="LSF_BINDIR"),
    # An MPI world of one process, which gets mpirun's input.
    "mpi": _Start(("mpirun", "-n", "1"), ("--host", "{host}"), has_shell=True),
}


async def launch_in_job(asked: HostStart) -> RemoteCommand:
    """Start a node's supervisor and wait until it runs there.

    Raises
    ------
    HostUnreachable
        The supervisor does not run; the text says why.
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
    folder = None if start.is_fed else SharedKeyDirectory([asked.first_line]).guard()
    far = [python, "-m", "phalanx.supervisor", "host", *([str(folder.key(0))] if folder else [])]
    if start.has_shell:
        far = ["/bin/sh", "-c", SCRIPT, "phalanx", python]
    way = LaunchSpec(
        plan,
        python,
        [*words, *far],
        missing=f"there is no {start.words[0]} on this machine: is it part of a {title} cluster?",
        waiting=f"{title} has not started it yet",
        why=lambda outcome: _why_not_started(title, outcome, folder),
        is_silent=not start.is_fed,
        on_end=folder.remove if folder else None,
    )
    return await launch_by(way, asked)


def start_words(
    plan: HostPlan, remote: RemoteOptions, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the words before a command to run on a node.

    Raises
    ------
    HostUnreachable
        The node does not belong to the job.
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
    """Return the index of a host's first line in PBS's list.

    pbsdsh counts the lines.
    """
    lines = Path(environ["PBS_NODEFILE"]).read_text().split()
    short = [line.partition(".")[0] for line in lines]
    try:
        return lines.index(name) if name in lines else short.index(name.partition(".")[0])
    except ValueError:
        raise HostUnreachable(name, "it is no node of this PBS job") from None


def _why_not_started(title: str, outcome: CommandOutcome, folder: SharedKeyDirectory | None) -> str:
    if folder is not None and (said := folder.said(0)):
        return said
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip(" -*\t")]
    said = lines[0].removeprefix("srun: error: ") if lines else ""
    if "phalanx.supervisor" in outcome.stderr or "No module named" in outcome.stderr:
        said = last_line(outcome.stderr)
    return f"{title} does not start it: {said or f'{outcome.by} exits with {outcome.status}'}"


def run_job(folder: str, launcher: str) -> None:
    """Start the supervisors of the keys in a folder; `SystemExit` on errors.

    The `SystemExit` has a message of one line.
    """
    keys = [path for path in Path(folder).glob("host-*") if path.suffix == ""]
    keys.sort(key=lambda path: int(path.name.partition("-")[2]))
    try:
        hosts = job_hosts(launcher, os.environ, with_slots=False).hosts
    except ValueError as error:
        sys.exit(str(error))
    if len(hosts) < len(keys):
        sys.exit(f"the job has {len(hosts)} nodes, and {len(keys)} were asked for")
    own = socket.gethostname().partition(".")[0]
    is_starting = is_over = False

    def end(*_: object) -> None:
        # Do not exit while a child is being started: the child would not be in ``started`` and
        # would run on.
        nonlocal is_over
        is_over = True
        if not is_starting:
            sys.exit(143)

    signal.signal(signal.SIGTERM, end)  # `end` also ends the supervisors
    # Unblock SIGTERM, blocked until now by `__main__`: a child would inherit the block and survive
    # `terminate`.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threads = []
    started: list[subprocess.Popen[bytes]] = []
    try:
        for host, key in zip(hosts, keys, strict=False):
            words: list[str] = []
            if host.ssh.partition(".")[0] != own:
                words = start_words(HostPlan(host.ssh, 1), RemoteOptions(launcher=launcher))
            command = [*words, sys.executable, "-m", "phalanx.supervisor", "host", str(key)]
            is_starting = True
            try:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
                started.append(child)
            except OSError as error:
                say_in(key, f"{host.ssh}: it cannot be started: {error}")
                continue
            finally:
                is_starting = False
                if is_over:
                    sys.exit(143)
            threads.append(threading.Thread(target=_follow, args=(child, key), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
    finally:
        for child in started:
            child.terminate()


def _follow(child: subprocess.Popen[bytes], key: Path) -> None:
    """Wait for a supervisor's end, and write the reason beside its key."""
    assert child.stderr is not None
    tail = b""
    for line in child.stderr:
        tail = (tail + line)[-_TAIL_NBYTES:]
    status = child.wait()
    if status:
        lines = [line.strip() for line in tail.decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), "")
        say_in(key, said or f"its supervisor {exit_reason(status)}")
