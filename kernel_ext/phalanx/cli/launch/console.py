"""Run one launch, from start to exit status.

`Console` has the streams and signals of this process. The ranks are of this engine (`ScriptRoot`)
or of mpirun (`MpiRanks`). The event loop never waits for a terminal or pipe: threads read the input
and show the output.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from phalanx.protocol import USER_SIGNALS
from phalanx.workspace import Placement
from phalanx.workspace.options import starting

from .exit_status import exit_status
from .terminal import InputThread, Screen

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # end a launch


@dataclass(frozen=True)
class Launch:
    """Hold the command of a launch, its options and its hosts.

    ``command`` is for this machine. Other hosts look up ``words``, the command as the user gave it.
    ``env`` is added to the environment of every rank.
    """

    options: argparse.Namespace
    words: Sequence[str]
    command: Sequence[str]
    env: Mapping[str, str]
    at: Placement
    cwd: str


class Ranks(Protocol):
    """The ranks of a launch; its methods do not block."""

    limit_signal: signal.Signals  # ends the ranks when the time limit is over

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host."""

    async def run(self) -> None:
        """Run the ranks; `Console.end` is called once all have ended."""

    def input(self, data: bytes) -> None:
        """Give input to all ranks; b"" is its end.

        At most as many bytes as `Console.let_read` has allowed.
        """

    def on_signal(self, number: signal.Signals) -> None:
        """Send a signal to the ranks; all except `USER_SIGNALS` end them."""

    def end(self) -> None:
        """End at once what still runs."""


class Console:
    """Shows the output of ranks, and gives them input and signals.

    The ranks may add to the ``handlers`` of signals.
    """

    def __init__(self, launch: Launch) -> None:
        self._options = launch.options
        self.screen = Screen(
            self._options.label,
            launch.at.ranks,
            self._host_of,
            is_verbose=self._options.verbose,
        )
        self.handlers: dict[signal.Signals, Callable[[signal.Signals], object]] = {}
        self._input_room = threading.Condition()
        self._input_nbytes = 0  # may be given to the ranks now; guarded by the condition's lock
        self._signal = 0  # number of the first signal received
        self._is_hurried = False  # whether a second Ctrl-C has ended all waits
        self._timed_out = False
        self._code: int | None = None  # exit status
        self._error: OSError | None = None  # of our own output

    def run(self, start: Callable[[Console], Ranks]) -> int:
        """Start the ranks, show their output and return the exit status."""
        with ExitStack() as stack:
            self.screen.open_logs(self._options.log_dir, stack)
            log = _ScreenLog(self.screen.say)
            logging.getLogger("phalanx").addHandler(log)
            stack.callback(logging.getLogger("phalanx").removeHandler, log)
            return asyncio.run(self._run(start))

    async def _run(self, start: Callable[[Console], Ranks]) -> int:
        self._loop = asyncio.get_running_loop()
        with starting():
            self.screen.start(self._fail)
            InputThread(self._give, self.screen.line_was_typed)
            self._ranks = start(self)
            self._handle_signals()
        if self._options.timeout is not None:
            self._loop.call_later(self._options.timeout, self._on_time_limit)
        await self._ranks.run()
        await self.screen.close()
        if self._error is not None:
            raise self._error
        return 1 if self._code is None else self._code

    def end(self, status: int) -> None:
        """End the ranks that still run, and then the launch."""
        if self._code is None:
            self._code = exit_status(status, signal=self._signal, timed_out=self._timed_out)
        self._ranks.end()

    def _fail(self, error: OSError) -> None:
        """End the launch: the output cannot be shown."""
        self._error = error
        self.screen.abandon()
        self._ranks.end()

    @property
    def was_ended(self) -> bool:
        """Whether a signal or the time limit has ended the ranks."""
        return bool(self._signal) or self._timed_out

    def _host_of(self, rank: int) -> str:
        return self._ranks.host_of(rank)

    # -- input --------------------------------------------------------------------------------

    def _give(self, data: bytes) -> None:
        """Send input to the ranks; wait while no rank takes more."""
        with self._input_room:
            self._input_room.wait_for(lambda: self._input_nbytes > 0)
            self._input_nbytes -= len(data)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ranks.input, data)

    def let_read(self, nbytes: int) -> None:
        """Allow this many more bytes of input."""
        with self._input_room:
            self._input_nbytes += nbytes
            self._input_room.notify()

    def say_input_cut(self, rank: int, nbytes: int) -> None:
        """Say that the input of a rank ends early; ``nbytes`` were unread."""
        self.screen.say(f"rank {rank} left {nbytes >> 20} MiB of input unread; its input ends here")

    # -- signals ------------------------------------------------------------------------------

    def _on_time_limit(self) -> None:
        self._timed_out = True
        self.screen.say(f"the ranks did not end within {self._options.timeout:g} s and are ended")
        self._ranks.on_signal(self._ranks.limit_signal)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signal and number == signal.SIGINT:
            if self._is_hurried:  # a third Ctrl-C; the sweeper kills what is left
                os._exit(exit_status(1, signal=self._signal))
            self._is_hurried = True
            self.screen.abandon()
            self.end(1)
        self._signal = self._signal or number
        self._ranks.on_signal(number)

    def _handle_signals(self) -> None:
        ours = dict.fromkeys(_SIGNALS, self._on_signal)
        theirs = dict.fromkeys(USER_SIGNALS, self._ranks.on_signal)
        for number, handler in {**ours, **theirs, **self.handlers}.items():
            # Ignored by nohup or a shell's &: the ranks, which inherit that, get the default.
            is_ignored = signal.getsignal(number) is signal.SIG_IGN
            self._loop.add_signal_handler(
                number, (lambda _number: None) if is_ignored else handler, number
            )


class _ScreenLog(logging.Handler):
    """Shows what the supervisor logs as lines of the launcher."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))
