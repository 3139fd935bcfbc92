"""What a world on several hosts is started from, and how its start goes on.

A leaf: the hostfile's reader makes a `HostPlan` of each host, the root supervisor boots them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "MOST_CONNECTIONS",
    "BootProgress",
    "BootState",
    "HostPlan",
    "JobOptions",
    "RemoteOptions",
]

MOST_CONNECTIONS = 64  # of a link over one address, and addresses of a host: more is a mistake

BootState = Literal["starting", "up", "failed"]


class HostPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host of a world that is to be started, in the hostfile's order.

    ``name`` is what ssh is given: ``b``, ``user@b``, a name of ``~/.ssh/config``; ``port`` 0 leaves
    ssh's own. ``ranks`` run there. Its ranks listen on ``addresses`` and use all of them at once;
    where there are none, the one through which the host has reached the root. ``is_local``: this
    machine, without ssh.
    """

    name: str
    ranks: int
    addresses: tuple[str, ...] = ()
    port: int = 0
    is_local: bool = False


class JobOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a scheduler is asked for: of a job that is submitted, or of its start of processes.

    ``nodes`` above 0: a job with so many is submitted, and the plan's names are placeholders until
    they are up. ``queue``, ``account`` and ``time`` are in the scheduler's own words; ``args`` are
    any more of them.
    """

    nodes: int = 0
    queue: str = ""
    account: str = ""
    time: str = ""
    args: tuple[str, ...] = ()


class RemoteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the far side of a start is to be: the same for all its hosts.

    ``python`` is the interpreter there ("": the path of this one); ``cwd`` the folder ("": the
    same as here, or the home folder where that is missing); ``env`` is set for the ranks.
    ``ssh_args`` go to ssh as they are. ``interface`` names the network card whose addresses the
    ranks use ("": any); over each address two hosts have ``connections_per_ip``. A host that is not
    up after ``timeout_s`` has failed; one that a ``job`` is submitted for, when it has waited so long.
    """

    python: str = ""
    cwd: str = ""
    env: dict[str, str] = {}
    ssh_args: tuple[str, ...] = ()
    interface: str = ""
    launcher: str = "ssh"
    timeout_s: float = 30.0
    connections_per_ip: int = 1
    job: JobOptions = JobOptions()


class BootProgress(msgspec.Struct, frozen=True, tag="boot_progress", forbid_unknown_fields=True):
    """Root: how the start goes on at one host; ``text`` says why it has failed, or what is slow."""

    host: int
    name: str
    state: BootState
    seconds: float
    text: str = ""
