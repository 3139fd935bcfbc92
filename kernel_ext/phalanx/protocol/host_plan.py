"""Define a world to start: its hosts, and how to reach them."""

from __future__ import annotations

import msgspec

MOST_CONNECTIONS = 64  # per link and address, and addresses per host: more is a mistake


class HostPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host of a world to start, in the hostfile's order.

    ``name`` is the argument for ssh: ``b``, ``user@b`` or a name of ``~/.ssh/config``. ``port`` 0
    means ssh's default. ``ranks`` is the number of ranks. The ranks listen on ``addresses`` and
    use all of them at once; empty: the address through which the host reached the root.
    ``is_local``: this machine, without ssh.
    """

    name: str
    ranks: int
    addresses: tuple[str, ...] = ()
    port: int = 0
    is_local: bool = False


class JobOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options for a job of Slurm, and for srun and mpirun.

    ``nodes`` above 0: submit a job with this number of nodes; the names in the plan are
    placeholders until the nodes are up. ``queue``, ``account``, ``time`` and ``args`` (any other
    arguments) are in Slurm's own syntax.
    """

    nodes: int = 0
    queue: str = ""
    account: str = ""
    time: str = ""
    args: tuple[str, ...] = ()


class RemoteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options for starting remote hosts, the same for all hosts.

    ``python`` is the interpreter there ("": the path of this one). ``cwd`` is the folder ("": the
    same as here, or the home folder if that is missing). ``env`` is set for the ranks. ``ssh_args``
    are passed to ssh unchanged. ``interface`` names the network card with the addresses that the
    ranks use ("": any). Two hosts have ``connections_per_ip`` connections over each address. A host
    fails if it is not up after ``timeout_s`` seconds; with a submitted ``job`` the job may wait in
    its queue for that long.
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
