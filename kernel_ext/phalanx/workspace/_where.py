"""On which hosts a workspace is to start, from what a user says: checked, nothing started.

It knows hostfiles and options; what is done with the plan is the supervisor's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from phalanx import hosts as room
from phalanx.errors import NotSupported
from phalanx.protocol import MOST_CONNECTIONS, HostPlan, JobOptions, RemoteOptions

from ._checks import checked_path, checked_seconds, checked_text, checked_whole, checked_words
from ._start import HERE

__all__ = ["BOOT_TIMEOUT_S", "Where", "planned", "where"]

BOOT_TIMEOUT_S = 30.0  # ten times what a host takes over ssh (reference/jupyter.md 1.8)
QUEUE_TIMEOUT_S = 600.0  # in a scheduler's: whoever sits before a notebook waits no longer
RANKS_HERE = 4
_RDMA = "RDMA between Macs is not in this release"
# MLX's hostfiles name how their ranks talk; of these there is nothing that cells could use.
_NOT_FOR_CELLS = {
    "mpi": "mpirun starts scripts (phalanx launch --backend mpi script.py)",
    "nccl": "NCCL, between NVIDIA's GPUs, is not in this release",
    "jaccl": _RDMA,
    "jaccl-ring": _RDMA,
}
# What is set here and must hold there as well: how figures are drawn, and how many threads a
# library takes. The rest of an environment belongs to its host.
_HANDED_ON = (
    "MPLBACKEND",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)


@dataclass(frozen=True)
class Where:
    """How many ranks, and where: ``hosts`` are empty for this machine, without ssh."""

    ranks: int
    hosts: tuple[HostPlan, ...] = ()
    remote: RemoteOptions = HERE


def where(
    n: int | None,
    *,
    hosts: str | Iterable[str | HostPlan] | None = None,
    hostfile: str | os.PathLike[str] | room.Hostfile | None = None,
    python: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | Iterable[str] = (),
    ssh_args: Iterable[str] = (),
    interface: str | None = None,
    launcher: str | None = None,
    boot_timeout: float | None = None,
    connections_per_ip: int | None = None,
    job: JobOptions | Mapping[str, object] | None = None,
) -> Where:
    """Read a user's words for where ranks are to run; parameters as of `Workspace.start`.

    Raises
    ------
    ValueError
        They make no sense, or not together; in one line.
    NotSupported
        The hostfile is for a backend that notebooks have not.
    """
    pairs = [f"{k}={v}" for k, v in env.items()] if isinstance(env, Mapping) else env
    settings, ssh_args = checked_words("env", pairs), checked_words("ssh_args", ssh_args)
    for what, text in (("python", python), ("interface", interface), ("launcher", launcher)):
        if text is not None:
            checked_text(what, text)
    if cwd is not None:
        checked_path("cwd", cwd)
    asked = _job(job)
    if launcher is not None and launcher not in room.LAUNCHERS:
        msg = f"there is no launcher {launcher!r}; there are: {', '.join(room.LAUNCHERS)}"
        raise ValueError(msg)
    room.check_job(asked, launcher)
    found = _hostfile(hosts, hostfile)
    if asked.nodes:
        asked = msgspec.structs.replace(asked, nodes=_nodes(asked.nodes, found))
    elif found is None and launcher in room.TITLES:
        found = room.job_hosts(launcher, os.environ, with_slots=n is None)
    if found is None and not asked.nodes:
        said: dict[str, Any] = {
            "python": python, "ssh-arg": ssh_args, "interface": interface,
            "launcher": launcher, "boot-timeout": boot_timeout,
            "connections-per-ip": connections_per_ip,
        }  # fmt: skip
        idle = [f"--{name}" for name, value in said.items() if value not in (None, ())]
        if idle:
            msg = f"{' and '.join(idle)}: only with --hosts or --hostfile"
            raise ValueError(msg)
        _check_folder(cwd)
        here = RemoteOptions(cwd=_absolute(cwd), env=room.environment(settings, os.environ))
        return Where(RANKS_HERE if n is None else n, (), here)
    if n is not None:
        n = checked_whole("the number of ranks per host", n, 1)
    if found is not None and found.backend in _NOT_FOR_CELLS:
        msg = (
            f"{found.source}: backend {found.backend!r} is not for cells: "
            f'{_NOT_FOR_CELLS[found.backend]}; with "backend": "ring" in that file its hosts are '
            "joined by this engine, over tcp"
        )
        raise NotSupported(msg)
    usual_s = QUEUE_TIMEOUT_S if asked.nodes else BOOT_TIMEOUT_S
    timeout_s = usual_s if boot_timeout is None else boot_timeout
    checked_seconds("the boot timeout", timeout_s, is_above_0=True)
    if connections_per_ip not in (None, *range(1, MOST_CONNECTIONS + 1)):
        msg = f"{connections_per_ip!r} connections per address; it must be from 1 to {MOST_CONNECTIONS}"
        raise ValueError(msg)
    if interface is not None:  # ours is reached through it: a name that is wrong ends here
        room.interface_addresses(interface)
    if found is None:  # which nodes they are is known when they are up
        planned = tuple(HostPlan(f"node{index}", n or 1) for index in range(asked.nodes))
    else:
        planned = room.plan(found, n)
    if any(host.is_local for host in planned):
        _check_folder(cwd)
    remote = RemoteOptions(
        python=python or "",
        cwd=_absolute(cwd),
        env={
            **{name: os.environ[name] for name in _HANDED_ON if name in os.environ},
            **room.environment([*(found.envs if found else ()), *settings], os.environ),
        },
        ssh_args=ssh_args,
        interface=interface or "",
        launcher=launcher or "ssh",
        timeout_s=timeout_s,
        connections_per_ip=int(connections_per_ip or 1),
        job=asked,
    )
    return Where(sum(host.ranks for host in planned), planned, remote)


def planned(
    hosts: str | Iterable[str | HostPlan] | None, remote: RemoteOptions | None
) -> Where | None:
    """Take hosts that are a plan already; None if they are names."""
    plans = tuple(hosts) if isinstance(hosts, list | tuple) else ()
    made = tuple(plan for plan in plans if isinstance(plan, HostPlan))
    if not made or len(made) < len(plans):
        return None
    return Where(sum(plan.ranks for plan in made), made, remote or HERE)


def _absolute(cwd: str | os.PathLike[str] | None) -> str:
    return "" if cwd is None else os.fspath(Path(cwd).absolute())


def _check_folder(cwd: str | os.PathLike[str] | None) -> None:
    if cwd is not None and not Path(cwd).is_dir():
        msg = f"--cwd {cwd}: there is no such folder on this machine"
        raise ValueError(msg)


def _job(said: JobOptions | Mapping[str, object] | None) -> JobOptions:
    if isinstance(said, JobOptions):
        return said
    try:
        return msgspec.convert(said or {}, JobOptions)
    except msgspec.ValidationError as error:
        msg = f"job: {error}"
        raise ValueError(msg) from None


def _nodes(nodes: int, found: room.Hostfile | None) -> int:
    if found is not None:
        msg = "--nodes asks a scheduler for nodes of its choice: leave out --hosts and --hostfile"
        raise ValueError(msg)
    return checked_whole("the number of nodes", nodes, 1)


def _hostfile(
    hosts: str | Iterable[str | HostPlan] | None,
    hostfile: str | os.PathLike[str] | room.Hostfile | None,
) -> room.Hostfile | None:
    if hosts is not None and hostfile is not None:
        msg = "give --hosts or --hostfile, not both"
        raise ValueError(msg)
    if hosts is not None:
        text = hosts if isinstance(hosts, str) else ",".join(checked_words("hosts", hosts))
        return room.parse_hosts(text)
    if hostfile is None or isinstance(hostfile, room.Hostfile):
        return hostfile
    return room.read_hostfile(checked_path("hostfile", hostfile))
