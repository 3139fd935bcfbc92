"""Start hosts' supervisors by srun or mpirun.

`launch_in_job` makes one start per host, so that a lost host can be restarted alone. `run_job` is
the main process of a job that `BatchJob` submitted: it starts a supervisor on each node, and ends
with the last of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from phalanx.hosts import TITLES, job_hosts
from phalanx.protocol import HostPlan, RemoteOptions

from ..processes.child import exit_reason
from .remote_command import (
    SCRIPT,
    CommandOutcome,
    HostStart,
    LaunchSpec,
    RemoteCommand,
    last_line,
    launch_by,
    say_in,
)

_TAIL_NBYTES = 4096


# A step of one task that may use all of the job's resources on the node, beside other steps. Outside
# of a job, srun makes a job of its own.
_SRUN = ["srun", "--quiet", "--job-name=phalanx", "--nodes=1", "--ntasks=1", "--cpu-bind=none"]
_MPIRUN = ["mpirun", "-n", "1"]  # an MPI world of one process, which gets mpirun's input


async def launch_in_job(asked: HostStart) -> RemoteCommand:
    """Start a node's supervisor and wait until it runs there.

    Raises
    ------
    HostUnreachable
        The supervisor does not run; the text says why.
    """
    plan, remote = asked.plan, asked.remote
    title, python = TITLES[remote.launcher], remote.python or sys.executable
    words = start_words(plan, remote)
    way = LaunchSpec(
        plan,
        python,
        [*words, "/bin/sh", "-c", SCRIPT, "phalanx", python],
        missing=f"there is no {words[0]} on this machine: is it part of a {title} cluster?",
        waiting=f"{title} has not started it yet",
        why=lambda outcome: _why_not_started(title, outcome),
    )
    return await launch_by(way, asked)


def start_words(
    plan: HostPlan, remote: RemoteOptions, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the words before a command to run on a node."""
    job = remote.job
    if remote.launcher == "mpi":
        return [*_MPIRUN, *job.args, "--host", plan.name]
    if "SLURM_JOB_ID" in environ:
        asked = ["--overlap", "--whole", "--mem=0"]
    else:
        said = {"partition": job.queue, "account": job.account, "time": job.time}
        asked = [f"--cpus-per-task={plan.ranks}"]
        asked += [f"--{name}={value}" for name, value in said.items() if value]
    return [*_SRUN, *asked, *job.args, f"--nodelist={plan.name}"]


def _why_not_started(title: str, outcome: CommandOutcome) -> str:
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip(" -*\t")]
    said = lines[0].removeprefix("srun: error: ") if lines else ""
    if "phalanx.supervisor" in outcome.stderr or "No module named" in outcome.stderr:
        said = last_line(outcome.stderr)
    return f"{title} does not start it: {said or f'{outcome.by} exits with {outcome.status}'}"


def run_job(folder: str) -> None:
    """Start the supervisors of the keys in a folder; `SystemExit` on errors.

    The `SystemExit` has a message of one line.
    """
    keys = [path for path in Path(folder).glob("host-*") if path.suffix == ""]
    keys.sort(key=lambda path: int(path.name.partition("-")[2]))
    try:
        hosts = job_hosts("slurm", os.environ, with_slots=False).hosts
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
                words = start_words(HostPlan(host.ssh, 1), RemoteOptions(launcher="slurm"))
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
