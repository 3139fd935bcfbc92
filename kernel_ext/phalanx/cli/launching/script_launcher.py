"""Run one launch of a script, from start to exit status.

`ScriptLauncher` handles the events of `Script`, and this process's streams and signals. `RankInput`
is for `mpi_launcher`: mpirun forwards input to one rank only, and loses input or hangs on more than
a pipe holds (tried: Open MPI 5.0, MPICH 5.0).
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType

from phalanx.protocol import USER_SIGNALS, BootProgress, Notice, StacksAre, name_ranks
from phalanx.protocol.host import CommandOutput
from phalanx.protocol.scripts import AllEnded, InputCut, NotStarted, RankEnded, Started
from phalanx.workspace import Job, RootGone, RootSilent, Script, ScriptEvent, grouped

from .places import host_names
from .terminal import InputThread, Screen, exit_code

_AHEAD_NBYTES = 1 << 20  # not yet read by the fastest rank: stop reading input
_BEHIND_NBYTES = 64 << 20  # not yet read by one rank while others read: end that rank's input

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TIMED_OUT = 124  # exit status, as of timeout(1)


class RankInput:
    """Writes input to all ranks' pipes; closes them at the end.

    Parameters
    ----------
    pipes : sequence of int
        Write ends, by rank; this object owns and closes them.
    on_cut : callable
        Called with a rank that left too much unread, and the number of unread bytes.
    """

    def __init__(self, pipes: Sequence[int], on_cut: Callable[[int, int], None]) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[bytes]] = {rank: deque() for rank in range(len(pipes))}
        self._nbytes = dict.fromkeys(self._waiting, 0)
        self._on_cut = on_cut
        for rank, fd in enumerate(pipes):
            # Daemons: a rank may never read its input.
            threading.Thread(target=self._feed, args=(rank, fd), daemon=True).start()

    def give(self, data: bytes) -> None:
        """Take input, b"" at the end; wait while no rank reads."""
        with self._changed:
            while self._waiting and min(self._nbytes.values()) > _AHEAD_NBYTES:
                self._changed.wait()
            for rank, waiting in list(self._waiting.items()):
                waiting.append(data)
                self._nbytes[rank] += len(data)
                if self._nbytes[rank] > _BEHIND_NBYTES:
                    self._on_cut(rank, self._nbytes[rank])
                    self._forget(rank)
            self._changed.notify_all()

    def _forget(self, rank: int) -> None:
        waiting = self._waiting.pop(rank, None)
        self._nbytes.pop(rank, None)
        if waiting is not None:
            waiting.clear()
            waiting.append(b"")

    def _feed(self, rank: int, fd: int) -> None:
        waiting = self._waiting[rank]
        try:
            while data := self._next(waiting):
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                with self._changed:
                    if rank in self._nbytes:
                        self._nbytes[rank] -= len(data)
                    self._changed.notify_all()
        except BrokenPipeError:  # the rank has ended
            pass
        finally:
            os.close(fd)
            with self._changed:
                self._forget(rank)
                self._changed.notify_all()

    def _next(self, waiting: deque[bytes]) -> bytes:
        with self._changed:
            while not waiting:
                self._changed.wait()
            return waiting.popleft()


class _SecondInterruptError(BaseException):
    """Raised at the second Ctrl-C to leave any wait."""


class ScriptLauncher:
    """Runs a command on ranks and shows their output."""

    def __init__(self, options: argparse.Namespace, job: Job) -> None:
        self._options = options
        self._job = job
        self._hosts = list(host_names(job.at))  # by rank
        self._screen = Screen(options.label, self._hosts, is_verbose=options.verbose)
        self._reasons: dict[int, str] = {}  # by rank: how it ended
        self._line_typed = False
        self._wants_stacks = False
        self._signal = 0  # number of the first signal received
        self._timed_out = False

    def run(self) -> int:
        """Start the ranks, show their output and return the exit status."""
        try:
            with ExitStack() as stack:
                return self._run(stack)
        except _SecondInterruptError:
            return 128 + self._signal

    def _run(self, stack: ExitStack) -> int:
        self._screen.open_logs(self._options.log_dir, stack)
        script = stack.enter_context(
            Script(
                self._job,
                transport=self._options.transport,
                grace_s=self._options.grace,
                heartbeat_timeout_s=self._options.heartbeat_timeout,
                keep_going=self._options.keep_going,
                max_restarts=self._options.max_restarts,
            )
        )
        self._handle_signals(script, stack)
        reader = InputThread(script.input, lambda: self._on_line_typed(script))
        stack.callback(reader.close)
        self._screen.say_verbose(f"supervisor {script.root_pid}, {' '.join(self._job.command)}")
        return self._follow(script)

    def _follow(self, script: Script) -> int:
        """Show events until the end; return the exit status."""
        limit = self._options.timeout
        ends_at = None if limit is None else time.monotonic() + limit
        while True:
            event = script.next(self._wait_s(ends_at))
            now = time.monotonic()
            if self._line_typed:
                self._line_typed = False
                self._screen.write(self._screen.lines.line_was_typed())
            if self._wants_stacks:
                self._wants_stacks = False
                script.ask_stacks()
            if isinstance(event, CommandOutput):
                self._screen.feed(event.rank, event.stream, event.data, now)
                script.taken(event)
            elif event is not None:
                code = self._on_news(event, script)
                if code is not None:
                    return code
            self._screen.write(self._screen.lines.due(now))
            if ends_at is not None and now >= ends_at:
                ends_at = None
                self._timed_out = True
                self._screen.say(f"the ranks did not end within {limit:g} s and are ended")
                script.signal(signal.SIGINT)

    def _wait_s(self, ends_at: float | None) -> float | None:
        times = [time_ for time_ in (self._screen.lines.next_due, ends_at) if time_ is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _on_news(self, event: ScriptEvent, script: Script) -> int | None:
        """Handle an event other than output; return a final exit status."""
        if isinstance(event, Started):
            for rank, pid in enumerate(event.pids):
                self._screen.say_verbose(f"rank {rank}: process {pid}")
        elif isinstance(event, RankEnded):
            self._reasons[event.rank] = event.reason
            self._screen.finish(event.rank)
            self._screen.say_verbose(f"rank {event.rank} {event.reason}")
        elif isinstance(event, InputCut):
            behind = f"{event.nbytes >> 20} MiB"
            self._screen.say(
                f"rank {event.rank} left {behind} of input unread; its input ends here"
            )
        elif isinstance(event, Notice):
            self._screen.say(event.text)
        elif isinstance(event, StacksAre):
            texts = {rank: stack.text for rank, stack in event.stacks.items()}
            for ranks, text in grouped(texts):
                self._screen.say(f"{name_ranks(ranks)}: {text}")
        elif isinstance(event, BootProgress):
            self._on_progress(event)
        elif isinstance(event, NotStarted):
            for reason in event.message.splitlines():
                self._screen.say(f"the ranks could not be started: {reason}")
            return self._interrupted() or 1
        elif isinstance(event, AllEnded):
            return self._conclude(event)
        elif isinstance(event, RootSilent) and (code := self._interrupted()):
            self._screen.say(str(script.failure()))
            return code
        elif isinstance(event, RootGone | RootSilent):
            raise script.failure()
        return None

    def _on_progress(self, event: BootProgress) -> None:
        if event.state == "starting" and event.text:
            self._screen.say(f"{event.name}: {event.text}")
        elif event.state == "up":
            plans = self._job.at.hosts
            first = sum(plan.ranks for plan in plans[: event.host])
            if self._job.at.remote.job.nodes:  # the scheduler chose the node
                for rank in range(first, first + plans[event.host].ranks):
                    self._hosts[rank] = event.name
            self._screen.say_verbose(f"{event.name} is up after {event.seconds:.1f} s")

    def _interrupted(self) -> int:
        """Return the exit status after a signal or timeout, else 0."""
        if self._signal:
            return 128 + self._signal
        return TIMED_OUT if self._timed_out else 0

    def _conclude(self, event: AllEnded) -> int:
        if code := self._interrupted():
            return code
        if event.done_without:
            self._screen.say(f"the others have ended well without {name_ranks(event.done_without)}")
            return 0
        if event.culprit < 0:
            ended = next((status for status in event.statuses if status), 0)
            if ended:  # by a signal that this process did not send
                self._screen.say("the ranks were ended by a signal to their supervisor")
            return exit_code(ended)
        status = event.statuses[event.culprit]
        self._screen.say(f"rank {event.culprit} {self._reasons[event.culprit]}{event.beside}")
        return exit_code(status)

    def _on_line_typed(self, script: Script) -> None:
        self._line_typed = True
        script.wake()

    # -- signals ------------------------------------------------------------------------------

    def _handle_signals(self, script: Script, stack: ExitStack) -> None:
        def on_signal(number: int, _: FrameType | None) -> None:
            script.signal(signal.Signals(number))
            if self._signal and number == signal.SIGINT:
                raise _SecondInterruptError
            self._signal = self._signal or number

        def on_quit(_: int, __: FrameType | None) -> None:
            self._wants_stacks = True
            script.wake()

        def on_user_signal(number: int, _: FrameType | None) -> None:
            script.forward(signal.Signals(number))

        # Ctrl-\ shows the ranks' stacks, as Java and Go programs do.
        handlers = {**dict.fromkeys(SIGNALS, on_signal), signal.SIGQUIT: on_quit}
        handlers |= dict.fromkeys(USER_SIGNALS, on_user_signal)
        for number, handler in handlers.items():
            previous = signal.getsignal(number)
            if previous is not signal.SIG_IGN:  # ignored by nohup or a shell's &
                signal.signal(number, handler)
                stack.callback(signal.signal, number, previous)
