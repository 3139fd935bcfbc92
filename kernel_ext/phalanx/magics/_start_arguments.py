"""The options of `%distributed start`: how many ranks, where, and how long they stay.

It declares them; what they mean is the workspace's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from phalanx.hosts import add_far_arguments, job_options, launcher_lines, ssh_words

__all__ = ["add_start_arguments", "start_options"]


def add_start_arguments(
    start: argparse.ArgumentParser, count: Callable[[str], int], seconds: Callable[[str], float]
) -> None:
    """Declare them on a parser; ``count`` and ``seconds`` parse such values."""
    start.epilog = launcher_lines()
    start.formatter_class = argparse.RawDescriptionHelpFormatter
    add = start.add_argument
    add("-n", type=count, help="number of ranks (default 4), or of ranks per host (default 1)")
    add("--hosts", metavar="A,B", help="start them on these hosts, over ssh: a,b,user@c:2222")
    add("--hostfile", metavar="FILE", help="the same from a file of MLX's, Open MPI's or MPICH's")
    add(
        "--linger",
        type=seconds,
        default=600.0,
        metavar="S",
        help="seconds that the ranks outlive this kernel: so long attach finds them (default 600)",
    )
    add("--name", help="what to call them, for attach (default: by the process)")
    add(
        "--detach",
        action="store_true",
        help="the ranks outlive the end of a terminal's IPython, too (a kernel's they always do)",
    )
    add(
        "--silence",
        type=seconds,
        default=5.0,
        metavar="S",
        help="seconds after which a frozen rank is named and the others are freed (default 5)",
    )
    add(
        "--transport",
        choices=["any", "tcp"],
        default="any",
        help="tcp: do not share memory between the ranks of this machine",
    )
    add(
        "--auto-restart",
        action="store_true",
        help="replace a rank that dies at once, and say so",
    )
    add("--cwd", metavar="DIR", help="where the ranks begin (default: here, on every host)")
    add(
        "--env",
        action="append",
        default=[],
        metavar="KEY[=VAL]",
        help="set a variable for the ranks; may be repeated; a bare KEY must be set here",
    )
    far = start.add_argument_group("on several hosts")
    add = far.add_argument
    add("--python", metavar="PATH", help="the interpreter there (default: the path of this one)")
    add_far_arguments(add, count, seconds)


def start_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what `Workspace.start` takes.

    Raises
    ------
    ValueError
        Words for ssh whose quotes do not match, or for a scheduler that is not named.
    """
    names = (
        "n", "hosts", "hostfile", "name", "linger", "silence", "transport", "detach",
        "auto_restart", "python", "cwd", "env", "interface", "launcher", "boot_timeout",
        "connections_per_ip",
    )  # fmt: skip
    said = {name: getattr(options, name) for name in names}
    return {"ssh_args": ssh_words(options), "job": job_options(options), **said}
