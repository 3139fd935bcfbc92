"""Assign addresses to cables: run each host's commands, check them, undo them.

The settings do not survive a reboot of the host. That is on purpose: a reboot also removes a wrong
setup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.errors import DistributedError

from ..probe.talk import Answer, HostProbes
from .networks import Cable
from .surveys import Survey

_TIMEOUT_S = 30.0
_PINGS_S = 6.0  # two unanswered pings of 3 s
_NO_PING = 77  # an exit status that ping never returns

_SUDO = 'sudo() { if [ "$(id -u)" = 0 ]; then "$@"; else command sudo -n "$@"; fi; }; '


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


@dataclass(frozen=True)
class CableSetup:
    """Gives cables their addresses, and takes them back.

    ``say`` gets each command before it runs.
    """

    probes: HostProbes
    surveys: Sequence[Survey]  # by host, as the hosts of ``probes``
    cables: Sequence[Cable]
    say: Callable[[str], None]

    def run(self) -> None:
        """Run all hosts' commands in parallel, then ping over each cable.

        Raises
        ------
        SetupError
            A command failed (everything was undone), or a cable does not answer.
        """
        unable = [survey.name for survey in self.surveys if not survey.has_sudo]
        if unable:
            msg = f"{', '.join(unable)}: no sudo without a password; run the commands there by hand"
            raise SetupError(msg)
        steps = setup_steps(self.surveys, self.cables)
        answers = self._run(steps, ends=True)
        if faults := self._faults(steps, answers):
            # A failed command may have had part of its effect, so it is undone as well. Without an
            # answer it is not known how many have run.
            done = [
                own[: len(answer.value or own)] for own, answer in zip(steps, answers, strict=True)
            ]
            left = self._undo(done)
            ending = (
                f"; and undoing failed: {'; '.join(left)}" if left else "; everything was undone"
            )
            raise SetupError("; ".join(faults) + ending)
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
        if left := self._undo(setup_steps(self.surveys, self.cables)):
            raise SetupError("; ".join(left))

    def _undo(self, done: Sequence[Sequence[SetupStep]]) -> list[str]:
        """Undo all possible steps on each host; return the failures."""
        backwards = [
            [SetupStep(step.undo, may_fail=step.may_fail) for step in reversed(own) if step.undo]
            for own in done
        ]
        return self._faults(backwards, self._run(backwards))

    def _run(self, steps: Sequence[Sequence[SetupStep]], *, ends: bool = False) -> list[Answer]:
        """Run each host's commands; with ``ends`` until one fails."""
        for survey, own in zip(self.surveys, steps, strict=True):
            for step in own:
                self.say(f"{survey.name}: {step.command}")
        return self._ask(
            [[(_SUDO + step.command, ends and not step.may_fail) for step in own] for own in steps],
            _TIMEOUT_S,
        )

    def _ask(self, commands: list[list[tuple[str, bool]]], timeout_s: float) -> list[Answer]:
        """Return each host's results, also of hosts without commands."""
        questions = {i: ("run", own) for i, own in enumerate(commands) if own}
        answers = self.probes.ask(questions, timeout_s)
        return [answers.get(i, Answer([])) for i in range(len(commands))]

    def _faults(self, steps: Sequence[Sequence[SetupStep]], answers: Sequence[Answer]) -> list[str]:
        """Describe each host that did not answer, and each command that failed."""
        faults = []
        for survey, own, answer in zip(self.surveys, steps, answers, strict=True):
            if answer.failure:
                faults.append(f"{survey.name}: {answer.failure}")
            for step, (status, output) in zip(own, answer.value or (), strict=False):
                if status and not step.may_fail:
                    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
                    said = lines[-1][:200] if lines else f"status {status}"
                    faults.append(f"{survey.name}: '{step.command}' failed ({said})")
        return faults

    def _ping(self) -> tuple[list[str], list[str]]:
        """Return the cables without an answer, and the cables without a ping."""
        commands: list[list[tuple[str, bool]]] = [[] for _ in self.surveys]
        names: list[list[str]] = [[] for _ in self.surveys]
        for c in self.cables:
            here, there = self.surveys[c.a], self.surveys[c.b]
            wait = "-t 3" if here.system == "Darwin" else "-W 3"
            # An interface that has just come up may lose the first ping.
            once = f"ping -c 1 {wait} {c.b_address} >/dev/null"
            tried = f"command -v ping >/dev/null || exit {_NO_PING}; {once} || {once}"
            commands[c.a].append((tried, False))
            names[c.a].append(f"{here.name} {c.a_interface} - {there.name} {c.b_interface}")
        silent: list[str] = []
        untried: list[str] = []
        answers = self._ask(commands, _TIMEOUT_S + _PINGS_S * max(map(len, commands)))
        for cables, answer in zip(names, answers, strict=True):
            statuses = [status for status, _ in answer.value or [(1, "")] * len(cables)]
            for name, status in zip(cables, statuses, strict=True):
                if status:
                    (untried if status == _NO_PING else silent).append(name)
        return silent, untried
