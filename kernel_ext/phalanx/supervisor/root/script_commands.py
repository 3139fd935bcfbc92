"""Run a script's commands on every host; forward input and output.

`ScriptRoot` decides what a rank's end means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from phalanx.protocol import BootOptions, BootProgress, Notice
from phalanx.protocol.host import (
    CloseInput,
    CommandInput,
    CommandOutput,
    CommandRuns,
    FromCommand,
    InputGiven,
    OutputDone,
    RunCommand,
)
from phalanx.protocol.os_text import os_bytes
from phalanx.protocol.rank import RESTART_VARIABLES

from ..processes.streams import WINDOW_COST, InputLog, cost

if TYPE_CHECKING:
    from ..hosts.host_set import HostSet
    from .script_root import FailureAttribution


@dataclass(frozen=True)
class ScriptOptions:
    """The command of a script's ranks, and what happens if one fails.

    ``command`` is for this machine. Other hosts look up ``words``, the command as the user gave it.
    ``env`` is added to the environment of every rank. ``is_script_checked``: a script named in
    ``words`` must exist. ``keep_going``: the failure of a rank does not end the other ranks.
    ``max_restarts``: failed ranks are started again, this many times in all.
    """

    command: Sequence[str]
    words: Sequence[str]
    env: Mapping[str, str]
    is_script_checked: bool = True
    keep_going: bool = False
    max_restarts: int = 0


class Launcher(Protocol):
    """Shows the output and the end of a script's ranks.

    The root calls these methods on its event loop. They must not block.
    """

    def tell(self, message: BootProgress | Notice) -> None:
        """Show how a host starts, or a line about ranks."""

    def on_started(self, pids: Sequence[int]) -> None:
        """Take the processes of all ranks; each leads a process group."""

    def on_not_started(self, message: str) -> None:
        """Take the reasons, in lines, why no rank runs."""

    def on_output(self, output: CommandOutput) -> None:
        """Show output, and call `Commands.output_shown` afterwards."""

    def on_input_taken(self, nbytes: int) -> None:
        """Allow this many more bytes of input."""

    def on_input_cut(self, rank: int, nbytes: int) -> None:
        """Take the early end of a rank's input.

        The rank is ``nbytes`` behind the rank that reads fastest.
        """

    def on_rank_ended(self, rank: int, reason: str) -> None:
        """Take the end of a rank's process, after all its output.

        The rank may be started again.
        """

    def on_all_ended(self, attribution: FailureAttribution) -> None:
        """Take the end of all ranks."""


class Commands:
    """Run a script's command once per rank.

    ``on_failed`` is called once if a command cannot be started, ``on_not_restarted`` for each rank
    that cannot be started again.
    """

    def __init__(
        self,
        boot: BootOptions,
        options: ScriptOptions,
        hosts: HostSet,
        launcher: Launcher,
        on_failed: Callable[[], None],
        on_not_restarted: Callable[[int, str], None],
    ) -> None:
        self._python = os_bytes(boot.remote.python)
        self._options = options
        self._hosts = hosts
        self._launcher = launcher
        self._on_failed = on_failed
        self._on_not_restarted = on_not_restarted
        self._said: dict[str, str] = {}  # variables for all ranks
        self._n_restarts: dict[int, int] = {}  # by rank
        self._log = InputLog(hosts.ranks)
        self._n_taken = 0
        self._shown: dict[tuple[int, str], int] = {}  # cost of shown output that no host knows yet
        self._waited = set(hosts.ranks)  # ranks not known to run yet
        self._asked: set[int] = set()  # ranks without an answer to their start yet
        self._failures: dict[int, str] = {}  # by host: why its ranks cannot be started
        self._has_reported = False  # whether the failures were reported

    def start(self) -> None:
        """Start all commands without waiting for any of them."""
        self._said = {**self._hosts.master(), **self._options.env}
        for rank in self._hosts.ranks:
            if self._failures:
                return
            self._start(rank)
        self._launcher.on_input_taken(WINDOW_COST)

    @property
    def n_restarts(self) -> int:
        """Return how often ranks were started again, all ranks together."""
        return sum(self._n_restarts.values())

    def restart(self, rank: int) -> None:
        """Start the command of a rank again, after its process has ended.

        The new process gets the input that no rank was given yet.
        """
        self._n_restarts[rank] = self._n_restarts.get(rank, 0) + 1
        self._log.rejoin(rank)
        self._start(rank)

    def _variables(self, rank: int) -> dict[str, str]:
        """Return the variables that a rank gets besides the supervisor's own."""
        counts = self._n_restarts.get(rank, 0), self._options.max_restarts
        return {**self._said, **dict(zip(RESTART_VARIABLES, map(str, counts), strict=True))}

    def _start(self, rank: int) -> None:
        options, is_far = self._options, self._hosts.is_far(rank)
        self._asked.add(rank)
        self._hosts.take(
            RunCommand(
                rank,
                tuple(map(os_bytes, options.words if is_far else options.command)),
                {os_bytes(name): os_bytes(value) for name, value in self._variables(rank).items()},
                is_script_checked=options.is_script_checked,
                python=self._python,
                is_resolved=not is_far,
            )
        )

    def _runs(self, rank: int) -> None:
        is_first = rank in self._waited  # else it was started again
        self._waited.discard(rank)
        if is_first and not self._waited and not self._failures:
            self._launcher.on_started([self._hosts.report(r).pid for r in self._hosts.ranks])
        self._answered(rank)

    def _fail(self, rank: int, text: str) -> None:
        self._hosts.statuses[rank] = 1  # no process runs
        if rank in self._n_restarts:
            self._answered(rank)
            self._on_not_restarted(rank, text)
            return
        host = self._hosts.layout.hosts[rank]
        has_far = any(map(self._hosts.is_far, self._hosts.ranks))
        name = f"{self._hosts.layout.names[host]}: " if has_far else ""
        is_first = not self._failures
        self._failures.setdefault(host, f"{name}{text}")
        if is_first:
            self._on_failed()
        self._answered(rank)

    def _answered(self, rank: int) -> None:
        """Report all failed hosts together, after every host answered or was lost."""
        self._asked.discard(rank)
        if self._failures and not self._asked and not self._has_reported:
            self._has_reported = True
            texts = [text for _, text in sorted(self._failures.items())]
            self._launcher.on_not_started("\n".join(texts))

    # -- streams ------------------------------------------------------------------------------

    def input(self, data: bytes) -> None:
        """Send input to all ranks; empty ``data`` ends the input.

        At most as many bytes as `Launcher.on_input_taken` has allowed.
        """
        self._log.append(data)
        self._hosts.take(CommandInput(data))

    def _on_input_progress(self) -> None:
        if self._log.n_taken > self._n_taken:
            self._launcher.on_input_taken(self._log.n_taken - self._n_taken)
            self._n_taken = self._log.n_taken
        for rank, nbytes in self._log.laggards():
            self._log.drop(rank)
            self._hosts.take(CloseInput(rank))
            self._launcher.on_input_cut(rank, nbytes)

    def output_shown(self, output: CommandOutput) -> None:
        """Let a rank print more: the launcher has shown this output."""
        key = output.rank, output.stream
        amount = self._shown.pop(key, 0) + cost(output.data)
        if amount < WINDOW_COST // 4:
            self._shown[key] = amount  # goes with later output: a small print needs no message
        else:
            self._hosts.take(OutputDone(*key, amount))

    def ended(self, rank: int) -> None:
        """Record that a rank has ended and takes no more input."""
        self._log.drop(rank)
        self._answered(rank)

    def hear(self, message: FromCommand) -> None:
        """Handle a host's message about a rank's command."""
        rank = message.rank
        if isinstance(message, CommandOutput):
            self._launcher.on_output(message)
        elif isinstance(message, InputGiven):
            if message.nbytes is None:
                self._log.drop(rank)
            else:
                self._log.advance(rank, message.nbytes)
            self._on_input_progress()
        elif isinstance(message, CommandRuns):
            self._runs(rank)
        else:
            self._fail(rank, message.text)
