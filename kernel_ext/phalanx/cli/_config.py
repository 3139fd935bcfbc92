"""`phalanx config`: finds out how hosts are joined, and writes the hostfile for it.

It parses, prints and writes files; what is asked of hosts and made of it is the hosts room's.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import hosts as room
from phalanx.errors import DistributedError

if TYPE_CHECKING:
    from phalanx.hosts import Discovery, Host, PathTimes, Plan, Survey

__all__ = ["DESCRIPTION", "EPILOG", "HELP", "PASSES_ON", "add_arguments", "run"]

HELP = "find out how hosts are joined, and write their hostfile"
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
  phalanx config --hosts a,b,c --save said && phalanx config --from-saved said --svg hosts.svg
"""
PASSES_ON = False
_OF_JOBS = ("slurm", "pbs", "sge", "lsf")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.DOTALL)


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        msg = f"'{text}' is no KEY=VAL"
        raise argparse.ArgumentTypeError(msg)
    return text


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        msg = f"'{text}' is no number of seconds between 0 and 3600"
        raise argparse.ArgumentTypeError(msg)
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``phalanx config``."""
    add = parser.add_argument
    add(
        "--hosts",
        metavar="A,B,...",
        help="names, addresses or user@name:port (default: this machine)",
    )
    add("--hostfile", metavar="PATH", help="the hosts of a file: MLX's JSON, or Open MPI's text")
    add(
        "--launcher", choices=_OF_JOBS, metavar="NAME",
        help="the hosts of the job that this runs in, instead: slurm, pbs, sge, lsf (asked by ssh)",
    )  # fmt: skip
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
    add(
        "--measure", action="store_true",
        help="time every pair of addresses with the engine itself (phalanx is needed on each host), "
        "and order the ring and choose the addresses by that",
    )  # fmt: skip
    add(
        "--python",
        help="for --measure: the Python there (default: the path of this one)",
    )
    add("--dot", action="store_true", help="print the picture for Graphviz, and end")
    add("--svg", type=Path, metavar="FILE", help="also draw the picture into a file")
    add(
        "--output", "--output-hostfile", type=Path, metavar="PATH",
        help="write the hostfile there (default: print it)",
    )  # fmt: skip
    add(
        "--env", action="append", type=_variable, default=[], metavar="KEY[=VAL]",
        help="kept in the hostfile for the ranks; may be repeated",
    )  # fmt: skip
    add(
        "--ignore-unreachable", action="store_true",
        help="leave out hosts that cannot be asked, instead of ending",
    )  # fmt: skip
    add(
        "--from-saved", type=Path, metavar="DIR",
        help="ask no host: read what --save has kept, or files made by hand",
    )  # fmt: skip
    add("--save", type=Path, metavar="DIR", help="keep what the hosts say, a folder per host")
    add("--timeout", type=_limit, default=20.0, metavar="S", help="for asking all hosts")
    add("--verbose", action="store_true", help="say on stderr what is run and found")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001
    """Ask, plan, set up and write."""
    _check(options)
    chosen, local, surveys = _surveys(options)
    discovery = room.Discovery(chosen, surveys)
    for survey in surveys:
        for note in survey.notes:
            _say(f"{survey.name}: {note}", is_shown=options.verbose or survey.system == "Linux")
    if options.undo_setup:
        room.undo_setup(chosen, local, surveys, discovery.cables, say=_say)
        return 0
    if options.dot:
        _draw(options, discovery, None)
        print(discovery.dot(options.over))
        return 0
    try:
        plan = _planned(options, discovery)
    except DistributedError:
        _draw(options, discovery, None)  # to see what is missing is when a picture helps most
        raise
    for remark in plan.remarks:
        _say(remark)
    is_done = not plan.cables or _set_up(options, chosen, local, surveys, plan)
    times: Sequence[PathTimes] = ()
    if options.measure and len(chosen) > 1 and is_done:
        plan, times = _measured(options, chosen, local, discovery, plan)
    _draw(options, discovery, plan, times)
    _write(options, plan)
    return 0 if is_done else 1


def _check(options: argparse.Namespace) -> None:
    if options.hosts is not None and options.hostfile is not None:
        msg = "--hosts and --hostfile both name the hosts; give one"
        raise ValueError(msg)
    if options.launcher is not None and (options.hosts or options.hostfile):
        msg = "--launcher takes the hosts of a job; leave --hosts and --hostfile out"
        raise ValueError(msg)
    if options.from_saved is not None:
        for name in ("auto_setup", "undo_setup"):
            if getattr(options, name):
                msg = (
                    f"--{name.replace('_', '-')} runs commands on the hosts; leave --from-saved out"
                )
                raise ValueError(msg)
    if options.measure and options.dot:
        msg = "--dot ends before anything is measured; --svg draws what is"
        raise ValueError(msg)
    if options.svg is not None and options.svg.suffix != ".svg":
        msg = f"--svg {options.svg}: the file's name ends in .svg"
        raise ValueError(msg)


def _named(options: argparse.Namespace) -> list[Host]:
    """Return the hosts that were named, each once."""
    if options.hostfile is not None:
        named = room.read_hostfile(options.hostfile).hosts
    elif options.hosts is not None:
        named = room.parse_hosts(options.hosts).hosts
    elif options.launcher is not None:
        named = room.job_hosts(options.launcher, os.environ).hosts
    else:
        named = () if options.from_saved is not None else (room.Host("127.0.0.1"),)
    once = {(host.ssh, host.port): host for host in named if host.slots != 0}
    return [room.Host(host.ssh, host.ips, port=host.port) for host in once.values()]


def _surveys(
    options: argparse.Namespace,
) -> tuple[list[Host], Collection[Host], list[Survey]]:
    """Return the hosts, which of them are this machine, and what was found out about each."""
    named = _named(options)
    if options.from_saved is not None:
        names, outputs = room.load_outputs(options.from_saved, [host.ssh for host in named])
        known = {host.ssh: host for host in named}
        chosen = [known.get(name, room.Host(name)) for name in names]
        local: Collection[Host] = ()
    else:
        local = room.local_hosts(named)
        outputs, failures = room.gather(
            named, local, timeout_s=options.timeout, asks_sudo=options.auto_setup,
            say=lambda text: _say(text, is_shown=options.verbose),
        )  # fmt: skip
        told = [f"{named[i].ssh}: {why}" for i, why in sorted(failures.items())]
        if told and (not options.ignore_unreachable or len(told) == len(named)):
            # All of them, and with --ignore-unreachable only where nobody is left.
            hint = "" if options.ignore_unreachable else " (--ignore-unreachable leaves them out)"
            which = f"{len(told)} of {len(named)} hosts" if len(named) > 1 else "the host"
            msg = f"{which} cannot be asked: {' | '.join(told)}{hint}"
            raise room.DiscoveryError(msg)
        for text in told:
            _say(f"left out {text}")
        kept = [i for i in range(len(named)) if i not in failures]
        chosen, outputs = [named[i] for i in kept], [outputs[i] for i in kept]
    if options.save is not None:
        files = room.save_outputs(options.save, [host.ssh for host in chosen], outputs)
        _say(f"{len(files)} files are in {options.save}", is_shown=options.verbose)
    surveys = [room.read_survey(host.ssh, said) for host, said in zip(chosen, outputs, strict=True)]
    return chosen, local, surveys


def _set_up(
    options: argparse.Namespace,
    hosts: Sequence[Host],
    local: Collection[Host],
    surveys: Sequence[Survey],
    plan: Plan,
) -> bool:
    """Run the commands, or show them; whether that is what was asked for."""
    unable = [survey.name for survey in surveys if not survey.has_sudo]
    if options.auto_setup and not unable:
        room.run_setup(hosts, local, surveys, plan.cables, say=_say)
        return True
    why = (
        f"{', '.join(unable)}: no sudo without a password, so nothing is run; "
        if options.auto_setup
        else ""
    )
    _say(
        f"{why}the cables want addresses; run these there{'' if why else ', or say --auto-setup'}:"
    )
    for survey, steps in zip(surveys, room.setup_steps(surveys, plan.cables), strict=True):
        if steps:
            title = f"Setup for {survey.name}"
            commands = "\n".join(step.command for step in steps)
            print(f"{title}\n{'=' * len(title)}\n{commands}\n", file=sys.stderr)
    return not options.auto_setup


def _planned(options: argparse.Namespace, discovery: Discovery) -> Plan:
    if not options.measure:
        return discovery.plan(options.over, options.backend, options.env)
    # Cables whose addresses nobody sets now are measured if they have some, as any network is.
    over: room.Over = options.over if options.auto_setup else "ethernet"
    return discovery.plan(over, options.backend or "ring", options.env)


def _measured(
    options: argparse.Namespace,
    hosts: Sequence[Host],
    local: Collection[Host],
    discovery: Discovery,
    plan: Plan,
) -> tuple[Plan, Sequence[PathTimes]]:
    """Order the ring by what is measured, on the networks there are and on cables just set up."""
    cabled = [{port.interface for port in survey.ports} for survey in discovery.surveys]
    networks = room.cable_networks(plan.cables) if options.auto_setup else []
    ends = {address for net in networks for _, address in net.members.values()}
    for net in discovery.networks:
        has_cable = any(name in cabled[i] for i, (name, _) in net.members.items())
        is_again = any(address in ends for _, address in net.members.values())
        if not is_again and options.over in {"any", "thunderbolt" if has_cable else "ethernet"}:
            networks.append(net)
    if not networks:
        msg = "the hosts share no network on which they could be measured"
        raise room.DiscoveryError(msg)
    times = room.measure(hosts, local, networks, python=options.python or "", say=_say)
    plan = room.measured_plan(discovery, plan, networks, times)
    _say(plan.remarks[-1])
    return plan, times


def _write(options: argparse.Namespace, plan: Plan) -> None:
    text = room.to_json(plan.hostfile)
    if options.output is None:
        print(text)
        return
    options.output.write_text(text + "\n", encoding="utf-8")
    _say(f"{len(plan.hostfile.hosts)} hosts over {plan.over} are in {options.output}")


def _draw(
    options: argparse.Namespace,
    discovery: Discovery,
    plan: Plan | None,
    times: Sequence[PathTimes] = (),
) -> None:
    if options.svg is None:
        return
    from phalanx.widgets import cabling

    cabling(discovery, plan, times).save(options.svg)


def _say(text: str, *, is_shown: bool = True) -> None:
    if is_shown:
        print(f"phalanx config: {text}", file=sys.stderr)
