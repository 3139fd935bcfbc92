"""Assign addresses to cables by one script per host; undo them.

The settings do not survive a reboot of the host. That is on purpose: a reboot also removes a wrong
setup.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.errors import DistributedError

from ..probe.talk import HostProbes
from .networks import Network
from .surveys import Survey

_TIMEOUT_S = 30.0
_PINGS_S = 6.0  # two unanswered pings of 3 s
_FUNCTIONS = """\
sudo() { if [ "$(id -u)" = 0 ]; then "$@"; else command sudo -n "$@"; fi; }
fail() { echo; echo "$1"; exit 1; }\
"""
_NO_PING = 77  # an exit status that ping never returns
_MAY_FAIL = " || true"  # there may be nothing to prepare, or to take back


class SetupError(DistributedError):
    """A command failed on a host, or a cable does not answer.

    The text says whether everything was undone, or what is left.
    """


class SetupScript(NamedTuple):
    """Shell commands that set up a host's cables, and undo that."""

    commands: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()


def setup_scripts(surveys: Sequence[Survey], cables: Sequence[Network]) -> list[SetupScript]:
    r"""Return the script of each host, in order.

    Examples
    --------
    >>> here, there = Survey("a", "Linux"), Survey("b", "Linux")
    >>> ends = {0: ("thunderbolt0", "192.168.0.1"), 1: ("thunderbolt0", "192.168.0.2")}
    >>> cable = Network("192.168.0.0/30", ends)
    >>> print("\n".join(setup_scripts([here, there], [cable])[0].commands))
    sudo ip link set dev thunderbolt0 up
    sudo ip addr replace 192.168.0.1/30 dev thunderbolt0
    """
    scripts = []
    for i, survey in enumerate(surveys):
        ends = [
            (*cable.members[i], cable.members[j][1])
            for j in range(len(surveys))
            for cable in cables
            if i != j and {i, j} == cable.members.keys()
        ]
        make = _macos_script if survey.system == "Darwin" else _linux_script
        scripts.append(make(ends) if ends else SetupScript())
    return scripts


def _macos_script(ends: Sequence[tuple[str, str, str]]) -> SetupScript:
    # The bridge contains all Thunderbolt interfaces; while it is up their own addresses fail.
    commands = [f"sudo ifconfig bridge0 down{_MAY_FAIL}"]
    undo = [f"sudo ifconfig bridge0 up{_MAY_FAIL}"]
    seen = set()
    for interface, address, peer in ends:
        # A second cable through a hub uses the same interface.
        also = " alias" if interface in seen else ""
        seen.add(interface)
        route = f"{peer} -interface {interface}"
        commands += [
            f"sudo ifconfig {interface} inet {address} netmask 255.255.255.252{also}",
            f"sudo route change {route} || sudo route add {route}",
        ]
        undo += [
            f"sudo ifconfig {interface} inet {address} delete{_MAY_FAIL}",
            f"sudo route delete {peer}{_MAY_FAIL}",
        ]
    return SetupScript(tuple(commands), tuple(reversed(undo)))


def _linux_script(ends: Sequence[tuple[str, str, str]]) -> SetupScript:
    commands, undo = [], []
    for interface, address, _ in ends:
        commands += [
            f"sudo ip link set dev {interface} up",
            f"sudo ip addr replace {address}/30 dev {interface}",
        ]
        undo.append(f"sudo ip addr flush dev {interface} to {address}/30")
    return SetupScript(tuple(commands), tuple(reversed(undo)))


@dataclass(frozen=True)
class CableSetup:
    """Gives cables their addresses, and takes them back.

    ``say`` gets each command before it runs.
    """

    probes: HostProbes
    surveys: Sequence[Survey]  # by host, as the hosts of ``probes``
    cables: Sequence[Network]
    say: Callable[[str], None]

    def run(self) -> None:
        """Run all hosts' scripts in parallel, then ping over each cable.

        Raises
        ------
        SetupError
            A command failed (everything was undone), or a cable does not answer.
        """
        scripts = setup_scripts(self.surveys, self.cables)
        if faults := self._run([script.commands for script in scripts]):
            left = self._run([script.undo for script in scripts])
            ending = f"undoing failed: {'; '.join(left)}" if left else "everything was undone"
            raise SetupError("; ".join([*faults, ending]))
        silent, untried = self._ping()
        if silent:
            msg = (
                f"no answer over {', '.join(silent)}: is a firewall on? (the addresses are set; "
                "--undo-setup takes them back)"
            )
            raise SetupError(msg)
        if untried:
            self.say(f"not tried, as there is no ping: {', '.join(untried)}")
        n = len(self.cables)
        self.say(f"{n - len(untried)} of {n} cables have been tried and answer")

    def undo(self) -> None:
        """Undo `run` for the same cables; raise `SetupError` for what remains."""
        scripts = setup_scripts(self.surveys, self.cables)
        if left := self._run([script.undo for script in scripts]):
            raise SetupError("; ".join(left))

    def _run(self, scripts: Sequence[Sequence[str]]) -> list[str]:
        """Run each host's commands until one fails; describe the failures."""
        hosts = zip(self.surveys, scripts, strict=True)
        if unable := [survey.name for survey, own in hosts if own and not survey.has_sudo]:
            msg = f"{', '.join(unable)}: no sudo without a password; run the commands there by hand"
            raise SetupError(msg)
        questions = {}
        for i, commands in enumerate(scripts):
            for command in commands:
                self.say(f"{self.surveys[i].name}: {command}")
            if commands:
                lines = [f"{command} || fail {shlex.quote(command)}" for command in commands]
                questions[i] = "run", "\n".join([_FUNCTIONS, *lines])
        faults = []
        for i, answer in self.probes.ask(questions, _TIMEOUT_S).items():
            status, output = answer.value or (0, "")
            if answer.failure or status:
                why = answer.failure or _failure(output)
                faults.append(f"{self.surveys[i].name}: {why}")
        return faults

    def _ping(self) -> tuple[list[str], list[str]]:
        """Return the cables without an answer, and the cables without a ping."""
        tries: dict[int, list[str]] = defaultdict(list)
        for number, cable in enumerate(self.cables):
            here, there = cable.members
            wait = "-t 3" if self.surveys[here].system == "Darwin" else "-W 3"
            once = f"ping -c 1 {wait} {cable.members[there][1]} >/dev/null 2>&1"
            # An interface that has just come up may lose the first ping.
            tries[here].append(f"{once} || {once} || echo {number}")
        head = f"command -v ping >/dev/null || exit {_NO_PING}"
        answers = self.probes.ask(
            {i: ("run", "\n".join([head, *own])) for i, own in tries.items()},
            _TIMEOUT_S + _PINGS_S * max(map(len, tries.values())),
        )
        silent: list[str] = []
        untried: list[str] = []
        for number, cable in enumerate(self.cables):
            status, output = answers[next(iter(cable.members))].value or (1, "")
            if status or str(number) in output.split():
                found = untried if status == _NO_PING else silent
                found.append(cable.ends([survey.name for survey in self.surveys]))
        return silent, untried


def _failure(output: str) -> str:
    """Return the command that failed, and the last line before it."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()] or ["sh"]
    said = lines[-2][:200] if len(lines) > 1 else "no error message"
    return f"'{lines[-1]}' failed ({said})"
