"""`phalanx config`: find how hosts are connected, and write the hostfile.

This module parses options, prints and writes files; `surveys` asks the hosts, `planner` makes the
hostfile, and `setup` gives cables their addresses.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx import hosts
from phalanx.errors import naming
from phalanx.hosts import Host
from phalanx.protocol import HostPlan, RemoteOptions

from ..probe.talk import HostProbes
from .networks import DiscoveryError
from .planner import Discovery, Plan
from .setup import CableSetup, setup_scripts
from .surveys import Survey, gather, load_surveys, save_surveys

DESCRIPTION = (
    "Asks all hosts at once, over ssh and without changing anything, for their interfaces, "
    "Thunderbolt cables and RDMA devices, and prints a hostfile (MLX's JSON) in the order of the "
    "best ring. Cables want addresses: the commands for that are shown, or run with --auto-setup. "
    "Whatever is missing is named all at once."
)
EPILOG = """\
examples:
  phalanx config --hosts a,b,c --output hosts.json
  phalanx config --hosts a,b,c --dot | dot -Tpng > cables.png
  phalanx config --hosts a,b,c --over thunderbolt --auto-setup --output hosts.json
  phalanx config --hosts a,b,c --save said && phalanx config --from-saved said --backend ring
"""
_HELPS = {
    "--hosts": "names, addresses or user@name:port (default: this machine)",
    "--env": "kept in the hostfile for the ranks; may be repeated",
    "--python": "the interpreter on the hosts that asks their systems (default: python3)",
    "--launcher": "slurm, or ssh in a job of another scheduler: the hosts of the job that this runs in, "
    "instead (asked by ssh)",
}
_IDLE = {
    "-n": "a hostfile of MLX's has no number of ranks",
    **dict.fromkeys(
        ("--nodes", "--queue", "--account", "--time", "--launcher-arg"), "no job is submitted"
    ),
    **dict.fromkeys(
        ("--cwd", "--interface", "--connections-per-ip", "--boot-timeout"),
        "no rank starts",
    ),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx config``."""
    add = parser.add_argument
    hosts.add_host_arguments(add, helps=_HELPS, idle=_IDLE)
    add(
        "--over", choices=("thunderbolt", "ethernet", "any"), default="any",
        help="what joins the hosts; any: cables where they join all, else their common network",
    )  # fmt: skip
    add(
        "--backend", choices=("ring", "jaccl", "jaccl-ring"),
        help="what the hostfile is for (default: what cables and RDMA devices allow)",
    )  # fmt: skip
    add(
        "--auto-setup", action=argparse.BooleanOptionalAction, default=False,
        help="give the cables their addresses: shows each command, runs it with sudo, checks it, "
        "and undoes all if one fails",
    )  # fmt: skip
    add("--undo-setup", action="store_true", help="take back what --auto-setup has done, and end")
    add("--dot", action="store_true", help="print a picture for Graphviz, and end")
    add(
        "--output", "--output-hostfile", type=Path, metavar="PATH",
        help="write the hostfile there (default: print it)",
    )  # fmt: skip
    add(
        "--ignore-unreachable", action="store_true",
        help="leave out hosts that cannot be asked, instead of ending",
    )  # fmt: skip
    add(
        "--from-saved", type=Path, metavar="DIR",
        help="ask no host: read what --save has kept",
    )  # fmt: skip
    add("--save", type=Path, metavar="DIR", help="keep what the hosts say")
    add(
        "--timeout",
        type=hosts.seconds_above_0,
        default=20.0,
        metavar="S",
        help="for asking all hosts",
    )
    add("--verbose", action="store_true", help="say on stderr what is run and found")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Survey the hosts, plan, set up cables and write the hostfile."""
    _check(options)
    for note in _idle_notes(options):
        _say(note)
    chosen, probes, surveys = _surveys(options)
    found = Discovery(chosen, surveys)
    for survey in surveys:
        for note in survey.notes:
            _say(f"{survey.name}: {note}", is_shown=options.verbose or survey.system == "Linux")
    if options.undo_setup:
        CableSetup(probes, surveys, found.cables, _say).undo()
        return 0
    if options.dot:
        print(found.dot(options.over))
        return 0
    plan = found.plan(options.over, options.backend, options.env)
    for remark in plan.remarks:
        _say(remark)
    is_done = not plan.cables or _set_up(options, probes, surveys, plan)
    _write(options, plan)
    return 0 if is_done else 1


def _check(options: argparse.Namespace) -> None:
    if options.launcher is not None:
        hosts.check_launcher_name(options.launcher)
    if options.launcher not in {None, "ssh", "slurm"}:
        msg = (
            f"--launcher {options.launcher} has no jobs with hosts; launchers that have: slurm, ssh"
        )
        raise ValueError(msg)
    for text in options.env:
        if not _VARIABLE.fullmatch(text):
            msg = f"--env {text}: expected KEY=VAL, or the KEY of a variable"
            raise ValueError(msg)
    if options.from_saved is not None:
        if options.ssh_arg:
            msg = "--ssh-arg is for hosts that are asked; leave --from-saved out"
            raise ValueError(msg)
        for name in ("auto_setup", "undo_setup"):
            if getattr(options, name):
                msg = (
                    f"--{name.replace('_', '-')} runs commands on the hosts; leave --from-saved out"
                )
                raise ValueError(msg)


def _idle_notes(options: argparse.Namespace) -> list[str]:
    idle = dict(_IDLE)
    if options.hosts is not None or options.hostfile is not None:
        idle["--launcher"] = "the hosts are named, and asked by ssh"
    return hosts.idle_notes(options, idle)


def _named(options: argparse.Namespace) -> list[Host]:
    """Return the named hosts, without duplicates."""
    options.n = options.nodes = None  # without effect here
    hostfile = hosts.named_hosts(options)
    here = () if options.from_saved is not None else (hosts.Host("127.0.0.1"),)
    named = here if hostfile is None else hostfile.hosts
    once = {(host.ssh, host.port): host for host in named if host.slots != 0}
    return [hosts.Host(host.ssh, host.ips, port=host.port) for host in once.values()]


def _surveys(options: argparse.Namespace) -> tuple[list[Host], HostProbes, list[Survey]]:
    """Return the hosts that answered, what asks them, and their surveys."""
    named = _named(options)
    local = () if options.from_saved is not None else hosts.local_hosts(named)
    remote = RemoteOptions(
        python=options.python or "python3",  # the questions need no more than any Python
        ssh_args=hosts.words_of("--ssh-arg", options.ssh_arg),
        timeout_s=options.timeout / 2,  # for ssh to connect
    )

    def probes(chosen: Sequence[Host]) -> HostProbes:
        plans = [HostPlan(host.ssh, 0, (), host.port, host in local) for host in chosen]
        return HostProbes(plans, remote, lambda text: _say(text, is_shown=options.verbose))

    if options.from_saved is not None:
        surveys = load_surveys(options.from_saved, [host.ssh for host in named])
        known = {host.ssh: host for host in named}
        chosen = [known.get(survey.name, Host(survey.name)) for survey in surveys]
    else:
        found, failures = gather(
            probes(named),
            timeout_s=options.timeout,
            asks_sudo=options.auto_setup or options.undo_setup,
        )
        refusals = [f"{named[i].ssh}: {why}" for i, why in sorted(failures.items())]
        if refusals and (not options.ignore_unreachable or len(refusals) == len(named)):
            # Report all failures. With --ignore-unreachable, only if no host has answered.
            hint = "" if options.ignore_unreachable else " (--ignore-unreachable leaves them out)"
            which = f"{len(refusals)} of {len(named)} hosts" if len(named) > 1 else "the host"
            msg = f"{which} cannot be asked: {' | '.join(refusals)}{hint}"
            raise DiscoveryError(msg)
        for text in refusals:
            _say(f"left out {text}")
        chosen, surveys = [named[i] for i in sorted(found)], [found[i] for i in sorted(found)]
    if options.save is not None:
        path = save_surveys(options.save, surveys)
        _say(f"what the hosts say is in {path}", is_shown=options.verbose)
    return chosen, probes(chosen), surveys


def _set_up(
    options: argparse.Namespace, probes: HostProbes, surveys: Sequence[Survey], plan: Plan
) -> bool:
    """Run the setup commands or print them.

    Return whether this is what the user asked for: False if --auto-setup was given but sudo needs a
    password.
    """
    unable = [survey.name for survey in surveys if not survey.has_sudo]
    if options.auto_setup and not unable:
        CableSetup(probes, surveys, plan.cables, _say).run()
        return True
    why = (
        f"{', '.join(unable)}: no sudo without a password, so nothing is run; "
        if options.auto_setup
        else ""
    )
    _say(
        f"{why}the cables want addresses; run these there{'' if why else ', or say --auto-setup'}:"
    )
    for survey, script in zip(surveys, setup_scripts(surveys, plan.cables), strict=True):
        if script.commands:
            title = f"Setup for {survey.name}"
            print("\n".join([title, "=" * len(title), *script.commands, ""]), file=sys.stderr)
    return not options.auto_setup


def _write(options: argparse.Namespace, plan: Plan) -> None:
    text = hosts.to_json(plan.hostfile)
    if options.output is None:
        print(text)
        return
    with naming(options.output):
        options.output.write_text(text + "\n", encoding="utf-8")
    _say(f"{len(plan.hostfile.hosts)} hosts over {plan.over} are in {options.output}")


def _say(text: str, *, is_shown: bool = True) -> None:
    if is_shown:
        print(f"phalanx config: {text}", file=sys.stderr)
