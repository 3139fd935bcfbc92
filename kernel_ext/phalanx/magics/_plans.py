"""`%distributed topology` of hosts on which nothing runs: the world that a hostfile would make.

It declares the options and reads them as a start would; it starts and reaches nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx import widgets
from phalanx.protocol import Topology
from phalanx.workspace import where

__all__ = ["add_plan_arguments", "planned_world"]

# There is a path between each two ranks. Half a million of them are drawn in 5 s (two slow cores);
# those of 60,000 ranks would take this kernel, and all that it holds, with them.
MOST_DRAWN = 1024


def add_plan_arguments(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """Declare them; ``count`` parses a number of ranks."""
    plan = parser.add_argument_group("a plan, on which nothing is started")
    add = plan.add_argument
    add("--hosts", metavar="A,B", help="draw what a start on these hosts would make")
    add("--hostfile", metavar="FILE", help="the same from a file of MLX's, Open MPI's or MPICH's")
    add("-n", type=count, help="ranks per host (default: the hostfile's slots, else 1)")


def planned_world(options: Any) -> Topology | None:
    """Return the world that is asked for; None where it is the one that runs.

    Raises
    ------
    ValueError
        The hosts or the hostfile make no sense, or too many ranks; in one line.
    """
    if options.hosts is None and options.hostfile is None:
        if options.n is not None:
            msg = (
                "-n is the number of ranks per host of a plan: name them with --hosts or --hostfile"
            )
            raise ValueError(msg)
        return None
    plan = where(options.n, hosts=options.hosts, hostfile=options.hostfile)
    n_ranks = sum(host.ranks for host in plan.hosts)
    if n_ranks > MOST_DRAWN:
        msg = (
            f"{n_ranks} ranks are too many for a picture, which has room for {MOST_DRAWN}: "
            "draw fewer with a smaller -n, or some of the hosts with --hosts"
        )
        raise ValueError(msg)
    name = "plan" if options.hostfile is None else Path(options.hostfile).name
    return widgets.planned(plan.hosts, name=name)
