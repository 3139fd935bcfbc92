"""`phalanx launch`: run a script or program on every rank.

This module checks the options. `ScriptLauncher` or `MpiLauncher` runs the ranks, shows labelled
lines and makes one exit status of the ranks' exit statuses.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.hosts import (
    Hostfile,
    count_of,
    environment,
    is_python,
    launcher_lines,
    named_hosts,
    recognise_job,
    resolve,
    seconds,
)
from phalanx.protocol import GRACE_S

from ..common import checked_cwd, split
from .places import (
    BACKENDS,
    Job,
    add_place_arguments,
    idle_options,
    place,
    terminal_size,
)

if TYPE_CHECKING:
    from phalanx.workspace import Placement

DESCRIPTION = (
    "Runs a script (with Python), a module (-m) or any other program once per rank, on this "
    "machine or on several hosts. Lines of output come whole and with their rank; of a progress bar a "
    "file gets the last state only (--label none: every byte). What you type goes to every rank. "
    "Ctrl-C ends the ranks, Ctrl-\\ shows where their Python code is. "
    "The exit status is that of the first rank that failed (128 + number for a signal). What "
    "follows the script's name belongs to the script."
)
EPILOG = f"""\
{launcher_lines()}

examples:
  phalanx launch -n 4 train.py --epochs 3
  phalanx launch -n 2 -m package.module
  phalanx launch -n 4 --label none -- ./program -v
  phalanx launch --hosts a,b -n 2 train.py
  phalanx launch --hostfile hosts.json --env OMP_NUM_THREADS=4 train.py
  phalanx launch --launcher slurm --nodes 2 -n 8 --queue short --time 30 train.py
  phalanx launch -n 4 --backend mpi --mpi-arg='--bind-to none' train.py
"""
PASSES_ON = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx launch``."""
    add = parser.add_argument
    parser.usage = "phalanx launch [options] (script.py | -m module | program) [arguments ...]"
    add_place_arguments(parser)
    add("--print-python", action="store_true", help="print which Python that is, and end")
    add(
        "--mpi-arg", action="append", default=[], metavar="ARG",
        help="words for mpirun, as in --mpi-arg='--bind-to none'; may be repeated",
    )  # fmt: skip
    add(
        "--transport", choices=("any", "tcp"),
        help="tcp: ranks of one host do not share memory (default: PHALANX_TRANSPORT, else any)",
    )  # fmt: skip
    add("--label", choices=("rank", "host", "none"), default="rank", help="what lines begin with")
    add(
        "--log-dir", type=Path, metavar="DIR",
        help="also write each rank's output to files there, which you alone may read",
    )  # fmt: skip
    add(
        "--timeout",
        type=seconds,
        metavar="S",
        help="end the ranks after S seconds; exit status 124",
    )
    add(
        "--grace", type=seconds, default=GRACE_S, metavar="S",
        help="seconds that the other ranks have to handle the failure of one before they are asked "
        "to end (SIGTERM), and again before they are killed",
    )  # fmt: skip
    add(
        "--heartbeat-timeout", "--silence", type=seconds, default=5.0, metavar="S",
        help="seconds without a sign of life after which a rank is taken for frozen; "
        "give more of them to look at a rank in a debugger",
    )  # fmt: skip
    add(
        "--keep-going", action="store_true",
        help="a rank that fails does not end the others; where they go on without it (px.recover()) "
        "and end well, the exit status is 0",
    )  # fmt: skip
    add(
        "--max-restarts", type=_n_restarts, default=0, metavar="K",
        help="start a rank that fails again, K times in all (default: 0); the others go on with it "
        "after px.recover(), and PHALANX_RESTART_COUNT tells a rank how often it was started again",
    )  # fmt: skip
    add("--verbose", action="store_true", help="say on stderr what is started and how it ends")


