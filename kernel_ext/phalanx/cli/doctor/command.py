"""`phalanx doctor`: report problems on hosts, and how to fix them.

`probing` asks the hosts, `checks` judges the answers. Only a "fail" affects the exit status.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from phalanx.hosts import (
    LAUNCHERS,
    TITLES,
    Hostfile,
    add_host_arguments,
    idle_notes,
    interface_addresses,
    is_address,
    job_options,
    named_hosts,
    parse_hosts,
    plan,
    recognise_job,
    seconds_above_0,
    uses_job,
    words_of,
)
from phalanx.protocol import HostPlan, RemoteOptions
from phalanx.supervisor.hosts.addresses import real_name

from .checks import Finding, find
from .launchers import check_job_hosts, check_launcher
from .probing import Probe, ProbeQuestion, look

DESCRIPTION = (
    "Checks what ranks on several hosts need: ssh without a prompt, the same Python, phalanx and "
    "numpy, ports that are open between all hosts, clocks, memory, limits. A line a check: ok, a "
    "note (it works, but), or fail with how to fix it. Nothing is installed or changed anywhere. "
    "The exit status is 1 if a check has failed."
)

EPILOG = """\
examples:
  phalanx doctor
  phalanx doctor --hosts a,b,user@c:2222 -n 2
  phalanx doctor --hostfile hosts.json --backend mpi --script train.py
  salloc -N 3 phalanx doctor                 (the hosts of the job, by srun)
  phalanx doctor --launcher slurm --nodes 3  (what is needed here to submit a job)
"""
_HELPS = {
    "--launcher": "how ranks will be started: checks its commands and folder here, and the hosts of the "
    f"job that this runs in, which is recognised; {', '.join(LAUNCHERS)}",
    "--nodes": "with --launcher slurm: a job of N is to be submitted",
    "--interface": "the network interface that the ranks will use",
}
_IDLE = {
    "--env": "no rank starts",
    "--connections-per-ip": "one connection shows whether a way is open",
    "--boot-timeout": "no rank starts; --timeout is for the checks",
}
_BACKENDS = ("any", "ring", "mpi", "nccl", "jaccl", "jaccl-ring")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx doctor``."""
    add = parser.add_argument
    add_host_arguments(add, helps=_HELPS, idle=_IDLE)
    add("--script", metavar="FILE", help="a script that is to be the same everywhere")
    add("--backend", choices=_BACKENDS, help="what the ranks will use (default: the hostfile's)")
    add(
        "--timeout",
        type=seconds_above_0,
        default=15.0,
        metavar="S",
        help="for each step at each host",
    )
    add("--json", action="store_true", help="print everything as one JSON object")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Probe the hosts and print findings; return 1 after a "fail"."""
    if options.interface is not None:
        interface_addresses(options.interface)
    for note in idle_notes(options, _IDLE):
        print(f"phalanx doctor: {note}", file=sys.stderr)
    recognise_job(options, None)
    job = job_options(options)
    launcher = options.launcher or "ssh"
    findings: list[Finding] = []
    has_hosts = options.hosts is not None or options.hostfile is not None
    if launcher in TITLES:
        findings += check_launcher(launcher, options.nodes or 0, os.environ, has_hosts=has_hosts)
    elif not has_hosts and uses_job(options.launcher, os.environ):
        findings.append(check_job_hosts(launcher, os.environ))
    hostfile: Hostfile | None = None
    with contextlib.nullcontext() if has_hosts else contextlib.suppress(ValueError):
        hostfile = named_hosts(options)  # a finding reports a job's error
    hostfile = hostfile or parse_hosts("localhost")
    plans = plan(hostfile, options.n)
    # First this machine, even without ranks: the root supervisor would run here.
    own = HostPlan(socket.gethostname() or "localhost", 0, is_local=True)
    here = [its for its in plans if its.is_local] or [own]
    far = [its for its in plans if not its.is_local]
    remote = RemoteOptions(
        python=options.python or "",
        ssh_args=words_of("--ssh-arg", options.ssh_arg),
        interface=options.interface or "",
        timeout_s=options.timeout,
        launcher=launcher,
        job=job,
    )
    known = [
        its.name if launcher in TITLES else real_name(its.name, remote.ssh_args) for its in far
    ]
    if far and launcher in TITLES:  # other hosts must resolve this machine's name as well
        known.append(here[0].name)
    question = ProbeQuestion(
        remote,
        options.backend or hostfile.backend or "any",
        folder=str(Path(options.cwd or ".").absolute()),
        script="" if options.script is None else str(Path(options.script).absolute()),
        names=sorted({name for name in known if not is_address(name)}),
    )
    probes = asyncio.run(look([*here, *far], question))
    findings += find(probes, question)
    has_failed = any(finding.status == "fail" for finding in findings)
    if options.json:
        report = msgspec.json.encode(_report(probes, findings))
        print(msgspec.json.format(report, indent=2).decode())
    else:
        print("\n".join(map(str, findings)))
    return int(has_failed)


def _report(probes: Sequence[Probe], findings: Sequence[Finding]) -> dict[str, object]:
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
