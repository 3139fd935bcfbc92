"""Parse the options of commands that reach hosts.

`phalanx launch`, `bench`, `doctor` and `config` and `%distributed start` take the same options
(`add_host_arguments`), also those that have no effect in one of them.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.protocol import JobOptions

from .host import Hostfile
from .hostfile import parse_hosts, read_hostfile
from .jobs import LAUNCHERS, TITLES, check_launcher_name, job_hosts, recognised, uses_job


def count_of(what: str) -> Callable[[str], int]:
    """Return a parser of a whole number, 1 or more.

    Examples
    --------
    >>> count_of("the number of ranks")("4")
    4
    """

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            msg = f"{what} is {text!r}; it must be a whole number, 1 or more"
            raise argparse.ArgumentTypeError(msg)
        return int(text)

    return count


def seconds(text: str) -> float:
    """Parse a number of seconds, 0 or more."""
    return _seconds(text, "0 or more", lambda value: value >= 0)


def seconds_above_0(text: str) -> float:
    """Parse a number of seconds above 0."""
    return _seconds(text, "above 0", lambda value: value > 0)


def _seconds(text: str, which: str, is_in: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and is_in(value)):
        msg = f"{text!r} is not a number of seconds, {which}"
        raise argparse.ArgumentTypeError(msg)
    return value


# The options of every command that reaches hosts. Their values are in the namespace by the name of
# the first long option, -n as ``n``.
_HOST_OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("-n", "--repeat-hosts"): {
        "dest": "n", "type": count_of("the number of ranks"), "metavar": "N",
        "help": "ranks on each host (default: its slots in the hostfile, else 1)",
    },
    ("--hosts",): {
        "metavar": "A,B,...",
        "help": "the hosts: names or addresses, user@b:2222 with a user and a port for ssh",
    },
    ("--hostfile",): {
        "metavar": "FILE", "help": "the same from a file of MLX's, Open MPI's or MPICH's",
    },
    ("--python",): {
        "metavar": "PATH",
        "help": "the interpreter on the hosts (default: the path of this one)",
    },
    ("--cwd",): {
        "metavar": "DIR", "help": "the folder of the ranks, on every host (default: this folder)",
    },
    ("--env",): {
        "action": "append", "default": [], "metavar": "KEY[=VAL]",
        "help": "set a variable for the ranks; may be repeated; a bare KEY must be set here",
    },
    ("--ssh-arg",): {
        "action": "append", "default": [], "metavar": "ARG",
        "help": "words for ssh, as in --ssh-arg='-i key'; may be repeated",
    },
    ("--interface",): {
        "metavar": "NAME", "help": "the network interface that the ranks use, like eth0",
    },
    ("--connections-per-ip",): {
        "type": count_of("the number of connections"), "metavar": "N",
        "help": "connections over each address of a host (default 1); all its ips in the hostfile "
        "are used at once",
    },
    ("--launcher",): {
        "metavar": "NAME", "help": f"how hosts are reached: {', '.join(LAUNCHERS)} (see below)",
    },
    ("--nodes",): {
        "type": count_of("the number of nodes"), "metavar": "N",
        "help": "with --launcher slurm: submit a job with N nodes, wait in the queue, and end it with "
        "the ranks",
    },
    ("--queue", "--partition"): {
        "metavar": "Q", "help": "Slurm's partition",
    },
    ("--account",): {
        "metavar": "A", "help": "the account that the job is charged to",
    },
    ("--time",): {
        "metavar": "T", "help": "the job's time limit, as Slurm writes it: 1:30:00",
    },
    ("--launcher-arg",): {
        "action": "append", "default": [], "metavar": "ARG",
        "help": "anything else for the launcher, as in --launcher-arg='--gres gpu:2'; may be "
        "repeated",
    },
    ("--boot-timeout",): {
        "type": seconds_above_0, "metavar": "S",
        "help": "seconds after which a host that is not up has failed (default 30; in a queue: 600)",
    },
}  # fmt: skip


def add_host_arguments(
    add: Callable[..., Any],
    *,
    helps: Mapping[str, str] | None = None,
    idle: Mapping[str, str] | None = None,
) -> None:
    """Declare the options of a command that reaches hosts.

    ``add`` is the ``add_argument`` of a parser or group. By the option's first name, ``helps`` has
    help texts of this command, and ``idle`` the reasons why an option has no effect in it.
    """
    for names, its in _HOST_OPTIONS.items():
        text = (helps or {}).get(names[0], its["help"])
        if names[0] in (idle or {}):
            text = f"no effect here: {(idle or {})[names[0]]}"
        add(*names, **{**its, "help": text})


def idle_notes(options: argparse.Namespace, idle: Mapping[str, str]) -> list[str]:
    """Say for each given option without effect why it has none.

    Examples
    --------
    >>> idle_notes(argparse.Namespace(n=2, env=[]), {"-n": "no rank starts", "--env": "too"})
    ['-n has no effect: no rank starts']
    """
    return [
        f"{name} has no effect: {why}"
        for name, why in idle.items()
        if getattr(options, name.lstrip("-").replace("-", "_")) not in (None, [])
    ]


def words_of(option: str, texts: list[str]) -> tuple[str, ...]:
    """Split the values of an option into words, as a shell does.

    Raises `ValueError`: quotes are unbalanced.

    Examples
    --------
    >>> words_of("--ssh-arg", ["-i 'my key'", "-4"])
    ('-i', 'my key', '-4')
    """
    try:
        return tuple(word for text in texts for word in shlex.split(text))
    except ValueError as error:
        msg = f"{option}: {error}"
        raise ValueError(msg) from None


def host_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `Workspace.start` for hosts.

    Raises `ValueError`: quotes are unbalanced, or scheduler options have no scheduler.
    """
    names = (
        "n", "hosts", "hostfile", "python", "cwd", "env", "interface", "launcher", "boot_timeout",
        "connections_per_ip",
    )  # fmt: skip
    said = {name: getattr(options, name) for name in names}
    return {"ssh_args": words_of("--ssh-arg", options.ssh_arg), "job": job_options(options), **said}


