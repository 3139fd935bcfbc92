"""On which hosts a workspace is to start, from what a user says: checked, nothing started.

It knows hostfiles and options; what is done with the plan is the supervisor's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx import hosts as room
from phalanx.errors import NotSupported
from phalanx.protocol import HostPlan, RemoteOptions

from ._checks import checked_path, checked_seconds, checked_text, checked_whole, checked_words
from ._start import HERE

__all__ = ["BOOT_TIMEOUT_S", "LAUNCHERS", "Where", "planned", "where"]

BOOT_TIMEOUT_S = 30.0  # ten times what a host takes over ssh (reference/jupyter.md 1.8)
LAUNCHERS = ("ssh", "slurm", "local")
RANKS_HERE = 4
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
    found = _hostfile(hosts, hostfile)
    if found is None and launcher == "slurm":
        found = room.slurm_hosts(os.environ, with_slots=n is None)
    if found is None:
        said: dict[str, Any] = {
            "python": python, "ssh-arg": ssh_args, "interface": interface,
            "launcher": launcher, "boot-timeout": boot_timeout,
        }  # fmt: skip
        idle = [f"--{name}" for name, value in said.items() if value not in (None, ())]
        if idle:
            msg = f"{' and '.join(idle)}: only with --hosts or --hostfile"
            raise ValueError(msg)
        _check_folder(cwd)
        here = RemoteOptions(cwd=_absolute(cwd), env=room.environment(settings, os.environ))
        return Where(RANKS_HERE if n is None else n, (), here)
    _check_count(n)
    if found.backend not in {"", "any", "ring"}:
        msg = f"{found.source}: backend {found.backend!r} is not for cells; 'any' and 'ring' are"
        raise NotSupported(msg)
    timeout_s = BOOT_TIMEOUT_S if boot_timeout is None else boot_timeout
    checked_seconds("the boot timeout", timeout_s, is_above_0=True)
    launcher = LAUNCHERS[0] if launcher is None else launcher
    if launcher not in LAUNCHERS:
        msg = f"there is no launcher {launcher!r}; there are: {', '.join(LAUNCHERS)}"
        raise ValueError(msg)
    if interface is not None:
        room.interface_addresses(
            interface
        )  # ours is reached through it: a name that is wrong ends here
    planned = room.plan(found, n)
    if any(host.is_local for host in planned):
        _check_folder(cwd)
    remote = RemoteOptions(
        python=python or "",
        cwd=_absolute(cwd),
        env={
            **{name: os.environ[name] for name in _HANDED_ON if name in os.environ},
            **room.environment([*found.envs, *settings], os.environ),
        },
        ssh_args=ssh_args,
        interface=interface or "",
        launcher=launcher,
        timeout_s=timeout_s,
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


def _check_count(n: int | None) -> None:
    if n is not None:
        checked_whole("the number of ranks per host", n, 1)


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
