"""Run one launch of a script on ranks of this engine.

This process is the root of the ranks: `ScriptLauncher` runs the `ScriptRoot`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from phalanx.protocol import BootOptions, BootProgress, Notice, name_ranks
from phalanx.protocol.host import CommandOutput
from phalanx.supervisor.boot import prepare_process
from phalanx.supervisor.root.exit_status import FailureAttribution
from phalanx.supervisor.root.script_root import ScriptOptions, ScriptRoot
from phalanx.workspace import Placement, grouped
from phalanx.workspace.options import checked_options

from .launcher import CommandLauncher


class ScriptLauncher(CommandLauncher):
    """Runs a command on ranks and shows their output.

    `ScriptRoot` calls the ``on_`` methods and `tell`.
    """

    def __init__(
        self, options: argparse.Namespace, script: ScriptOptions, at: Placement, cwd: str
    ) -> None:
        super().__init__(options, at)
        self._script = script
        self._boot = _boot_options(options, at, cwd)
        self._reasons: dict[int, str] = {}  # by rank: how it ended

    def _start(self) -> None:
        prepare_process(self._boot)
        self._root = ScriptRoot(self._boot, self._script, self)
        self._screen.say_verbose(f"supervisor {os.getpid()}, {' '.join(self._script.command)}")

    async def _follow(self) -> None:
        log = _ScreenLog(self._screen.say)
        logging.getLogger("phalanx").addHandler(log)
        try:
            await self._root.run()
        finally:
            logging.getLogger("phalanx").removeHandler(log)

    def _feed(self, data: bytes) -> None:
        self._root.input(data)

    def _forward(self, number: signal.Signals) -> None:
        self._root.on_signal(number)

    def _leave(self) -> None:
        self._root.end()

    def _handlers(self) -> dict[signal.Signals, Callable[[signal.Signals], object]]:
        handlers = super()._handlers()
        # Ctrl-\ shows the ranks' stacks, as Java and Go programs do.
        handlers[signal.SIGQUIT] = self._on_quit
        if any(not plan.is_local for plan in self._at.hosts):
            handlers[signal.SIGTSTP] = lambda _number: self._screen.say(
                "it does not stop: ranks on other hosts would miss it, and end"
            )
        return handlers

    def _on_quit(self, _number: signal.Signals) -> None:
        self._stacks = self._loop.create_task(self._say_stacks())

    async def _say_stacks(self) -> None:
        texts = {rank: stack.text for rank, stack in (await self._root.stacks()).items()}
        for ranks, text in grouped(texts):
            self._screen.say(f"{name_ranks(ranks)}: {text}")

    # -- what the root calls --------------------------------------------------------------------

    def on_output(self, output: CommandOutput) -> None:
        """Show output, then let the rank print more."""
        shown = partial(self._root.output_shown, output)
        self._screen.feed(output.rank, output.stream, output.data, shown)

    def on_started(self, pids: Mapping[int, int]) -> None:
        """Name the processes."""
        for rank, pid in sorted(pids.items()):
            self._screen.say_verbose(f"rank {rank}: process {pid}")

    def on_not_started(self, message: str) -> None:
        """Show why no rank runs, and end."""
        for reason in message.splitlines():
            self._screen.say(f"the ranks could not be started: {reason}")
        self._end(1)

    def on_rank_ended(self, rank: int, reason: str) -> None:
        """Show the rest of a rank's output."""
        self._reasons[rank] = reason
        self._screen.finish(rank)
        self._screen.say_verbose(f"rank {rank} {reason}")

    def on_all_ended(self, attribution: FailureAttribution) -> None:
        """Say how the script ended, and end with its status."""
        if self._was_ended:
            pass
        elif attribution.done_without:
            names = name_ranks(attribution.done_without)
            self._screen.say(f"the others have ended well without {names}")
        elif (culprit := attribution.culprit) >= 0:
            self._screen.say(f"rank {culprit} {self._reasons[culprit]}{attribution.beside}")
        self._end(attribution.status)

    def tell(self, message: BootProgress | Notice) -> None:
        """Show how a host starts, or a line about ranks."""
        if isinstance(message, Notice):
            self._screen.say(message.text)
        elif message.state == "starting" and message.text:
            self._screen.say(f"{message.name}: {message.text}")
        elif message.state == "up":
            plans = self._at.hosts
            first = sum(plan.ranks for plan in plans[: message.host])
            if self._at.remote.job.nodes:  # the scheduler chose the node
                for rank in range(first, first + plans[message.host].ranks):
                    self._hosts[rank] = message.name
            self._screen.say_verbose(f"{message.name} is up after {message.seconds:.1f} s")


def _boot_options(options: argparse.Namespace, at: Placement, cwd: str) -> BootOptions:
    checked = checked_options(
        at.ranks,
        None,
        0.0,
        options.heartbeat_timeout,
        options.transport,
        hosts=at.hosts,
        remote=at.remote,
        grace_s=options.grace,
    )
    return msgspec.structs.replace(checked, cwd=cwd)


class _ScreenLog(logging.Handler):
    """Shows what the supervisor logs as lines of the launcher."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))
