"""Where a launch's ranks run, from its options: this machine, or the hosts of a list or a file.

It reads options and hostfiles; it starts nothing. Options of `mlx.launch` that our engine has no
use for are taken and said to be idle.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.hosts import add_far_arguments, job_options, ssh_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.hosts import Hostfile
    from phalanx.workspace import Where

__all__ = [
    "BACKENDS",
    "add_place_arguments",
    "host_names",
    "idle_options",
    "place",
    "read_hosts",
    "terminal_size",
]

BACKENDS = ("any", "ring", "mpi")
_LATER = ("nccl", "jaccl", "jaccl-ring")
_PORTS = "the system gives the ports of this engine"
_IDLE = {
    "starting_port": _PORTS,
    "nccl_port": "there is no NCCL here",
}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        msg = f"'{text}' is not a whole number of 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        msg = f"'{text}' is not a number of seconds above 0"
        raise argparse.ArgumentTypeError(msg)
    return value


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
    """Declare the options that say where, and how the far side is to be."""
    add = parser.add_argument
    add(
        "-n", "--repeat-hosts", type=_count, metavar="N",
        help="ranks to start, on each host (default: its slots in the hostfile, else 1)",
    )  # fmt: skip
    add(
        "--hosts", metavar="A,B,...", help="where the ranks run: names or addresses, b:2222 for ssh"
    )
    add("--hostfile", metavar="FILE", help="the same from a file: MLX's, Open MPI's or MPICH's")
    add(
        "--backend", type=_backend,
        help="any or ring: this engine; mpi: mpirun starts the ranks (the one on the PATH, else "
        "beside this Python), and its exit status is ours (default: the hostfile's, else any)",
    )  # fmt: skip
    add("--python", help="runs scripts and modules, and the hosts' supervisors (default: this one)")
    add_far_arguments(add, _count, _seconds)
    add(
        "--no-verify-script", action="store_true",
        help="do not look first whether the script is there on every host",
    )  # fmt: skip
    for names in (("--starting-port", "-p"), ("--nccl-port",)):
        add(*names, type=_count, metavar="N", help="as mlx.launch has it; not needed here")


def idle_options(options: argparse.Namespace, *, has_hosts: bool) -> list[str]:
    """Say of each option that has no effect why not."""
    idle = dict(_IDLE) if has_hosts else {**_IDLE, "connections_per_ip": "all ranks run here"}
    return [
        f"--{name.replace('_', '-')} has no effect: {why}"
        for name, why in idle.items()
        if getattr(options, name) is not None
    ]


def read_hosts(options: argparse.Namespace) -> Hostfile | None:
    """Read the hosts that the options name; None where all ranks run here, or in a job to come.

    A backend that is not here is left out of a hostfile, and said: it may be MLX's.

    Raises
    ------
    ValueError
        The list or the file is wrong, or there are both.
    """
    from phalanx.hosts import TITLES, job_hosts, parse_hosts, read_hostfile

    if options.hosts is not None and options.hostfile is not None:
        msg = "give --hosts or --hostfile, not both"
        raise ValueError(msg)
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None and options.launcher in TITLES and not options.nodes:
        return job_hosts(options.launcher, os.environ, with_slots=options.repeat_hosts is None)
    return None if options.hostfile is None else read_hostfile(options.hostfile)


def place(options: argparse.Namespace, hostfile: Hostfile | None, env: Mapping[str, str]) -> Where:
    """Say how many ranks there are to be, and where; ``env`` is set for those of other hosts.

    Raises
    ------
    ValueError
        An option makes no sense, or not with the others.
    """
    from phalanx.workspace import Where, where

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
        return Where(options.repeat_hosts or 1)
    import msgspec

    found = where(
        options.repeat_hosts,
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


def host_names(at: Where) -> tuple[str, ...]:
    """Return the name of each rank's host, as the user calls it."""
    own = socket.gethostname()
    if not at.hosts:
        return (own,) * at.ranks
    return tuple(
        own if plan.is_local else plan.name.rpartition("@")[2]
        for plan in at.hosts
        for _ in range(plan.ranks)
    )


def terminal_size() -> dict[str, str]:
    """Return the size of our terminal as variables, if we have one: ranks have pipes."""
    for fd in (1, 2, 0):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            if size.columns > 0 and size.lines > 0:  # else a terminal that does not know
                return {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return {}
