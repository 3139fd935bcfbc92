"""`phalanx launch`: run a script or program on every rank.

This module checks the options. `ScriptRoot` or `MpiRanks` runs the ranks, and `Console` shows
labelled lines and makes one exit status of the ranks' exit statuses. Options of `mlx.launch` that this
engine does not need are accepted, with a note.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import did_you_mean
from phalanx.hosts import (
    Hostfile,
    add_host_arguments,
    count_of,
    environment,
    host_options,
    idle_notes,
    is_python,
    launcher_lines,
    named_hosts,
    recognise_job,
    resolve,
    seconds,
)
from phalanx.protocol import GRACE_S

if TYPE_CHECKING:
    from phalanx.workspace import Placement

_BACKENDS = ("any", "ring", "mpi")
_LATER = ("nccl", "jaccl", "jaccl-ring")
_IDLE = {
    "--starting-port": "the system gives the ports of this engine",
    "--nccl-port": "there is no NCCL here",
}
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


def _backend(text: str) -> str:
    if text in _LATER:
        msg = (
            f"'{text}' is not in this release; 'any' and 'ring' (tcp, shared memory) and 'mpi' are"
        )
        raise argparse.ArgumentTypeError(msg)
    if text not in _BACKENDS:
        msg = f"there is no backend '{text}'; there are: any, ring, mpi"
        raise argparse.ArgumentTypeError(msg)
    return text


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


def split(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Split the words into our options and the user's command.

    The command begins at the first word that is not an option. ``options`` tells for each option of
    launch whether it takes a value. The error for an unknown option names the nearest.

    Examples
    --------
    >>> split(["-n", "2", "run.py", "--verbose", "-n"], {"-n": True, "--verbose": False})
    (['-n', '2'], ['run.py', '--verbose', '-n'])
    >>> split(["-n2", "-m", "pkg", "x"], {"-n": True, "-m": True})
    (['-n2'], ['-m', 'pkg', 'x'])
    >>> split(["--", "-odd"], {})
    ([], ['-odd'])
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return list(words[:place]), list(words[place + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            break
        name, has_value = _option(word)
        if name not in options:
            hint = did_you_mean(name, options, "see phalanx launch --help")
            msg = f"there is no option '{name}'; {hint}"
            raise ValueError(msg)
        place += 2 if options[name] and not has_value else 1
    return list(words[:place]), list(words[place:])


def _option(word: str) -> tuple[str, bool]:
    """Return an option's name, and whether the word includes a value."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        return name, bool(equals)
    return word[:2], len(word) > 2


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
    has_hosts = hostfile is not None or bool(options.nodes)
    here = {} if has_hosts else {"--connections-per-ip": "all ranks run here"}
    notes += idle_notes(options, {**_IDLE, **here})
    theirs = hostfile.backend if hostfile else ""
    if options.backend is None and theirs not in ("", *_BACKENDS):
        assert hostfile is not None
        notes.append(
            f"{hostfile.source}: backend {theirs} is not here; the ranks use this engine, over tcp"
        )
    is_mpi = (options.backend or theirs) == "mpi"
    _check_backend(options, has_hosts=hostfile is not None, is_mpi=is_mpi)
    settings = [*(hostfile.envs if hostfile else ()), *options.env]
    env = {**_terminal_size(), **environment(settings, os.environ)}
    at = place(options, hostfile, env)
    # Python buffers lines on a pipe; the ranks' lines should come as soon as they are printed.
    env.setdefault("PYTHONUNBUFFERED", "1")
    is_checked = not options.no_verify_script
    cwd = Path(options.cwd or Path.cwd()).absolute()
    command = list(rest)
    # If no rank runs here, do not look for the script on this machine.
    if not rest or not at.hosts or any(plan.is_local for plan in at.hosts):
        command = resolve(rest, python, cwd, env.get("PATH"), is_checked=is_checked)
    threads = "" if is_mpi or not is_python(rest) else at.say_threads()
    for line in [*notes, *([threads] if threads else [])]:
        print(f"phalanx launch: {line}", file=sys.stderr)
    from .console import Launch

    launch = Launch(options, tuple(rest), command, env, at, str(cwd))
    if is_mpi:
        from .mpi_ranks import run_mpi

        return run_mpi(launch)
    from .script_root import run_script

    return run_script(launch)


def _check_backend(options: argparse.Namespace, *, has_hosts: bool, is_mpi: bool) -> None:
    """Refuse options of the other backend; mpirun reaches hosts by itself."""
    if not is_mpi:
        if options.mpi_arg:
            msg = "--mpi-arg is for --backend mpi"
            raise ValueError(msg)
        return
    for name, is_said, why in (
        ("--keep-going", options.keep_going, "mpirun ends all ranks with one"),
        ("--max-restarts", options.max_restarts, "mpirun ends all ranks with one"),
        ("--transport", options.transport == "tcp", "what MPI uses is said with --mpi-arg"),
    ):
        if is_said:
            msg = f"{name} is for --backend ring; {why}"
            raise ValueError(msg)
    ours = {
        "--interface": options.interface, "--ssh-arg": options.ssh_arg,
        "--launcher": options.launcher, "--boot-timeout": options.boot_timeout,
        "--connections-per-ip": has_hosts and options.connections_per_ip,
        "--nodes": options.nodes,
    }  # fmt: skip
    said = [name for name, value in ours.items() if value]
    if said:
        msg = f"{' and '.join(said)}: not with --backend mpi; mpirun's own are said with --mpi-arg"
        raise ValueError(msg)


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

    named = hostfile and msgspec.structs.replace(hostfile, backend="", envs=())
    said = {**host_options(options), "hosts": None, "hostfile": named, "env": env}
    if hostfile is None and not options.nodes:  # all ranks run here
        said |= {"n": options.n or 1, "python": None, "connections_per_ip": None}
    found = resolve_placement(**said)
    is_here = len(found.hosts) == 1 and found.hosts[0].is_local
    return replace(found, hosts=()) if is_here else found


def _terminal_size() -> dict[str, str]:
    """Return our terminal's size as variables for the ranks.

    The ranks have pipes, so they cannot ask a terminal.
    """
    for fd in (1, 2, 0):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            if size.columns > 0 and size.lines > 0:  # else a terminal that does not know its size
                return {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return {}
