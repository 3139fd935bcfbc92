"""Starting a host's supervisor through Slurm: one srun for each node, a step of the job we are in.

Outside of a job each srun asks for one of its own. It knows srun's command line and its words.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from phalanx.protocol import HostPlan, RemoteOptions

from ._far_command import SCRIPT, FarCommand, Heard, Way, launch_by

__all__ = ["launch_by_srun"]


async def launch_by_srun(
    plan: HostPlan, first_line: bytes, remote: RemoteOptions, *, on_slow: Callable[[str], None]
) -> FarCommand:
    """Start the supervisor of a node and wait until it runs there.

    Raises
    ------
    HostUnreachable
        It does not; the text says why.
    """
    python = remote.python or sys.executable
    way = Way(
        plan,
        python,
        _command(plan, python),
        missing="there is no srun on this machine: is it part of a Slurm cluster?",
        waiting="Slurm has not started it yet (squeue says what it waits for)",
        why=_why_not_started,
    )
    return await launch_by(way, first_line, remote.timeout_s, on_slow)


def _command(plan: HostPlan, python: str) -> list[str]:
    # A step of one task that may use all that the job has there, beside other steps.
    within = ["--overlap", "--whole", "--mem=0"]
    alone = [f"--cpus-per-task={plan.ranks}"]
    return [
        "srun",
        "--quiet",
        "--job-name=phalanx",
        "--nodes=1",
        "--ntasks=1",
        "--cpu-bind=none",
        f"--nodelist={plan.name}",
        *(within if "SLURM_JOB_ID" in os.environ else alone),
        "/bin/sh",
        "-c",
        SCRIPT,
        "phalanx",
        python,
    ]


def _why_not_started(heard: Heard) -> str:
    lines = [line.strip() for line in heard.stderr.splitlines() if line.strip()]
    said = lines[0].removeprefix("srun: error: ") if lines else f"srun exits with {heard.status}"
    return f"Slurm does not start it: {said}"
