"""The nodes of the Slurm job that this process is in, as a hostfile.

It asks `scontrol` to write the list of nodes out; it starts nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from ._host import Host, Hostfile

__all__ = ["slurm_hosts"]

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def slurm_hosts(environ: Mapping[str, str], *, with_slots: bool = True) -> Hostfile:
    """Return the nodes of the job in their order; the slots of each are its tasks there.

    Raises
    ------
    ValueError
        This process is in no job, or Slurm does not say which nodes it has.
    """
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        msg = (
            "this is no Slurm job: start it in salloc or sbatch, name nodes with --hosts, or say "
            "--nodes N, and a job is submitted"
        )
        raise ValueError(msg)
    try:
        said = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError) as error:
        msg = f"scontrol does not say which nodes {nodes!r} are ({error}): name them with --hosts"
        raise ValueError(msg) from None
    names = said.stdout.split()
    slots = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", "")) if with_slots else []
    if len(slots) != len(names):
        slots = [-1] * len(names)
    hosts = tuple(Host(name, slots=n) for name, n in zip(names, slots, strict=True))
    return Hostfile(hosts, source=f"Slurm's job {environ.get('SLURM_JOB_ID', '')}")


def tasks_per_node(text: str) -> list[int]:
    """Write out what Slurm shortens; empty where that is not understood.

    Examples
    --------
    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    found = [_TASKS.fullmatch(part) for part in text.split(",")]
    if any(match is None for match in found):
        return []
    return [int(match[1]) for match in found if match for _ in range(int(match[2] or 1))]
