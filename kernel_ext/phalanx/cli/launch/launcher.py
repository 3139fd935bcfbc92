"""Run one launch, from start to exit status.

`CommandLauncher` has what ranks of this engine (`ScriptLauncher`) and of mpirun (`MpiLauncher`)
share: the streams and signals of this process, and the end. The event loop never waits for a
terminal or pipe: threads read the input and show the output.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress

from phalanx.protocol import USER_SIGNALS
from phalanx.supervisor.root.exit_status import exit_status
from phalanx.workspace import Placement
from phalanx.workspace.options import starting

from .terminal import InputThread, Screen

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # end a launch


class CommandLauncher(ABC):
    """Runs a command on ranks, shows output and forwards input."""

    _limit_signal = signal.SIGINT  # ends ranks when the time limit is over

    def __init__(self, options: argparse.Namespace, at: Placement) -> None:
        self._options = options
        self._at = at
        self._hosts = _host_names(at)  # by rank
        self._screen = Screen(options.label, self._hosts, is_verbose=options.verbose)
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
        with starting():
            self._screen.start(self._fail)
            InputThread(self._give, self._screen.line_was_typed)
            self._start()
            self._handle_signals()
        if self._options.timeout is not None:
            self._loop.call_later(self._options.timeout, self._on_time_limit)
        await self._follow()
        await self._screen.close()
        if self._error is not None:
            raise self._error
        return 1 if self._code is None else self._code

    @abstractmethod
    def _start(self) -> None:
        """Start the ranks, or what starts them."""

    @abstractmethod
    async def _follow(self) -> None:
        """Wait until all ranks have ended; `_end` is called with their status."""

    @abstractmethod
    def _feed(self, data: bytes) -> None:
        """Give input to all ranks; b"" is its end."""

    @abstractmethod
    def _forward(self, number: signal.Signals) -> None:
        """Send a signal to the ranks; all except `USER_SIGNALS` end them."""

    @abstractmethod
    def _leave(self) -> None:
        """End at once what still runs."""

    def _end(self, status: int) -> None:
        """End the ranks that still run, and then the launch."""
        if self._code is None:
            self._code = exit_status(status, signal=self._signal, timed_out=self._timed_out)
        self._leave()

    def _fail(self, error: OSError) -> None:
        """End the launch: the output cannot be shown."""
        self._error = error
        self._screen.abandon()
        self._leave()

    @property
    def _was_ended(self) -> bool:
        """Whether a signal or the time limit has ended the ranks."""
        return bool(self._signal) or self._timed_out

    # -- input --------------------------------------------------------------------------------

    def _give(self, data: bytes) -> None:
        """Send input to the ranks; wait while no rank takes more."""
        with self._input_room:
            self._input_room.wait_for(lambda: self._input_nbytes > 0)
            self._input_nbytes -= len(data)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._feed, data)

    def on_input_taken(self, nbytes: int) -> None:
        """Let the input's thread read more."""
        with self._input_room:
            self._input_nbytes += nbytes
            self._input_room.notify()

    def on_input_cut(self, rank: int, nbytes: int) -> None:
        """Say that the input of a rank ends early."""
        self._screen.say(
            f"rank {rank} left {nbytes >> 20} MiB of input unread; its input ends here"
        )

    # -- signals ------------------------------------------------------------------------------

    def _on_time_limit(self) -> None:
        self._timed_out = True
        self._screen.say(f"the ranks did not end within {self._options.timeout:g} s and are ended")
        self._forward(self._limit_signal)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signal and number == signal.SIGINT:
            if self._is_hurried:  # a third Ctrl-C; the sweeper kills what is left
                os._exit(exit_status(1, signal=self._signal))
            self._is_hurried = True
            self._screen.abandon()
            self._end(1)
        self._signal = self._signal or number
        self._forward(number)

    def _handlers(self) -> dict[signal.Signals, Callable[[signal.Signals], object]]:
        return {
            **dict.fromkeys(_SIGNALS, self._on_signal),
            **dict.fromkeys(USER_SIGNALS, self._forward),
        }

    def _handle_signals(self) -> None:
        for number, handler in self._handlers().items():
            # Ignored by nohup or a shell's &: the ranks, which inherit that, get the default.
            is_ignored = signal.getsignal(number) is signal.SIG_IGN
            self._loop.add_signal_handler(
                number, (lambda _number: None) if is_ignored else handler, number
            )


def _host_names(at: Placement) -> list[str]:
    """Return each rank's host, by the user's name for it."""
    own = socket.gethostname()
    if not at.hosts:
        return [own] * at.ranks
    return [
        own if plan.is_local else plan.name.rpartition("@")[2]
        for plan in at.hosts
        for _ in range(plan.ranks)
    ]
