"""Choose where a launch's ranks run.

Options of `mlx.launch` that this engine does not need are accepted, with a note.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phalanx.hosts import (
    add_host_arguments,
    count_of,
    idle_notes,
    job_options,
    ssh_words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from phalanx.hosts import Hostfile
    from phalanx.workspace import Placement

BACKENDS = ("any", "ring", "mpi")
_LATER = ("nccl", "jaccl", "jaccl-ring")
_PORTS = "the system gives the ports of this engine"
_IDLE = {
    "--starting-port": _PORTS,
    "--nccl-port": "there is no NCCL here",
}


@dataclass(frozen=True)
class Job:
    """A command that runs once per rank.

    ``command`` is the resolved program and its arguments on this machine. Other hosts resolve
    ``words``, the user's own words. ``env`` is added to the environment of each host. Ranks start
    in the folder ``cwd``. ``is_script_checked``: before any rank starts, check that every host has
    the script.
    """

    command: Sequence[str]
    words: Sequence[str]
    at: Placement
    cwd: str
    env: Mapping[str, str]
    is_script_checked: bool


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
    import msgspec

    from phalanx.workspace import resolve_placement

    job = job_options(options)
    has_hosts = hostfile is not None or bool(job.nodes)
    found = resolve_placement(
        options.n if has_hosts else options.n or 1,
        hostfile=hostfile and msgspec.structs.replace(hostfile, backend="", envs=()),
        python=options.python if has_hosts else None,
        cwd=options.cwd,
        env=env,
        ssh_args=ssh_words(options),
        interface=options.interface,
        launcher=options.launcher,
        boot_timeout=options.boot_timeout,
        connections_per_ip=options.connections_per_ip if has_hosts else None,
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
