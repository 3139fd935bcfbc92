"""Run a script's commands on every host; forward input and output.

`ScriptRoot` decides what a rank's end means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from phalanx.protocol.host import (
    CloseInput,
    CommandInput,
    CommandOutput,
    CommandRuns,
    FromCommand,
    InputGiven,
    InputOver,
    OutputDone,
    RunCommand,
)
from phalanx.protocol.os_text import os_bytes
from phalanx.protocol.scripts import (
    RESTART_VARIABLES,
    FromScriptRoot,
    InputCut,
    InputTaken,
    NotStarted,
    ScriptOptions,
    Started,
)

from ..processes.streams import InputLog

if TYPE_CHECKING:
    from ..hosts.host_set import HostSet


class Commands:
    """Run a script's command once per rank.

    ``tell`` sends messages to the launcher. ``on_failed`` is called once if a command cannot be
    started, ``on_not_restarted`` for each rank that cannot be started again.
    """

    def __init__(
        self,
        options: ScriptOptions,
        hosts: HostSet,
        tell: Callable[[FromScriptRoot], None],
        on_failed: Callable[[], None],
        on_not_restarted: Callable[[int, str], None],
    ) -> None:
        self._options = options
        self._hosts = hosts
        self._tell = tell
        self._on_failed = on_failed
        self._on_not_restarted = on_not_restarted
        self._said: dict[str, str] = {}  # variables for all ranks
        self._n_restarts: dict[int, int] = {}  # by rank
        self._log = InputLog(hosts.ranks)
        self._n_taken = 0
        self._early: list[bytes] = []  # input that came before the start
        self._waited = set(hosts.ranks)  # ranks not known to run yet
        self._asked: set[int] = set()  # ranks without an answer to their start yet
        self._failures: dict[int, str] = {}  # by host: why its ranks cannot be started
        self._has_begun = False
        self._has_reported = False  # whether the failures were reported

    def start(self) -> None:
        """Start all commands without waiting for any of them."""
        self._said = {**self._hosts.master(), **self._options.env}
        for rank in self._hosts.ranks:
            if self._failures:
                return
            self._start(rank)
        self._has_begun = True
        for data in self._early:
            self._hosts.take(CommandInput(data))
        self._early.clear()

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
                python=os_bytes(options.boot.remote.python),
                is_resolved=not is_far,
            )
        )

    def _runs(self, rank: int) -> None:
        is_first = rank in self._waited  # else it was started again
        self._waited.discard(rank)
        if is_first and not self._waited and not self._failures:
            self._tell(Started(tuple(self._hosts.report(r).pid for r in self._hosts.ranks)))
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
            self._tell(NotStarted("\n".join(texts)))

    # -- streams ------------------------------------------------------------------------------

    def input(self, data: bytes) -> None:
        """Send input to all ranks; empty ``data`` ends the input."""
        self._log.append(data)
        if self._has_begun:
            self._hosts.take(CommandInput(data))
        else:
            self._early.append(data)

    def _on_input_progress(self) -> None:
        if self._log.n_taken > self._n_taken:
            self._tell(InputTaken(self._log.n_taken - self._n_taken))
            self._n_taken = self._log.n_taken
        for rank, nbytes in self._log.laggards():
            self._log.drop(rank)
            self._hosts.take(CloseInput(rank))
            self._tell(InputCut(rank, nbytes))

    def taken(self, message: OutputDone) -> None:
        """Return credit to a rank: the launcher has handled this output."""
        if message.rank < len(self._hosts.ranks):
            self._hosts.take(message)

    def ended(self, rank: int) -> None:
        """Record that a rank has ended and takes no more input."""
        self._log.drop(rank)
        self._answered(rank)

    def hear(self, message: FromCommand) -> None:
        """Handle a host's message about a rank's command."""
        rank = message.rank
        if isinstance(message, CommandOutput):
            self._tell(message)
        elif isinstance(message, InputGiven):
            self._log.advance(rank, message.nbytes)
            self._on_input_progress()
        elif isinstance(message, InputOver):
            self._log.drop(rank)
            self._on_input_progress()
        elif isinstance(message, CommandRuns):
            self._runs(rank)
        else:
            self._fail(rank, message.text)
