"""Run the ranks of a script on this engine.

`ScriptRoot` runs a command once per rank, shows the ranks' output and forwards input. A rank that
fails is started again while restarts are left. All ranks are ended when a rank fails for good, or
when a signal asks for it. This process is the root supervisor of the ranks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Sequence

import msgspec

from phalanx.distributed.control import culprit_rank
from phalanx.protocol import (
    USER_SIGNALS,
    BootOptions,
    BootProgress,
    EpochAborted,
    Join,
    Notice,
    Recover,
    ToSupervisor,
    name_ranks,
    say_late,
)
from phalanx.protocol.host import (
    CommandFails,
    CommandInput,
    CommandOutput,
    CommandRuns,
    FromCommand,
    InputCut,
    InputTaken,
    OutputDone,
    RunCommand,
    SignalRank,
)
from phalanx.protocol.os_text import os_bytes
from phalanx.protocol.rank import RESTART_VARIABLES
from phalanx.supervisor.boot import prepare_process
from phalanx.supervisor.processes.pipes import WINDOW_COST, cost
from phalanx.supervisor.root.root import Root
from phalanx.supervisor.world.state import WorldState
from phalanx.workspace import grouped
from phalanx.workspace.options import checked_options

from .console import Console, Launch
from .exit_status import FailureAttribution

log = logging.getLogger(__name__)
# How long a failed rank's blame may wait for the culprit to end as well: the time that an
# interpreter needs to print a traceback and exit.
BLAME_S = 0.5


def boot_options(launch: Launch) -> BootOptions:
    """Check the options of the root."""
    options, at = launch.options, launch.at
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
    return msgspec.structs.replace(checked, cwd=launch.cwd)


def run_script(launch: Launch) -> int:
    """Run the launch; return its exit status."""
    boot = boot_options(launch)

    def start(console: Console) -> ScriptRoot:
        prepare_process(boot)
        return ScriptRoot(boot, launch, console)

    return Console(launch).run(start)


class ScriptRoot(Root):
    """Run the ranks of one launch.

    The console is ended once all ranks have ended.
    """

    limit_signal = signal.SIGINT

    def __init__(self, boot: BootOptions, launch: Launch, console: Console) -> None:
        options = launch.options
        world = WorldState(
            boot.world.size,
            has_cells=False,
            may_shrink=options.keep_going,
            may_replace=options.max_restarts > 0,
        )
        super().__init__(boot, world)
        self._launch = launch
        self._options = options
        self._console = console
        self._screen = console.screen
        self._attribution = FailureAttribution(boot.world.size)
        self._has_begun = False
        self._unanswered: set[int] = set()  # ranks of which no host has said that they run
        self._failures: dict[int, str] = {}  # by host: why its ranks cannot be started
        self._restarts: Counter[int] = Counter()  # by rank
        self._n_given = self._n_taken = 0  # bytes of input: given to the hosts, taken by a rank
        self._shown: dict[tuple[int, str], int] = {}  # cost of shown output that no host knows yet
        self._ending: asyncio.Task[None] | None = None
        # Ctrl-\ shows the ranks' stacks, as Java and Go programs do.
        console.handlers[signal.SIGQUIT] = self._on_quit
        if any(map(self._host.is_far, self._host.ranks)):
            console.handlers[signal.SIGTSTP] = lambda _number: self._screen.say(
                "it does not stop: ranks on other hosts would miss it, and end"
            )
        self._screen.say_verbose(f"supervisor {os.getpid()}, {' '.join(launch.command)}")

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host."""
        return self._host.layout.name_of(rank)

    def _start(self) -> None:
        self._tasks.spawn(self._begin())

    async def _stop(self) -> None:
        await self._host.stop()

    async def _begin(self) -> None:
        """Start the other hosts, then the ranks.

        No rank starts unless all hosts are up.
        """
        await self._host.boot()
        if self._over.is_set():
            return
        self._has_begun = True
        self._variables = {**self._host.master(), **self._launch.env}
        self._unanswered.update(self._host.ranks)
        for rank in self._host.ranks:
            if self._failures:
                self._on_answered(rank)
            else:
                self._run_command(rank)
        if not self._failures:
            self._console.let_read(WINDOW_COST)

    def _run_command(self, rank: int) -> None:
        launch, options, is_far = self._launch, self._options, self._host.is_far(rank)
        counts = self._restarts[rank], options.max_restarts
        env = {**self._variables, **dict(zip(RESTART_VARIABLES, map(str, counts), strict=True))}
        self._host.take(
            RunCommand(
                rank,
                tuple(map(os_bytes, launch.words if is_far else launch.command)),
                {os_bytes(name): os_bytes(value) for name, value in env.items()},
                is_script_checked=not options.no_verify_script,
                python=os_bytes(self._boot.remote.python),
                is_resolved=not is_far,
            )
        )

    def _on_command_failed(self, rank: int, text: str) -> None:
        self._host.statuses[rank] = 1  # no process runs
        if self._restarts[rank]:
            reason = f"could not be started again: {text}"
            self.tell(Notice(f"rank {rank} {reason}"))
            self._end_rank(rank, 1, reason)
            return
        if not self._failures:
            self._attribution.is_ending = True
            self._kill_rest()
        layout = self._host.layout
        host = layout.hosts[rank]
        name = f"{layout.names[host]}: " if any(map(self._host.is_far, self._host.ranks)) else ""
        self._failures.setdefault(host, f"{name}{text}")
        self._on_answered(rank)

    def _on_answered(self, rank: int) -> None:
        """Record that a rank runs, could not be started, or has ended.

        The failures of all hosts are shown together.
        """
        self._unanswered.discard(rank)
        if self._failures and not self._unanswered:
            self.on_not_up([text for _, text in sorted(self._failures.items())])

    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Show why no rank runs, and end."""
        if not self._over.is_set():
            for line in "\n".join(reasons).splitlines():
                self._screen.say(f"the ranks could not be started: {line}")
            self._console.end(1)

    # -- the console --------------------------------------------------------------------------

    def on_signal(self, number: signal.Signals) -> None:
        """Forward a signal to the ranks and end them.

        A second SIGINT kills them at once. After one of `USER_SIGNALS` they go on.
        """
        if number in USER_SIGNALS:
            if self._has_begun:
                self._signal_rest(number)
            return
        self._attribution.is_forced = True
        if not self._has_begun:
            self.on_not_up(["they were ended before all hosts were up"])
        elif self._ending is None:
            self._end_rest(number)
        elif number == signal.SIGINT:
            self._kill_rest()

    def input(self, data: bytes) -> None:
        """Send input to all ranks; empty ``data`` ends the input."""
        self._n_given += len(data)
        self._host.take(CommandInput(data))

    def output_shown(self, output: CommandOutput) -> None:
        """Let a rank print more: this output was shown."""
        key = output.rank, output.stream
        amount = self._shown.pop(key, 0) + cost(output.data)
        if amount < WINDOW_COST // 4:
            self._shown[key] = amount  # goes with later output: a small print needs no message
        else:
            self._host.take(OutputDone(*key, amount))

    def _on_quit(self, _number: signal.Signals) -> None:
        self._stacks = self._loop.create_task(self.say_stacks())

    async def say_stacks(self) -> None:
        """Show where the code of each rank is."""
        stacks = await self._inspector.stacks(self._host.ranks if self._has_begun else ())
        for ranks, text in grouped({rank: stack.text for rank, stack in stacks.items()}):
            self._screen.say(f"{name_ranks(ranks)}: {text}")

    def tell(self, message: BootProgress | Notice) -> None:
        """Show how a host starts, or a line about ranks."""
        if isinstance(message, Notice):
            self._screen.say(message.text)
        elif message.state == "starting" and message.text:
            self._screen.say(f"{message.name}: {message.text}")
        elif message.state == "up":
            self._screen.say_verbose(f"{message.name} is up after {message.seconds:.1f} s")

    # -- the ranks ----------------------------------------------------------------------------

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Answer or record a rank's message."""
        if isinstance(message, EpochAborted):
            self._attribution.blame(rank, culprit_rank(message.kind, message.culprit, rank))
        if isinstance(message, Join | Recover):
            self._attribution.forgive(rank)
        if not self._membership.answer(rank, message):
            log.warning("rank %d sent a %s, which a script does not", rank, type(message).__name__)

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Record the end of a rank and free the ranks that waited.

        If the rank failed, start it again, or end the other ranks too (unless ``keep_going``).
        """
        status = self._host.statuses[rank] or 0
        self._on_answered(rank)
        if self._may_restart(rank, status):
            self._restart(rank, reason)
        else:
            self._end_rank(rank, status, reason)

    def _may_restart(self, rank: int, status: int) -> bool:
        attribution = self._attribution
        return (
            self._restarts.total() < self._options.max_restarts
            and not attribution.is_ending
            and (self._options.keep_going or not attribution.has_failed)
            and attribution.has_own_cause(rank, status)
            and self._host.is_up(rank)
        )

    def _restart(self, rank: int, reason: str) -> None:
        """Start a failed rank again; it joins in the next epoch."""
        self._say_end(rank, reason)
        self._attribution.forgive(rank)
        self._restarts[rank] += 1
        count = f"{self._restarts.total()} of {self._options.max_restarts}"
        again = f"it is started again ({count})"
        self._membership.lose(rank, reason, again, will_return=True)
        self.tell(Notice(f"rank {rank} {reason}; {again}"))
        self._world.revive(rank)
        self._run_command(rank)

    def _end_rank(self, rank: int, status: int, reason: str) -> None:
        """Record the end of a rank that is not started again."""
        self._say_end(rank, reason)
        self._attribution.end(rank, status)
        if status:
            self._membership.lose(rank, reason)
            if not self._options.keep_going and self._attribution.is_open:
                self._loop.call_later(BLAME_S, self._await_rest)
            elif not self._options.keep_going:
                self._await_rest()
            elif self._ending is None and self._attribution.running:
                self.tell(Notice(f"rank {rank} {reason}; the others go on (--keep-going)"))
        else:
            self._membership.send_all(self._world.lose(rank, "has ended (exit status 0)"))
        self._membership.look()  # this rank may have been the only one the others waited for
        if not self._attribution.running:
            self._attribution.leave_behind(set(self._host.ranks) - set(self._world.members))
            self._on_all_ended()

    def _say_end(self, rank: int, reason: str) -> None:
        """Show the rest of a rank's output."""
        self._screen.finish(rank)
        self._screen.say_verbose(f"rank {rank} {reason}")

    def _on_all_ended(self) -> None:
        """Say how the script ended, and end with its status."""
        attribution = self._attribution
        if self._console.was_ended:
            pass
        elif attribution.done_without:
            names = name_ranks(attribution.done_without)
            self._screen.say(f"the others have ended well without {names}")
        elif (culprit := attribution.culprit) >= 0:
            reason = self._world.dead[culprit]
            self._screen.say(f"rank {culprit} {reason}{attribution.beside}")
        self._console.end(attribution.status)

    def _running(self) -> tuple[int, ...]:
        return self._attribution.running

    def _gone(self) -> set[int]:
        # A rank that has left this epoch is not waited for in it.
        return self._attribution.left.intersection(self._world.members)

    def on_command(self, message: FromCommand) -> None:
        """Handle a message about a rank's command."""
        match message:
            case CommandOutput(rank, stream, data):
                self._screen.feed(rank, stream, data, lambda: self.output_shown(message))
            case InputTaken():  # of one host: a rank of another may be faster
                taken = min(message.nbytes, self._n_given) - self._n_taken
                if taken > 0:
                    self._n_taken += taken
                    self._console.let_read(taken)
            case InputCut():
                self._console.say_input_cut(message.rank, message.nbytes)
            case CommandRuns():
                self._screen.say_verbose(f"rank {message.rank}: process {message.pid}")
                self._on_answered(message.rank)
            case CommandFails():
                self._on_command_failed(message.rank, message.text)

    # -- the end ------------------------------------------------------------------------------

    def _await_rest(self) -> None:
        """Give running ranks ``grace_s`` to handle a failure, then end them.

        Ranks may save data in that time.
        """
        if not self._attribution.is_ending:
            self._attribution.is_ending = True
            self._loop.call_later(self._boot.grace_s, self._end_rest)

    def _end_rest(self, number: signal.Signals | None = None) -> None:
        """End the running ranks, first by the user's signal if given."""
        if self._ending is None and self._attribution.running:
            self._attribution.is_forced = self._attribution.is_ending = True
            self._ending = self._tasks.spawn(self._escalate(number))

    async def _escalate(self, number: signal.Signals | None) -> None:
        if number is not None:
            self._signal_rest(number)
            await asyncio.sleep(self._boot.grace_s)
            if late := self._attribution.running:
                stacks = await self._inspector.stacks(late)
                self.tell(Notice(say_late(stacks, self._boot.grace_s)))
        if number != signal.SIGTERM:
            self._signal_rest(signal.SIGTERM)
            await asyncio.sleep(self._boot.grace_s)
        self._kill_rest()

    def _kill_rest(self) -> None:
        self._signal_rest(signal.SIGKILL)

    def _signal_rest(self, number: signal.Signals) -> None:
        for rank in self._attribution.running:
            self._host.take(SignalRank(rank, number))
