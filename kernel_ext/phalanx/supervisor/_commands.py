"""The commands of a script's ranks, wherever these run: started, fed, heard and named.

It knows the streams of ranks here and the messages to hosts elsewhere; what a rank's end means is
`ScriptRoot`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from phalanx.protocol.host_commands import (
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

from ._hosts import Hosts
from ._input_log import InputLog
from ._streams import ForwardedPipe, InputPipe

__all__ = ["Commands"]


class Commands:
    """Runs a script's command once per rank.

    ``tell`` gets what the launcher is to know; ``on_failed`` is called once if one of them cannot
    be started.
    """

    def __init__(
        self,
        options: ScriptOptions,
        hosts: Hosts,
        tell: Callable[[FromScriptRoot], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._options = options
        self._hosts = hosts
        self._tell = tell
        self._on_failed = on_failed
        self._log = InputLog(hosts.ranks)
        self._n_taken = 0
        self._inputs: dict[int, InputPipe] = {}  # of ranks of this machine
        self._outputs: dict[tuple[int, str], ForwardedPipe] = {}
        self._sent = dict.fromkeys(hosts.remote, 0)  # how much input a host has been sent
        self._ended: set[int] = set()  # hosts that know that input is over
        self._waited = set(hosts.ranks)  # ranks that are not known to run
        self._asked: set[int] = set()  # those of other hosts of which we wait to hear
        self._failures: dict[int, str] = {}  # by host: why its ranks cannot be started
        self._has_begun = False
        self._has_told = False  # of those failures
        hosts.take_commands(self._take)

    def start(self) -> None:
        """Start them all; none of them waits for another."""
        layout = self._hosts.layout
        for rank in self._hosts.ranks:
            if self._failures:
                return
            said = {
                "PHALANX_RANK": str(rank),
                "PHALANX_SIZE": str(len(self._hosts.ranks)),
                "PHALANX_LOCAL_RANK": str(layout.slots[rank]),
                "PHALANX_LOCAL_SIZE": str(len(layout.ranks_of(layout.hosts[rank]))),
            }
            if layout.hosts[rank] in self._hosts.remote:
                self._start_far(rank, said)
            else:
                self._start_here(rank, said)
        self._has_begun = True
        self._feed_far()

    def _start_here(self, rank: int, said: dict[str, str]) -> None:
        options = self._options
        env = {**os.environ, **options.env, **said}
        stdin = InputPipe(self._log, rank, self._on_input_progress)
        stdout = ForwardedPipe(lambda data: self._tell(Output(rank, "stdout", data)))
        stderr = ForwardedPipe(lambda data: self._tell(Output(rank, "stderr", data)))
        try:
            self._hosts.spawn_command(
                rank, options.command, env=env, cwd=options.boot.cwd,
                stdin=stdin, stdout=stdout, stderr=stderr,
            )  # fmt: skip
        except OSError as error:
            self._fail(rank, f"{options.command[0]}: {error.strerror or error}")
            return
        self._inputs[rank] = stdin
        self._outputs[rank, "stdout"], self._outputs[rank, "stderr"] = stdout, stderr
        stdin.feed()
        self._runs(rank)

    def _start_far(self, rank: int, said: dict[str, str]) -> None:
        options = self._options
        self._asked.add(rank)
        self._hosts.run_command(
            RunCommand(
                rank,
                options.words,
                {**options.env, **said},
                is_script_checked=options.is_script_checked,
                python=options.boot.remote.python,
            )
        )

    def _runs(self, rank: int) -> None:
        self._waited.discard(rank)
        if not self._waited and not self._failures:
            self._tell(Started(tuple(self._hosts.pid(r) for r in self._hosts.ranks)))
        self._answered(rank)

    def _fail(self, rank: int, text: str) -> None:
        host = self._hosts.layout.hosts[rank]
        name = f"{self._hosts.layout.names[host]}: " if self._sent else ""
        is_first = not self._failures
        self._failures.setdefault(host, f"{name}{text}")
        if is_first:
            self._on_failed()
        self._answered(rank)

    def _answered(self, rank: int) -> None:
        """Tell of all hosts that fail, not only of the first: when each has spoken, or is lost."""
        self._asked.discard(rank)
        if self._failures and not self._asked and not self._has_told:
            self._has_told = True
            texts = [text for _, text in sorted(self._failures.items())]
            self._tell(NotStarted("\n".join(texts)))

    # -- streams ------------------------------------------------------------------------------

    def input(self, data: bytes) -> None:
        """Give input to all ranks; no bytes are its end."""
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
        """Let a rank print more: the launcher is done with this."""
        key = message.rank, message.stream
        if key in self._outputs:
            self._outputs[key].taken(message.cost)
        elif 0 <= message.rank < len(self._hosts.ranks):
            host = self._hosts.layout.hosts[message.rank]
            if host in self._sent:
                self._hosts.command(host, OutputDone(*key, message.cost))

    def ended(self, rank: int) -> None:
        """Know that a rank is over: it takes no more input."""
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
