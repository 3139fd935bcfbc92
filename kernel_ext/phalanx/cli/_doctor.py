"""`phalanx doctor`: what would go wrong on hosts is said before it does, with what mends it.

It parses and prints; the hosts are asked in `_probing`, the answers judged in `_checks`.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shlex
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from phalanx.hosts import (
    Hostfile,
    interface_addresses,
    is_address,
    parse_hosts,
    plan,
    read_hostfile,
)
from phalanx.protocol import HostPlan, RemoteOptions

from ._checks import find
from ._finding import Finding, Task
from ._probing import Probe, Question, look

__all__ = ["DESCRIPTION", "EPILOG", "HELP", "PASSES_ON", "add_arguments", "run"]

HELP = "check this machine, or hosts, before ranks are started on them"
DESCRIPTION = (
    "Checks what ranks on several hosts need: ssh without a prompt, the same Python, phalanx and "
    "numpy, ports that are open between all hosts, clocks, memory, limits. A line a check: ok, a "
    "note (it works, but), or fail with what mends it. Nothing is installed or changed anywhere. "
    "The exit status is 1 if a check has failed."
)
EPILOG = """\
examples:
  phalanx doctor
  phalanx doctor --hosts a,b,user@c:2222 -n 2
  phalanx doctor --hostfile hosts.json --backend mpi --script train.py
"""
PASSES_ON = False
_BACKENDS = ("any", "ring", "mpi", "nccl", "jaccl", "jaccl-ring")


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx doctor``."""
    add = parser.add_argument
    add("--hosts", metavar="A,B", help="hosts, as ssh takes them: a,b,user@c:2222")
    add("--hostfile", metavar="FILE", help="the same from a file of MLX's, Open MPI's or MPICH's")
    add("-n", type=_count, metavar="N", help="ranks per host (default: its slots, else 1)")
    add("--python", metavar="PATH", help="the interpreter there (default: the path of this one)")
    add("--cwd", metavar="DIR", help="the folder there (default: this one)")
    add("--script", metavar="FILE", help="a script that is to be the same everywhere")
    add("--backend", choices=_BACKENDS, help="what the ranks will use (default: the hostfile's)")
    add("--interface", metavar="NAME", help="the network interface that the ranks will use")
    add(
        "--ssh-arg", action="append", default=[], metavar="ARG",
        help="words for ssh, as in --ssh-arg='-i key'; may be repeated",
    )  # fmt: skip
    add("--timeout", type=_seconds, default=15.0, metavar="S", help="for each step at each host")
    add("--json", action="store_true", help="print everything as one JSON object")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Ask, judge, print; 1 if something has failed."""
    if options.hosts is not None and options.hostfile is not None:
        msg = "give --hosts or --hostfile, not both"
        raise ValueError(msg)
    if options.interface is not None:
        interface_addresses(options.interface)
    hostfile = _hostfile(options)
    backend = options.backend or hostfile.backend or "any"
    plans = plan(hostfile, options.n)
    # First of all this machine, where the supervisor of all would run: also without ranks.
    here = [its for its in plans if its.is_local] or [HostPlan(_own_name(), 0, is_local=True)]
    far = [its for its in plans if not its.is_local]
    remote = RemoteOptions(
        python=options.python or "",
        ssh_args=tuple(word for words in options.ssh_arg for word in _words(words)),
        interface=options.interface or "",
        timeout_s=options.timeout,
    )
    question = Question(
        remote,
        folder=str(Path(options.cwd or ".").absolute()),
        script="" if options.script is None else str(Path(options.script).absolute()),
        is_both_ways=backend == "mpi",
    )
    names = sorted({name for its in far if not is_address(name := _real_name(its, remote))})
    probes = asyncio.run(look([*here, *far], names, question, options.timeout))
    findings = find(probes, Task(question, backend))
    has_failed = any(finding.status == "fail" for finding in findings)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(_told(probes, findings)), indent=2).decode())
    else:
        print("\n".join(map(str, findings)))
    return int(has_failed)


def _hostfile(options: argparse.Namespace) -> Hostfile:
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    return parse_hosts("localhost")


def _own_name() -> str:
    return socket.gethostname() or "localhost"


def _words(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError as error:
        msg = f"--ssh-arg {words}: {error}"
        raise ValueError(msg) from None


def _real_name(its: HostPlan, remote: RemoteOptions) -> str:
    """Return what ssh would resolve for a host: of a name in its settings, the name meant there."""
    name = its.name.rpartition("@")[2]
    try:
        said = subprocess.run(
            ["ssh", "-G", *remote.ssh_args, "--", its.name],
            capture_output=True, text=True, check=False, timeout=5,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return name
    words = [line.split(" ", 1) for line in said.stdout.splitlines()]
    return next((word[1] for word in words if word[0] == "hostname" and word[1:]), name)


def _told(probes: Sequence[Probe], findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "ok": all(finding.status != "fail" for finding in findings),
        "hosts": [
            {
                "name": probe.plan.name,
                "ranks": probe.plan.ranks,
                "is_local": probe.plan.is_local,
                "clock_s": probe.clock_s,
                **probe.facts,
            }
            for probe in probes
        ],
        "checks": findings,
    }
