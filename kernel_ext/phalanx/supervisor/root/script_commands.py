"""Run a script's commands on every host; forward input and output.

Local ranks are served through pipes, remote ranks through messages to their hosts. `ScriptRoot`
decides what a rank's end means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from phalanx.distributed import RESTART_VARIABLES
from phalanx.errors import say_refusal
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
    FromScriptRoot,
    InputCut,
    InputTaken,
    NotStarted,
    Output,
    OutputTaken,
    ScriptOptions,
    Started,
)

from ..processes.streams import ForwardedPipe, InputLog, InputPipe

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
        self._inputs: dict[int, InputPipe] = {}  # of ranks of this host
        self._outputs: dict[tuple[int, str], ForwardedPipe] = {}
        self._sent = dict.fromkeys(hosts.remote, 0)  # bytes of input sent to each remote host
        self._ended: set[int] = set()  # hosts that have the end of input
        self._waited = set(hosts.ranks)  # ranks not known to run yet
        self._asked: set[int] = set()  # remote ranks without an answer to their start yet
        self._failures: dict[int, str] = {}  # by host: why its ranks cannot be started
        self._has_begun = False
        self._has_reported = False  # whether the failures were reported
        hosts.take_commands(self._take)

    def start(self) -> None:
        """Start all commands without waiting for any of them."""
        layout = self._hosts.layout
        self._said = {**self._hosts.master(), **self._options.env}
        for rank in self._hosts.ranks:
            if self._failures:
                return
            if layout.hosts[rank] in self._hosts.remote:
                self._start_far(rank)
            else:
                self._start_here(rank)
        self._has_begun = True
        self._feed_far()

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
        if self._hosts.layout.hosts[rank] in self._hosts.remote:
            self._start_far(rank)
        else:
            self._start_here(rank)

    def _variables(self, rank: int) -> dict[str, str]:
        """Return the variables that a rank gets besides the supervisor's own."""
        counts = self._n_restarts.get(rank, 0), self._options.max_restarts
        return {**self._said, **dict(zip(RESTART_VARIABLES, map(str, counts), strict=True))}

    def _start_here(self, rank: int) -> None:
        options = self._options
        stdin = InputPipe(self._log, rank, self._on_input_progress)
        stdout = ForwardedPipe(lambda data: self._tell(Output(rank, "stdout", data)))
        stderr = ForwardedPipe(lambda data: self._tell(Output(rank, "stderr", data)))
        try:
            self._hosts.spawn_command(
                rank, options.command, env=self._variables(rank), cwd=options.boot.cwd,
                stdin=stdin, stdout=stdout, stderr=stderr,
            )  # fmt: skip
        except OSError as error:
            self._fail(rank, say_refusal(error))
            return
        self._inputs[rank] = stdin
        self._outputs[rank, "stdout"], self._outputs[rank, "stderr"] = stdout, stderr
        stdin.feed()
        self._runs(rank)

    def _start_far(self, rank: int) -> None:
        options = self._options
        self._asked.add(rank)
        self._hosts.run_command(
            RunCommand(
                rank,
                tuple(map(os_bytes, options.words)),
                {os_bytes(name): os_bytes(value) for name, value in self._variables(rank).items()},
                is_script_checked=options.is_script_checked,
                python=os_bytes(options.boot.remote.python),
            )
        )

    def _runs(self, rank: int) -> None:
        is_first = rank in self._waited  # else it was started again
        self._waited.discard(rank)
        if is_first and not self._waited and not self._failures:
            self._tell(Started(tuple(self._hosts.pid(r) for r in self._hosts.ranks)))
        self._answered(rank)

    def _fail(self, rank: int, text: str) -> None:
        if rank in self._n_restarts:
            self._answered(rank)
            self._on_not_restarted(rank, text)
            return
        host = self._hosts.layout.hosts[rank]
        name = f"{self._hosts.layout.names[host]}: " if self._sent else ""
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
        for pipe in self._inputs.values():
            pipe.feed()
        self._feed_far()

    def _feed_far(self) -> None:
        for host in self._sent if self._has_begun else ():
            while (piece := self._log.after(self._sent[host])) is not None:
                self._hosts.command(host, CommandInput(bytes(piece)))
                self._sent[host] += len(piece)
            if self._log.is_ended and host not in self._ended:
                self._ended.add(host)
                self._hosts.command(host, CommandInput(b""))

    def _on_input_progress(self) -> None:
        if self._log.n_taken > self._n_taken:
            self._tell(InputTaken(self._log.n_taken - self._n_taken))
            self._n_taken = self._log.n_taken
        for rank, nbytes in self._log.laggards():
            if rank in self._inputs:
                self._inputs[rank].close()
            else:
                self._log.drop(rank)
                self._hosts.command(self._hosts.layout.hosts[rank], CloseInput(rank))
            self._tell(InputCut(rank, nbytes))

    def taken(self, message: OutputTaken) -> None:
        """Return credit to a rank: the launcher has handled this output."""
        key = message.rank, message.stream
        if key in self._outputs:
            self._outputs[key].taken(message.cost)
        elif 0 <= message.rank < len(self._hosts.ranks):
            host = self._hosts.layout.hosts[message.rank]
            if host in self._sent:
                self._hosts.command(host, OutputDone(*key, message.cost))

    def ended(self, rank: int) -> None:
        """Record that a rank has ended and takes no more input."""
        self._log.drop(rank)
        self._answered(rank)

    # -- other hosts --------------------------------------------------------------------------

    def _take(self, message: FromCommand) -> None:
        rank = message.rank
        if isinstance(message, CommandOutput):
            self._tell(Output(rank, message.stream, message.data))
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