def _n_restarts(text: str) -> int:
    """Parse a number of restarts, 0 or more."""
    return 0 if text == "0" else count_of("the number of restarts")(text)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the words after ``launch`` into our own and the command's."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    takes_value = {
        name: action.nargs != 0 for action in parser._actions for name in action.option_strings
    }
    return split(words, takes_value)


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Run the command on ranks; return the first failed rank's status."""
    python = options.python or sys.executable
    if options.print_python:
        print(python)
        return 0
    # Check before starting ranks, so that a mistake is reported in one line, not one line per rank.
    # MPI's own launcher recognises a job by itself.
    note = "" if options.backend == "mpi" else recognise_job(options, options.n)
    notes = [note] if note else []
    hostfile = named_hosts(options)
    notes += idle_options(options, has_hosts=hostfile is not None or bool(options.nodes))
    options.backend, of_backend = _chosen_backend(options, hostfile)
    is_mpi = options.backend == "mpi"
    if options.mpi_arg and not is_mpi:
        msg = "--mpi-arg is for --backend mpi"
        raise ValueError(msg)
    if is_mpi and options.keep_going:
        msg = "--keep-going is for --backend ring; mpirun ends all ranks with one"
        raise ValueError(msg)
    if is_mpi and options.max_restarts:
        msg = "--max-restarts is for --backend ring; mpirun ends all ranks with one"
        raise ValueError(msg)
    if is_mpi and options.transport == "tcp":
        msg = "--transport is for --backend ring; what MPI uses is said with --mpi-arg"
        raise ValueError(msg)
    if is_mpi:
        _check_mpi(options, hostfile)
    settings = [*(hostfile.envs if hostfile else ()), *options.env]
    env = {**terminal_size(), **environment(settings, os.environ)}
    at = place(options, hostfile, env)
    job = _job(options, rest, python, at, env)
    threads = "" if is_mpi or not is_python(rest) else at.say_threads()
    for line in [*notes, *of_backend, *([threads] if threads else [])]:
        print(f"phalanx launch: {line}", file=sys.stderr)
    if is_mpi:
        from .mpi_launcher import MpiLauncher

        return MpiLauncher(options, job).run()
    from .script_launcher import ScriptLauncher

    return ScriptLauncher(options, job).run()


def _chosen_backend(
    options: argparse.Namespace, hostfile: Hostfile | None
) -> tuple[str, Sequence[str]]:
    """Return the backend, and notes to print about it."""
    theirs = hostfile.backend if hostfile else ""
    if options.backend is not None or not theirs:
        return options.backend or "any", ()
    if theirs in BACKENDS:
        return theirs, ()
    assert hostfile is not None
    return "any", [
        f"{hostfile.source}: backend {theirs} is not here; the ranks use this engine, over tcp"
    ]


def _job(
    options: argparse.Namespace,
    words: Sequence[str],
    python: str,
    at: Placement,
    env: dict[str, str],
) -> Job:
    # Python buffers lines on a pipe; the ranks' lines should come as soon as they are printed.
    env.setdefault("PYTHONUNBUFFERED", "1")
    is_checked = not options.no_verify_script
    if not at.hosts or any(plan.is_local for plan in at.hosts):
        cwd = checked_cwd(options.cwd)
        path = env.get("PATH")
        command = resolve(words, python, cwd, path, is_checked=is_checked)
    else:  # no rank runs here, so do not look for the script on this machine
        cwd = Path(options.cwd or Path.cwd()).absolute()
        command = list(words)
        if not words:
            resolve(words, python, cwd)
    return Job(command, tuple(words), at, str(cwd), env, is_checked)


def _check_mpi(options: argparse.Namespace, hostfile: Hostfile | None) -> None:
    """Refuse options that mpirun would not get.

    mpirun reaches the hosts by itself.
    """
    ours = {
        "--interface": options.interface, "--ssh-arg": options.ssh_arg,
        "--launcher": options.launcher, "--boot-timeout": options.boot_timeout,
        "--connections-per-ip": hostfile and options.connections_per_ip,
        "--nodes": options.nodes,
    }  # fmt: skip
    said = [name for name, value in ours.items() if value]
    if said:
        msg = f"{' and '.join(said)}: not with --backend mpi; mpirun's own are said with --mpi-arg"
        raise ValueError(msg)
