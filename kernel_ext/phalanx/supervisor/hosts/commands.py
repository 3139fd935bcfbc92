"""Run the commands of a script's ranks on their host."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import DistributedError, say_refusal
from phalanx.hosts import resolve
from phalanx.protocol.host import (
    CloseInput,
    CommandFails,
    CommandInput,
    CommandOutput,
    CommandRuns,
    FromCommand,
    InputGiven,
    RunCommand,
    ToCommand,
)

from ..processes.streams import ForwardedPipe, InputLog, InputPipe

if TYPE_CHECKING:
    from .local_host import LocalHost


class HostCommands:
    """Run the ranks' commands that the root requests; they start in ``cwd``."""

    def __init__(self, host: LocalHost, say: Callable[[FromCommand], None], cwd: str) -> None:
        self._host = host
        self._cwd = Path(cwd)
        self._say = say
        self._log = InputLog(host.ranks)
        # by rank: number of input bytes reported to the root
        self._reported = dict.fromkeys(host.ranks, 0)
        self._inputs: dict[int, InputPipe] = {}
        self._outputs: dict[tuple[int, str], ForwardedPipe] = {}

    def take(self, message: ToCommand) -> None:
        if isinstance(message, RunCommand):
            try:
                self._run(message)
            except (OSError, ValueError, DistributedError) as error:
                text = say_refusal(error) if isinstance(error, OSError) else str(error)
                self._say(CommandFails(message.rank, text))
            else:
                self._say(CommandRuns(message.rank, self._host.report(message.rank).pid))
                self._inputs[message.rank].feed()
        elif isinstance(message, CommandInput):
            self._log.append(message.data)
            for pipe in self._inputs.values():
                pipe.feed()
        elif isinstance(message, CloseInput):
            if message.rank in self._inputs:
                self._inputs[message.rank].close()
        elif (message.rank, message.stream) in self._outputs:
            self._outputs[message.rank, message.stream].taken(message.cost)

    def _run(self, message: RunCommand) -> None:
        rank = message.rank
        is_again = rank in self._inputs
        if rank not in self._host.ranks or (is_again and not self._host.report(rank).has_ended):
            msg = f"rank {rank} is not to be started here"
            raise ValueError(msg)
        added = {os.fsdecode(name): os.fsdecode(value) for name, value in message.env.items()}
        command = [os.fsdecode(word) for word in message.words]
        if not message.is_resolved:
            command = resolve(
                command,
                os.fsdecode(message.python) or sys.executable,
                self._cwd,
                added.get("PATH", os.environ.get("PATH")),
                is_checked=message.is_script_checked,
            )
        if is_again:
            self._reported[rank] = self._log.rejoin(rank)
        stdin = InputPipe(self._log, rank, self._tell_progress)
        stdout = ForwardedPipe(lambda data: self._say(CommandOutput(rank, "stdout", data)))
        stderr = ForwardedPipe(lambda data: self._say(CommandOutput(rank, "stderr", data)))
        self._inputs[rank] = stdin
        self._outputs[rank, "stdout"], self._outputs[rank, "stderr"] = stdout, stderr
        self._host.spawn_command(
            rank, command, env=added, stdin=stdin, stdout=stdout, stderr=stderr
        )

    def _tell_progress(self) -> None:
        for rank, reported in tuple(self._reported.items()):
            place = self._log.place(rank)
            if place is None:
                del self._reported[rank]
                self._say(InputGiven(rank, None))
            elif place > reported:
                self._reported[rank] = place
                self._say(InputGiven(rank, place - reported))