def named_hosts(options: argparse.Namespace) -> Hostfile | None:
    """Read the hosts that the options name, or those of a job.

    None if the options name none, or if a job is still to be submitted.

    Raises `ValueError`: the list or the file is wrong, or both are given; or the job's hosts cannot
    be read.
    """
    if options.hosts is not None and options.hostfile is not None:
        msg = "give --hosts or --hostfile, not both"
        raise ValueError(msg)
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    if not options.nodes and uses_job(options.launcher, os.environ):
        return job_hosts(options.launcher, os.environ, with_slots=options.n is None)
    return None


def recognise_job(options: argparse.Namespace, n: int | None) -> str:
    """Select the job's launcher if no hosts are named; return a note."""
    said = (options.hosts, options.hostfile, options.launcher, options.nodes)
    if any(value is not None for value in said):
        return ""
    options.launcher, note = recognised(os.environ, n)
    return note


def launcher_lines() -> str:
    """Describe each launcher in one line.

    Examples
    --------
    >>> print(launcher_lines().splitlines()[2])
      slurm      by srun, within a job of Slurm's; --nodes N: a job is submitted with salloc
    """
    lines = [f"  {name:10} {text}" for name, text in LAUNCHERS.items()]
    return "\n".join(["launchers:", *lines])


def job_options(options: argparse.Namespace) -> JobOptions:
    """Return the options for a scheduler.

    Raises `ValueError`: the options need a scheduler and none is chosen; or quotes are unbalanced.
    """
    args = words_of("--launcher-arg", options.launcher_arg)
    found = JobOptions(
        options.nodes or 0, options.queue or "", options.account or "", options.time or "", args
    )
    check_job(found, options.launcher)
    return found


def check_job(job: JobOptions, launcher: str | None) -> None:
    """Raise `ValueError` unless the launcher exists and accepts these options."""
    if launcher is not None:
        check_launcher_name(launcher)
    said = {
        "nodes": job.nodes, "queue": job.queue, "account": job.account, "time": job.time,
        "launcher-arg": job.args,
    }  # fmt: skip
    words = [f"--{name}" for name, value in said.items() if value]
    schedulers = [name for name in TITLES if not (job.nodes and name == "mpi")]
    if words and launcher not in schedulers:
        msg = f"{' and '.join(words)}: which scheduler is asked? say --launcher {'|'.join(schedulers)}"
        raise ValueError(msg)
    # Without --nodes only srun, outside of a job, requests a job by itself.
    late = [word for word in words if word not in {"--nodes", "--launcher-arg"}]
    if late and not job.nodes and launcher != "slurm":
        msg = f"{' and '.join(late)}: only with --nodes N, for a job that is submitted"
        raise ValueError(msg)
