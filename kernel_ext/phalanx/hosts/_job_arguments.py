"""The options that say how hosts are reached and what a scheduler is asked for, declared once.

The magics and the command line have them both; what they mean is the workspace's.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from typing import Any

from phalanx.protocol import JobOptions

from ._jobs import LAUNCHERS, TITLES, recognised

__all__ = [
    "add_far_arguments",
    "check_job",
    "job_options",
    "launcher_lines",
    "recognise_job",
    "ssh_words",
]


def add_far_arguments(
    add: Callable[..., Any], count: Callable[[str], int], seconds: Callable[[str], float]
) -> None:
    """Declare them; ``add`` is a parser's, or a group's; ``count`` and ``seconds`` parse values."""
    add(
        "--ssh-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="words for ssh, as in --ssh-arg='-i key'; may be repeated",
    )
    add("--interface", metavar="NAME", help="the network interface that the ranks use, like eth0")
    add(
        "--connections-per-ip",
        type=count,
        metavar="N",
        help="connections over each address of a host (default 1); all its ips in the hostfile are "
        "used at once",
    )
    _add_job_arguments(add, count)
    add(
        "--boot-timeout",
        type=seconds,
        metavar="S",
        help="seconds after which a host that is not up has failed (default 30; in a queue: 600)",
    )


def ssh_words(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the words that ssh is to get.

    Raises
    ------
    ValueError
        Quotes do not match.

    Examples
    --------
    >>> ssh_words(argparse.Namespace(ssh_arg=["-i 'my key'", "-4"]))
    ('-i', 'my key', '-4')
    """
    return _words("--ssh-arg", options.ssh_arg)


def _words(option: str, texts: list[str]) -> tuple[str, ...]:
    try:
        return tuple(word for text in texts for word in shlex.split(text))
    except ValueError as error:
        msg = f"{option}: {error}"
        raise ValueError(msg) from None


def recognise_job(options: argparse.Namespace, n: int | None) -> str:
    """Start on the hosts of the job that we are in, where nothing else is said; tell what is done."""
    said = (options.hosts, options.hostfile, options.launcher, options.nodes)
    if any(value is not None for value in said):
        return ""
    found = recognised(os.environ, n)
    options.launcher = found.launcher
    return found.note


def _add_job_arguments(add: Callable[..., Any], count: Callable[[str], int]) -> None:
    known = ", ".join(LAUNCHERS)
    add("--launcher", metavar="NAME", help=f"how hosts are reached: {known} (see below)")
    add(
        "--nodes",
        type=count,
        metavar="N",
        help="submit a job with N nodes to the --launcher's scheduler, wait in its queue, and end "
        "it with the ranks",
    )
    add("--queue", "--partition", metavar="Q", help="the scheduler's queue or partition")
    add("--account", metavar="A", help="the account or project that the job is charged to")
    add("--time", metavar="T", help="the job's time limit, as the scheduler writes it: 1:30:00")
    add(
        "--launcher-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="anything else for the launcher, as in --launcher-arg='--gres gpu:2'; may be repeated",
    )


def launcher_lines() -> str:
    """Say of each launcher what it does, one a line.

    Examples
    --------
    >>> print(launcher_lines().splitlines()[1])
      ssh        by ssh, one for each host (the default)
    """
    lines = [f"  {name:10} {text}" for name, text in LAUNCHERS.items()]
    return "\n".join(["launchers:", *lines])


def job_options(options: argparse.Namespace) -> JobOptions:
    """Return what a scheduler is asked for, from the options.

    Raises
    ------
    ValueError
        They make no sense without one; or quotes do not match.
    """
    args = tuple(options.launcher_arg)
    if options.launcher != "htcondor":  # whose words are lines: request_memory = 2GB
        args = _words("--launcher-arg", options.launcher_arg)
    found = JobOptions(
        options.nodes or 0, options.queue or "", options.account or "", options.time or "", args
    )
    check_job(found, options.launcher)
    return found


def check_job(job: JobOptions, launcher: str | None) -> None:
    """Check that there is a scheduler that is asked for this; `ValueError` in one line if not."""
    said = {
        "nodes": job.nodes, "queue": job.queue, "account": job.account, "time": job.time,
        "launcher-arg": job.args,
    }  # fmt: skip
    words = [f"--{name}" for name, value in said.items() if value]
    schedulers = [name for name in TITLES if not (job.nodes and name == "mpi")]
    if words and launcher not in schedulers:
        msg = f"{' and '.join(words)}: which scheduler is asked? say --launcher {'|'.join(schedulers)}"
        raise ValueError(msg)
    # Of them all only srun, outside of a job, asks for one of its own.
    late = [word for word in words if word not in {"--nodes", "--launcher-arg"}]
    if late and not job.nodes and launcher != "slurm":
        msg = f"{' and '.join(late)}: only with --nodes N, for a job that is submitted"
        raise ValueError(msg)
