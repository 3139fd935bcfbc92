"""Assign addresses to cables: run each host's commands, check them, undo them.

The settings do not survive a reboot of the host. That is on purpose: a reboot also removes a wrong
setup.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from phalanx.errors import DistributedError

from ..host import Host
from .networks import Cable
from .records import Survey
from .remote_exec import Answer, ask_hosts

_TIMEOUT_S = 30.0
_PINGS_S = 6.0  # two unanswered pings of 3 s
_NO_PING = 77  # an exit status that ping never returns

_HEAD = """
PATH=$PATH:/usr/sbin:/sbin:/usr/bin:/bin
LC_ALL=C; export LC_ALL PATH
if [ "$(id -u)" = 0 ]; then sudo() { "$@"; }; else sudo() { command sudo -n "$@"; }; fi
"""


class SetupError(DistributedError):
    """A command failed on a host, or a cable does not answer.

    The text says whether everything was undone, or what is left.
    """


@dataclass(frozen=True)
class SetupStep:
    """One shell command and the command that undoes it ("" for none).

    ``may_fail``: the command only prepares the next ones and fails if there is nothing to prepare.
    """

    command: str
    undo: str = ""
    may_fail: bool = False


def setup_steps(surveys: Sequence[Survey], cables: Sequence[Cable]) -> list[list[SetupStep]]:
    """Return the commands of each host in order.

    Examples
    --------
    >>> here, there = Survey("a", "Linux"), Survey("b", "Linux")
    >>> cable = Cable(0, "thunderbolt0", "192.168.0.1", 1, "thunderbolt0", "192.168.0.2")
    >>> [step.command for step in setup_steps([here, there], [cable])[0]]
    ['sudo ip link set dev thunderbolt0 up', 'sudo ip addr replace 192.168.0.1/30 dev thunderbolt0']
    """
    found = []
    for i, survey in enumerate(surveys):
        ends = [
            (*cable.end(i), cable.end(j)[1])
            for j in range(len(surveys))
            for cable in cables
            if i != j and {cable.a, cable.b} == {i, j}
        ]
        make = _macos_steps if survey.system == "Darwin" else _linux_steps
        found.append(make(ends) if ends else [])
    return found


def _macos_steps(ends: Sequence[tuple[str, str, str]]) -> list[SetupStep]:
    # The bridge contains all Thunderbolt interfaces; while it is up their own addresses fail.
    steps = [SetupStep("sudo ifconfig bridge0 down", "sudo ifconfig bridge0 up", may_fail=True)]
    seen = set()
    for interface, address, peer in ends:
        # A second cable through a hub uses the same interface.
        also = " alias" if interface in seen else ""
        seen.add(interface)
        steps += [
            SetupStep(
                f"sudo ifconfig {interface} inet {address} netmask 255.255.255.252{also}",
                f"sudo ifconfig {interface} inet {address} delete",
            ),
            SetupStep(
                f"sudo route change {peer} -interface {interface} || "
                f"sudo route add {peer} -interface {interface}",
                f"sudo route delete {peer}",
            ),
        ]
    return steps


def _linux_steps(ends: Sequence[tuple[str, str, str]]) -> list[SetupStep]:
    steps = []
    for interface, address, _ in ends:
        steps += [
            SetupStep(f"sudo ip link set dev {interface} up"),
            SetupStep(
                f"sudo ip addr replace {address}/30 dev {interface}",
                f"sudo ip addr del {address}/30 dev {interface}",
            ),
        ]
    return steps


def run_setup(
    hosts: Sequence[Host],
    local: Collection[Host],
    surveys: Sequence[Survey],
    cables: Sequence[Cable],
    *,
    ssh_args: Sequence[str] = (),
    say: Callable[[str], None],
) -> None:
    """Run all hosts' commands in parallel, then ping over each cable.

    Raises
    ------
    SetupError
        A command failed (everything was undone), or a cable does not answer.
    """
    unable = [survey.name for survey in surveys if not survey.has_sudo]
    if unable:
        msg = f"{', '.join(unable)}: no sudo without a password; run the commands there by hand"
        raise SetupError(msg)
    steps = setup_steps(surveys, cables)
    for survey, own in zip(surveys, steps, strict=True):
        for step in own:
            say(f"{survey.name}: {step.command}")
    done, faults = _run(hosts, local, steps, ssh_args)
    if faults:
        undone = [own[:n] for own, n in zip(steps, done, strict=True)]
        for survey, own in zip(surveys, undone, strict=True):
            for step in reversed(own):
                if step.undo:
                    say(f"{survey.name}: {step.undo}")
        left = _undo(hosts, local, undone, ssh_args)
        ending = f"; and undoing failed: {'; '.join(left)}" if left else "; everything was undone"
        raise SetupError("; ".join(faults) + ending)
    silent, untried = _ping(hosts, local, surveys, cables, ssh_args)
    if silent:
        msg = (
            f"no answer over {', '.join(silent)}: is a firewall on? (the addresses are set; "
            "--undo-setup takes them back)"
        )
        raise SetupError(msg)
    if untried:
        say(f"not tried, as there is no ping: {', '.join(untried)}")
    say(f"{len(cables) - len(untried)} of {len(cables)} cables have been tried and answer")


def undo_setup(
    hosts: Sequence[Host],
    local: Collection[Host],
    surveys: Sequence[Survey],
    cables: Sequence[Cable],
    *,
    ssh_args: Sequence[str] = (),
    say: Callable[[str], None],
) -> None:
    """Undo `run_setup` for the same cables; raise `SetupError` for what remains."""
    steps = setup_steps(surveys, cables)
    for survey, own in zip(surveys, steps, strict=True):
        for step in reversed(own):
            if step.undo:
                say(f"{survey.name}: {step.undo}")
    left = _undo(hosts, local, steps, ssh_args)
    if left:
        raise SetupError("; ".join(left))


def _undo(
    hosts: Sequence[Host],
    local: Collection[Host],
    steps: Sequence[Sequence[SetupStep]],
    ssh_args: Sequence[str],
) -> list[str]:
    """Undo all possible steps on each host; return the failures."""
    backwards = [
        [SetupStep(step.undo, may_fail=step.may_fail) for step in reversed(own) if step.undo]
        for own in steps
    ]
    return _run(hosts, local, backwards, ssh_args, stops=False)[1]


def _run(
    hosts: Sequence[Host],
    local: Collection[Host],
    steps: Sequence[Sequence[SetupStep]],
    ssh_args: Sequence[str],
    *,
    stops: bool = True,
) -> tuple[list[int], list[str]]:
    """Run each host's commands; return numbers of commands run, and failures."""
    mark = secrets.token_hex(16)
    chosen = [i for i, own in enumerate(steps) if own]
    scripts = [_script(steps[i], mark, stops=stops) for i in chosen]
    asked = [hosts[i] for i in chosen]
    answers = ask_hosts(asked, local, scripts, _TIMEOUT_S, ssh_args=ssh_args)
    done = [0] * len(hosts)
    faults = []
    for i, answer in zip(chosen, answers, strict=True):
        results = re.findall(rf"^{mark} (\d+) (\d+)$", answer.output, re.MULTILINE)
        # A failed command may have had part of its effect, so it is undone as well.
        done[i] = len(results)
        if answer.failure:
            done[i] = len(steps[i])  # the number is unknown
            faults.append(f"{hosts[i].ssh}: {answer.failure}")
            continue
        for number, status in results:
            step = steps[i][int(number)]
            if status != "0" and not step.may_fail:
                said = _said(answer, mark, number)
                faults.append(
                    f"{hosts[i].ssh}: '{step.command}' failed ({said or f'status {status}'})"
                )
        if len(results) < len(steps[i]) and not any(s != "0" for _, s in results):
            faults.append(f"{hosts[i].ssh}: its shell has not run our commands to the end")
    return done, faults


