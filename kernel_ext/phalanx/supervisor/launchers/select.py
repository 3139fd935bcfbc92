"""Choose the launcher that the options name.

A launcher starts a host's supervisor, gives it its first line and reports its end. Later messages
go over `HostServer`. There is one start per host, so that a lost host can be started again alone. The launcher "local"
runs several "hosts" on this machine.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

from phalanx.hosts import TITLES, found_job
from phalanx.protocol import HostPlan, JobOptions, RemoteOptions

from ..processes.child import exit_reason
from .remote_command import (
    SCRIPT,
    SSH_FAILED,
    CommandOutcome,
    HostStart,
    HostUnreachable,
    LaunchSpec,
    RemoteCommand,
    far_script,
    last_line,
    launch_by,
    why_ended,
)
from .ssh import explain_ssh, ssh_command

# A step of one task that may use all of the job's resources on the node, beside other steps. Outside
# of a job, srun makes a job of its own.
_SRUN = ["srun", "--quiet", "--job-name=phalanx", "--nodes=1", "--ntasks=1", "--cpu-bind=none"]
_MPIRUN = ["mpirun", "-n", "1"]  # an MPI world of one process, which gets mpirun's input


async def launch_host(asked: HostStart) -> RemoteCommand:
    """Start a host's supervisor; `HostUnreachable` says why it does not run."""
    plan, remote = asked.plan, asked.remote
    if asked.jobs is not None:
        from .slurm_job import launch_in_new_job

        return await launch_in_new_job(asked, asked.jobs)
    if remote.launcher == "ssh":
        way = ssh_launch(plan, remote, SCRIPT)
    elif remote.launcher in TITLES:
        way = step_launch(plan, remote)
    elif remote.launcher == "local":
        python = remote.python or sys.executable
        script = far_script('exec "$p" -m phalanx.supervisor host')
        command = ["/bin/sh", "-c", script, "phalanx", python]
        way = LaunchSpec(plan, python, command, "there is no /bin/sh", "", why_ended, is_here=True)
    else:
        raise HostUnreachable(plan.name, f"there is no launcher {remote.launcher!r}")
    return await launch_by(way, asked)


def step_launch(plan: HostPlan, remote: RemoteOptions, job: str = "") -> LaunchSpec:
    """Describe how srun or mpirun starts a supervisor.

    ``job``: the job of Slurm, if this process is not in it.
    """
    title, python = TITLES[remote.launcher], remote.python or sys.executable
    environ = {"SLURM_JOB_ID": job} if job else os.environ
    words = start_words(plan, remote, environ)
    words += [f"--jobid={job}"] if job else []
    return LaunchSpec(
        plan,
        python,
        [*words, "/bin/sh", "-c", SCRIPT, "phalanx", python],
        missing=f"there is no {words[0]} on this machine: is it part of a {title} cluster?",
        waiting=f"{title} has not started it yet",
        why=lambda outcome: _why_not_started(title, outcome),
    )


def start_words(
    plan: HostPlan, remote: RemoteOptions, environ: Mapping[str, str] = os.environ
) -> list[str]:
    job = remote.job
    if remote.launcher == "mpi":
        return [*_MPIRUN, *job.args, "--host", plan.name]
    asked = ["--overlap", "--whole", "--mem=0"]
    if "SLURM_JOB_ID" not in environ:
        asked = [f"--cpus-per-task={plan.ranks}", *job_words(job)]
    return [*_SRUN, *asked, *job.args, f"--nodelist={plan.name}"]


def job_words(job: JobOptions) -> list[str]:
    said = {"partition": job.queue, "account": job.account, "time": job.time}
    return [f"--{name}={value}" for name, value in said.items() if value]


def _why_not_started(title: str, outcome: CommandOutcome) -> str:
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip(" -*\t")]
    said = lines[0].removeprefix("srun: error: ") if lines else ""
    if "phalanx.supervisor" in outcome.stderr or "No module named" in outcome.stderr:
        said = last_line(outcome.stderr)
    return f"{title} does not start it: {said or f'{outcome.way.command[0]} exits with {outcome.status}'}"


def ssh_launch(plan: HostPlan, remote: RemoteOptions, script: str) -> LaunchSpec:
    """Describe how ssh runs a script of `far_script` on a host."""
    python = remote.python or sys.executable

    def run_there(words: str) -> list[str]:
        return ssh_command(plan.name, plan.port, remote.ssh_args, words, remote.timeout_s)

    return LaunchSpec(
        plan,
        python,
        run_there(f"exec /bin/sh -c {shlex.quote(script)} phalanx {shlex.quote(python)}"),
        missing="there is no ssh on this machine: install OpenSSH's client",
        waiting="ssh has not got in yet",
        why=_why_not_in,
        again=run_there,
    )


def _why_not_in(outcome: CommandOutcome) -> str:
    """Explain an ssh that ended before the far shell began."""
    if outcome.status != SSH_FAILED:
        line = last_line(outcome.stderr)
        said = f": {line}" if line else ""
        return f"it lets us in, but runs no commands ({exit_reason(outcome.status)}{said})"
    plan = outcome.way.plan
    text = explain_ssh(plan.name, plan.port, outcome.stderr)
    # Some clusters allow no ssh between a job's hosts.
    return f"{text}; within a job, --launcher mpi needs no ssh" if found_job(os.environ) else text
