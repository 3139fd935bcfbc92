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
    CommandFails,
    CommandInput,
    CommandOutput,
    CommandRuns,
    FromCommand,
    InputCut,
    InputTaken,
    RunCommand,
    ToCommand,
)

from ..processes.pipes import ChildOutput, SharedInput

if TYPE_CHECKING:
    from .local_host import LocalHost


class HostCommands:
    """Run the ranks' commands that the root requests; they start in ``cwd``."""

    def __init__(self, host: LocalHost, say: Callable[[FromCommand], None], cwd: str) -> None:
        self._host = host
        self._cwd = Path(cwd)
        self._say = say
        self._input = SharedInput(
            lambda nbytes: say(InputTaken(nbytes)), lambda *its: say(InputCut(*its))
        )
        self._outputs: dict[tuple[int, str], ChildOutput] = {}

    def take(self, message: ToCommand) -> None:
        if isinstance(message, RunCommand):
            try:
                self._run(message)
            except (OSError, ValueError, DistributedError) as error:
                text = say_refusal(error) if isinstance(error, OSError) else str(error)
                self._say(CommandFails(message.rank, text))
            else:
                self._say(CommandRuns(message.rank, self._host.report(message.rank).pid))
        elif isinstance(message, CommandInput):
            self._input.write(message.data)
        elif (message.rank, message.stream) in self._outputs:
            self._outputs[message.rank, message.stream].taken(message.cost)

    def _run(self, message: RunCommand) -> None:
        rank = message.rank
        if rank not in self._host.ranks or self._host.report(rank).is_running:
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
        stdin = self._input.open(rank)
        stdout = ChildOutput(lambda data: self._say(CommandOutput(rank, "stdout", data)))
        stderr = ChildOutput(lambda data: self._say(CommandOutput(rank, "stderr", data)))
        self._outputs[rank, "stdout"], self._outputs[rank, "stderr"] = stdout, stderr
        self._host.spawn_command(
            rank, command, env=added, stdin=stdin, stdout=stdout, stderr=stderr
        )
