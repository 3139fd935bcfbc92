"""The commands of a script's ranks on a host that is not the root's: started, fed and heard there.

It knows the pipes and what root and host say of them; how a rank ended is the host's to tell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from phalanx.errors import DistributedError
from phalanx.hosts import resolve
from phalanx.protocol.host_commands import (
    CloseInput,
    CommandFails,
    CommandInput,
    CommandOutput,
    CommandRuns,
    FromCommand,
    InputGiven,
    InputOver,
    RunCommand,
    ToCommand,
)

from ._host import HostSupervisor
from ._input_log import InputLog
from ._streams import ForwardedPipe, InputPipe

__all__ = ["HostCommands"]


class HostCommands:
    """Does with the ranks of a host what a root asks of their commands; they start in ``cwd``."""

    def __init__(self, host: HostSupervisor, say: Callable[[FromCommand], None], cwd: str) -> None:
        self._host = host
        self._cwd = Path(cwd)
        self._say = say
        self._log = InputLog(host.ranks)
        self._told = dict.fromkeys(host.ranks, 0)  # how much of its input a rank is known to have
        self._inputs: dict[int, InputPipe] = {}
        self._outputs: dict[tuple[int, str], ForwardedPipe] = {}

    def do(self, message: ToCommand) -> None:
        """Do as the root says."""
        if isinstance(message, RunCommand):
            try:
                self._run(message)
            except (OSError, ValueError, DistributedError) as error:
                self._say(CommandFails(message.rank, _words(error)))
            else:
                self._say(CommandRuns(message.rank, self._host.pid(message.rank)))
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
        if rank not in self._host.ranks or rank in self._inputs:
            msg = f"rank {rank} is not to be started here"
            raise ValueError(msg)
        env = {**os.environ, **message.env}
        command = resolve(
            message.words,
            message.python or sys.executable,
            self._cwd,
            env.get("PATH"),
            is_checked=message.is_script_checked,
        )
        stdin = InputPipe(self._log, rank, self._tell_progress)
        stdout = ForwardedPipe(lambda data: self._say(CommandOutput(rank, "stdout", data)))
        stderr = ForwardedPipe(lambda data: self._say(CommandOutput(rank, "stderr", data)))
        self._inputs[rank] = stdin
        self._outputs[rank, "stdout"], self._outputs[rank, "stderr"] = stdout, stderr
        self._host.spawn_command(
            rank, command, env=env, cwd=str(self._cwd), stdin=stdin, stdout=stdout, stderr=stderr
        )

    def _tell_progress(self) -> None:
        for rank, told in tuple(self._told.items()):
            place = self._log.place(rank)
            if place is None:
                del self._told[rank]
                self._say(InputOver(rank))
            elif place > told:
                self._told[rank] = place
                self._say(InputGiven(rank, place - told))


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'it'}: {error.strerror or error}"
    return str(error)
