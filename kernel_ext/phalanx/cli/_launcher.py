"""One launch from start to exit status: events in, lines and signals out.

It knows the script's events and this process's streams and signals; the ranks are the workspace's.
"""

from __future__ import annotations

import argparse
import signal
import time
from contextlib import ExitStack
from types import FrameType

from phalanx.protocol import BootProgress, Notice, StacksAre
from phalanx.protocol.scripts import AllEnded, InputCut, NotStarted, Output, RankEnded, Started
from phalanx.workspace import Job, RootGone, Script, ScriptEvent, grouped, name_ranks

from ._places import host_names
from ._screen import Screen, exit_code
from ._stdin import InputThread

__all__ = ["SIGNALS", "TIMED_OUT", "Launcher"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TIMED_OUT = 124  # as timeout(1)


class _ToldTwiceError(BaseException):
    """The user insists: leave whatever is being waited for."""


class Launcher:
    """Runs a command on ranks and shows what they say."""

    def __init__(self, options: argparse.Namespace, job: Job) -> None:
        self._options = options
        self._job = job
        self._hosts = list(host_names(job.at))  # by rank
        self._screen = Screen(options.label, self._hosts, is_verbose=options.verbose)
        self._reasons: dict[int, str] = {}  # how ranks ended
        self._line_typed = False
        self._wants_stacks = False
        self._signal = 0  # the first that we were sent
        self._timed_out = False

    def run(self) -> int:
        """Start, show, wait; the exit status."""
        try:
            with ExitStack() as stack:
                return self._run(stack)
        except _ToldTwiceError:
            return 128 + self._signal

    def _run(self, stack: ExitStack) -> int:
        self._screen.open_logs(self._options.log_dir, stack)
        script = stack.enter_context(
            Script(
                self._job,
                transport=self._options.transport,
                grace_s=self._options.grace,
                silence_s=self._options.silence,
            )
        )
        self._handle_signals(script, stack)
        reader = InputThread(script.input, lambda: self._on_line_typed(script))
        stack.callback(reader.close)
        self._screen.say_verbose(f"supervisor {script.root_pid}, {' '.join(self._job.command)}")
        return self._follow(script)

    def _follow(self, script: Script) -> int:
        """Show what happens until all is over."""
        limit = self._options.timeout
        ends_at = None if limit is None else time.monotonic() + limit
        while True:
            event = script.next(self._wait_s(ends_at))
            now = time.monotonic()
            if self._line_typed:
                self._line_typed = False
                self._screen.lines.line_was_typed()
            if self._wants_stacks:
                self._wants_stacks = False
                script.ask_stacks()
            if isinstance(event, Output):
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
                script.signal(signal.SIGTERM)

    def _wait_s(self, ends_at: float | None) -> float | None:
        times = [time_ for time_ in (self._screen.lines.next_due, ends_at) if time_ is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _on_news(self, event: ScriptEvent, script: Script) -> int | None:
        """Handle what is no output; the exit status if this is the end."""
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
        elif isinstance(event, RootGone):
            raise script.failure()
        return None

    def _on_progress(self, event: BootProgress) -> None:
        if event.state == "starting" and event.text:
            self._screen.say(f"{event.name}: {event.text}")
        elif event.state == "up":
            plans = self._job.at.hosts
            first = sum(plan.ranks for plan in plans[: event.host])
            if self._job.at.remote.job.nodes:  # it had no name before
                for rank in range(first, first + plans[event.host].ranks):
                    self._hosts[rank] = event.name
            self._screen.say_verbose(f"{event.name} is up after {event.seconds:.1f} s")

    def _interrupted(self) -> int:
        """Return the exit status of a launch that was ended; 0 if it was not."""
        if self._signal:
            return 128 + self._signal
        return TIMED_OUT if self._timed_out else 0

    def _conclude(self, event: AllEnded) -> int:
        if code := self._interrupted():
            return code
        if event.culprit < 0:
            ended = next((status for status in event.statuses if status), 0)
            if ended:  # by a signal, and not by one of ours
                self._screen.say("the ranks were ended by a signal to their supervisor")
            return exit_code(ended)
        status = event.statuses[event.culprit]
        rest = "; the others were ended" if event.is_forced else ""
        self._screen.say(f"rank {event.culprit} {self._reasons[event.culprit]}{rest}")
        return exit_code(status)

    def _on_line_typed(self, script: Script) -> None:
        self._line_typed = True
        script.wake()

    # -- signals ------------------------------------------------------------------------------

    def _handle_signals(self, script: Script, stack: ExitStack) -> None:
        def on_signal(number: int, _: FrameType | None) -> None:
            script.signal(signal.Signals(number))
            if self._signal and number == signal.SIGINT:
                raise _ToldTwiceError
            self._signal = self._signal or number

        def on_quit(_: int, __: FrameType | None) -> None:
            self._wants_stacks = True
            script.wake()

        # Ctrl-\ shows where the ranks are, as in programs of Java and Go.
        for number in (*SIGNALS, signal.SIGQUIT):
            handler = on_quit if number == signal.SIGQUIT else on_signal
            previous = signal.getsignal(number)
            if previous is not signal.SIG_IGN:  # else nohup or a shell's & wants us to stay
                signal.signal(number, handler)
                stack.callback(signal.signal, number, previous)
