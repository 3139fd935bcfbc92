"""Run one launch of a script, from start to exit status.

`ScriptLauncher` runs the `ScriptRoot` of the ranks, and handles this process's streams and signals.
The event loop never waits for a terminal or pipe: threads read the input and show the output.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from phalanx.protocol import USER_SIGNALS, BootOptions, BootProgress, Notice, name_ranks
from phalanx.protocol.host import CommandOutput
from phalanx.supervisor.boot import prepare_process
from phalanx.supervisor.root.exit_status import FailureAttribution, exit_status
from phalanx.supervisor.root.script_commands import ScriptOptions
from phalanx.supervisor.root.script_root import ScriptRoot
from phalanx.workspace import grouped
from phalanx.workspace.options import checked_options, starting

from .places import Job, host_names
from .terminal import SIGNALS, InputThread, Screen, ScreenThread


class ScriptLauncher:
    """Runs a command on ranks and shows their output.

    This process is the root of the ranks. `ScriptRoot` calls the ``on_`` methods and `tell`.
    """

    def __init__(self, options: argparse.Namespace, job: Job) -> None:
        self._options = options
        self._job = job
        self._boot = _boot_options(options, job)
        self._hosts = list(host_names(job.at))  # by rank
        self._screen = Screen(options.label, self._hosts, is_verbose=options.verbose)
        self._reasons: dict[int, str] = {}  # by rank: how it ended
        self._input_room = threading.Condition()
        self._input_nbytes = 0  # may be given to the ranks now; guarded by the condition's lock
        self._signal = 0  # number of the first signal received
        self._is_hurried = False  # whether a second Ctrl-C has ended all waits
        self._timed_out = False
        self._code: int | None = None  # exit status
        self._error: OSError | None = None  # of our own output

    def run(self) -> int:
        """Start the ranks, show their output and return the exit status."""
        with ExitStack() as stack:
            self._screen.open_logs(self._options.log_dir, stack)
            return asyncio.run(self._run())

    async def _run(self) -> int:
        self._loop = asyncio.get_running_loop()
        job, limit = self._job, self._options.timeout
        options = ScriptOptions(
            job.command,
            job.words,
            job.env,
            job.is_script_checked,
            self._options.keep_going,
            self._options.max_restarts,
        )
        with starting():
            self._shown = ScreenThread(self._screen, lambda error: self._call(self._fail, error))
            prepare_process(self._boot)
            self._root = ScriptRoot(self._boot, options, self)
            self._handle_signals()
            InputThread(self._give, self._on_line_typed)
        if limit is not None:
            self._loop.call_later(limit, self._on_time_limit)
        self._say_verbose(f"supervisor {os.getpid()}, {' '.join(job.command)}")
        log = _ScreenLog(self._say)
        logging.getLogger("phalanx").addHandler(log)
        try:
            await self._root.run()
        finally:
            logging.getLogger("phalanx").removeHandler(log)
        await self._shown.finish()
        if self._error is not None:
            raise self._error
        return 1 if self._code is None else self._code

    def _call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the event loop, from another thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _end(self, status: int) -> None:
        """End the ranks that still run, and then the launch."""
        if self._code is None:
            self._code = exit_status(status, signal=self._signal, timed_out=self._timed_out)
        self._root.end()

    def _fail(self, error: OSError) -> None:
        """End the launch: the output cannot be shown."""
        self._error = error
        self._shown.abandon()
        self._root.end()

    # -- what is shown ------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._shown.call(self._screen.say, text)

    def _say_verbose(self, text: str) -> None:
        self._shown.call(self._screen.say_verbose, text)

    def on_output(self, output: CommandOutput) -> None:
        """Show output, then let the rank print more."""
        self._shown.call(self._screen.feed, output.rank, output.stream, output.data)
        self._shown.call(self._call, self._root.commands.output_shown, output)

    def on_started(self, pids: Sequence[int]) -> None:
        """Name the processes."""
        for rank, pid in enumerate(pids):
            self._say_verbose(f"rank {rank}: process {pid}")

    def on_not_started(self, message: str) -> None:
        """Show why no rank runs, and end."""
        for reason in message.splitlines():
            self._say(f"the ranks could not be started: {reason}")
        self._end(1)

    def on_rank_ended(self, rank: int, reason: str) -> None:
        """Show the rest of a rank's output."""
        self._reasons[rank] = reason
        self._shown.call(self._screen.finish, rank)
        self._say_verbose(f"rank {rank} {reason}")

    def on_all_ended(self, attribution: FailureAttribution) -> None:
        """Say how the script ended, and end with its status."""
        if self._signal or self._timed_out:
            pass  # the user knows why
        elif attribution.done_without:
            names = name_ranks(attribution.done_without)
            self._say(f"the others have ended well without {names}")
        elif (culprit := attribution.culprit) >= 0:
            self._say(f"rank {culprit} {self._reasons[culprit]}{attribution.beside}")
        self._end(attribution.status)

    def tell(self, message: BootProgress | Notice) -> None:
        """Show how a host starts, or a line about ranks."""
        if isinstance(message, Notice):
            self._say(message.text)
        elif message.state == "starting" and message.text:
            self._say(f"{message.name}: {message.text}")
        elif message.state == "up":
            plans = self._job.at.hosts
            first = sum(plan.ranks for plan in plans[: message.host])
            if self._job.at.remote.job.nodes:  # the scheduler chose the node
                for rank in range(first, first + plans[message.host].ranks):
                    self._hosts[rank] = message.name
            self._say_verbose(f"{message.name} is up after {message.seconds:.1f} s")

    async def _say_stacks(self) -> None:
        texts = {rank: stack.text for rank, stack in (await self._root.stacks()).items()}
        for ranks, text in grouped(texts):
            self._say(f"{name_ranks(ranks)}: {text}")

    # -- input --------------------------------------------------------------------------------

    def _give(self, data: bytes) -> None:
        """Send input to the ranks; wait while no rank takes more."""
        with self._input_room:
            self._input_room.wait_for(lambda: self._input_nbytes > 0)
            self._input_nbytes -= len(data)
        self._call(self._root.commands.input, data)

    def on_input_taken(self, nbytes: int) -> None:
        """Let the input's thread read more."""
        with self._input_room:
            self._input_nbytes += nbytes
            self._input_room.notify()

    def on_input_cut(self, rank: int, nbytes: int) -> None:
        """Say that the input of a rank ends early."""
        self._say(f"rank {rank} left {nbytes >> 20} MiB of input unread; its input ends here")

    def _on_line_typed(self) -> None:
        self._shown.call(self._screen.line_was_typed)

    # -- signals ------------------------------------------------------------------------------

    def _on_time_limit(self) -> None:
        self._timed_out = True
        self._say(f"the ranks did not end within {self._options.timeout:g} s and are ended")
        self._root.on_signal(signal.SIGINT)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signal and number == signal.SIGINT:
            if self._is_hurried:  # a third Ctrl-C; the sweeper kills what is left
                os._exit(exit_status(1, signal=self._signal))
            self._is_hurried = True
            self._shown.abandon()
            self._end(1)
        self._signal = self._signal or number
        self._root.on_signal(number)

    def _on_quit(self) -> None:
        self._stacks = self._loop.create_task(self._say_stacks())

    def _handle_signals(self) -> None:
        handlers: dict[signal.Signals, Any] = dict.fromkeys(SIGNALS, self._on_signal)
        handlers |= dict.fromkeys(USER_SIGNALS, self._root.on_signal)
        # Ctrl-\ shows the ranks' stacks, as Java and Go programs do.
        handlers[signal.SIGQUIT] = lambda _number: self._on_quit()
        if any(not plan.is_local for plan in self._job.at.hosts):
            handlers[signal.SIGTSTP] = lambda _number: self._say(
                "it does not stop: ranks on other hosts would miss it, and end"
            )
        for number, handler in handlers.items():
            # Ignored by nohup or a shell's &: the ranks, which inherit that, get the default.
            is_ignored = signal.getsignal(number) is signal.SIG_IGN
            self._loop.add_signal_handler(
                number, (lambda _number: None) if is_ignored else handler, number
            )


def _boot_options(options: argparse.Namespace, job: Job) -> BootOptions:
    checked = checked_options(
        job.at.ranks,
        None,
        0.0,
        options.heartbeat_timeout,
        options.transport,
        hosts=job.at.hosts,
        remote=job.at.remote,
        grace_s=options.grace,
    )
    return msgspec.structs.replace(checked, cwd=job.cwd)


class _ScreenLog(logging.Handler):
    """Shows what the supervisor logs as lines of the launcher."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))