def _script(steps: Sequence[SetupStep], mark: str, *, stops: bool) -> str:
    lines = [_HEAD]
    for number, step in enumerate(steps):
        leave = "[ $s = 0 ] || exit 0" if stops and not step.may_fail else ":"
        lines.append(
            f"printf '\\n{mark} at {number}\\n'; {{ {step.command}; }} </dev/null 2>&1; s=$?; "
            f"printf '\\n{mark} {number} %s\\n' $s; {leave}"
        )
    return "\n".join(lines) + "\n"


def _said(answer: Answer, mark: str, number: str) -> str:
    """Return the last line of a command's output."""
    found = re.search(
        rf"^{mark} at {number}\n(.*?)^{mark} {number} ", answer.output, re.MULTILINE | re.DOTALL
    )
    lines = [" ".join(line.split()) for line in (found[1] if found else "").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "")


def _ping(
    hosts: Sequence[Host],
    local: Collection[Host],
    surveys: Sequence[Survey],
    cables: Sequence[Cable],
    ssh_args: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return the cables without an answer, and the cables without a ping."""
    steps: list[list[SetupStep]] = [[] for _ in hosts]
    asked: list[list[Cable]] = [[] for _ in hosts]
    for cable in cables:
        wait = "-t 3" if surveys[cable.a].system == "Darwin" else "-W 3"
        # An interface that has just come up may lose the first ping.
        once = f"ping -c 1 {wait} {cable.b_address} >/dev/null"
        tried = f"if command -v ping >/dev/null; then {once} || {once}; else (exit {_NO_PING}); fi"
        steps[cable.a].append(SetupStep(tried, may_fail=True))
        asked[cable.a].append(cable)
    mark = secrets.token_hex(16)
    chosen = [i for i, own in enumerate(steps) if own]
    scripts = [_script(steps[i], mark, stops=False) for i in chosen]
    patience_s = _TIMEOUT_S + _PINGS_S * max((len(own) for own in steps), default=0)
    own = [hosts[i] for i in chosen]
    answers = ask_hosts(own, local, scripts, patience_s, ssh_args=ssh_args)
    silent, untried = [], []
    for i, answer in zip(chosen, answers, strict=True):
        results = re.findall(rf"^{mark} (\d+) (\d+)$", answer.output, re.MULTILINE)
        status = {int(number): int(status) for number, status in results}
        for number, c in enumerate(asked[i]):
            name = f"{hosts[c.a].ssh} {c.a_interface} - {hosts[c.b].ssh} {c.b_interface}"
            if status.get(number) == _NO_PING:
                untried.append(name)
            elif status.get(number) != 0:
                silent.append(name)
    return silent, untried
