"""Run the root supervisor of a script and its ranks.

`ScriptRoot` runs a command once per rank and forwards output and input. A rank that fails is
started again while restarts are left. All ranks are ended when a rank fails for good, or when a
signal asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.distributed.control import culprit_rank
from phalanx.protocol import (
    USER_SIGNALS,
    BootOptions,
    BootProgress,
    EpochAborted,
    Join,
    Notice,
    RankStack,
    Recover,
    ToSupervisor,
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

from ..processes.pipes import WINDOW_COST, cost
from ..world.state import WorldState
from .exit_status import FailureAttribution
from .root import Root

log = logging.getLogger(__name__)
# How long a failed rank's blame may wait for the culprit to end as well: the time that an
# interpreter needs to print a traceback and exit.
BLAME_S = 0.5


@dataclass(frozen=True)
class ScriptOptions:
    """The command of a script's ranks, and what happens if one fails.

    ``command`` is for this machine. Other hosts look up ``words``, the command as the user gave it.
    ``env`` is added to the environment of every rank. ``is_script_checked``: a script named in
    ``words`` must exist. ``keep_going``: the failure of a rank does not end the other ranks.
    ``max_restarts``: failed ranks are started again, this many times in all.
    """

    command: Sequence[str]
    words: Sequence[str]
    env: Mapping[str, str]
    is_script_checked: bool = True
    keep_going: bool = False
    max_restarts: int = 0


class Launcher(Protocol):
    """Shows the output and the end of a script's ranks.

    The root calls these methods on its event loop. They must not block.
    """

    def tell(self, message: BootProgress | Notice) -> None:
        """Show how a host starts, or a line about ranks."""

    def on_started(self, pids: Mapping[int, int]) -> None:
        """Take the processes of all ranks; each leads a process group."""

    def on_not_started(self, message: str) -> None:
        """Take the reasons, in lines, why no rank runs."""

    def on_output(self, output: CommandOutput) -> None:
        """Show output, and call `ScriptRoot.output_shown` afterwards."""

    def on_input_taken(self, nbytes: int) -> None:
        """Allow this many more bytes of input."""

    def on_input_cut(self, rank: int, nbytes: int) -> None:
        """Take the early end of a rank's input; ``nbytes`` were unread."""

    def on_rank_ended(self, rank: int, reason: str) -> None:
        """Take the end of a rank's process, after all its output.

        The rank may be started again.
        """

    def on_all_ended(self, attribution: FailureAttribution) -> None:
        """Take the end of all ranks."""


class ScriptRoot(Root):
    """Run one launch: start the ranks, serve the launcher, end the ranks.

    The launcher ends it (`end`) once all ranks have ended or could not be started.
    """

    def __init__(self, boot: BootOptions, options: ScriptOptions, launcher: Launcher) -> None:
        world = WorldState(
            boot.world.size,
            has_cells=False,
            may_shrink=options.keep_going,
            may_replace=options.max_restarts > 0,
        )
        super().__init__(boot, world)
        self._options = options
        self._launcher = launcher
        self._is_given_up = False  # whether the ranks cannot be started
        self._attribution = FailureAttribution(boot.world.size)
        self._left: set[int] = set()  # ranks that ended with exit status 0
        self._has_begun = False
        self._unanswered: set[int] = set()  # ranks of which no host has said that they run
        self._pids: dict[int, int] = {}  # first processes, by rank
        self._failures: dict[int, str] = {}  # by host: why its ranks cannot be started
        self._restarts: Counter[int] = Counter()  # by rank
        self._n_given = self._n_taken = 0  # bytes of input: given to the hosts, taken by a rank
        self._shown: dict[tuple[int, str], int] = {}  # cost of shown output that no host knows yet
        self._ending: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None  # grace after a failure
        self._first_signal = 0  # of those that end the ranks

    def _start(self) -> None:
        self._tasks.spawn(self._begin())

    async def _stop(self) -> None:
        await self._host.stop()

    async def _begin(self) -> None:
        """Start the other hosts, then the ranks.

        No rank starts unless all hosts are up.
        """
        await self._host.boot()
        if self._is_given_up:
            return
        self._has_begun = True
        self._variables = {**self._host.master(), **self._options.env}
        self._unanswered.update(self._host.ranks)
        for rank in self._host.ranks:
            if self._failures:
                self._on_answered(rank)
            else:
                self._run_command(rank)
        if not self._failures:
            self._launcher.on_input_taken(WINDOW_COST)

    def _run_command(self, rank: int) -> None:
        options, is_far = self._options, self._host.is_far(rank)
        counts = self._restarts[rank], options.max_restarts
        env = {**self._variables, **dict(zip(RESTART_VARIABLES, map(str, counts), strict=True))}
        self._host.take(
            RunCommand(
                rank,
                tuple(map(os_bytes, options.words if is_far else options.command)),
                {os_bytes(name): os_bytes(value) for name, value in env.items()},
                is_script_checked=options.is_script_checked,
                python=os_bytes(self._boot.remote.python),
                is_resolved=not is_far,
            )
        )

    def _on_answered(self, rank: int) -> None:
        """Record that a rank runs, could not be started, or has ended.

        The launcher gets the failures of all hosts together.
        """
        if rank not in self._unanswered:
            return
        self._unanswered.discard(rank)
        if self._unanswered:
            return
        if self._failures:
            texts = [text for _, text in sorted(self._failures.items())]
            self._launcher.on_not_started("\n".join(texts))
        else:
            self._launcher.on_started(self._pids)

    def _on_command_failed(self, rank: int, text: str) -> None:
        self._host.statuses[rank] = 1  # no process runs
        if self._restarts[rank]:
            reason = f"could not be started again: {text}"
            self.tell(Notice(f"rank {rank} {reason}"))
            self._launcher.on_rank_ended(rank, reason)
            self._end_rank(rank, 1, reason)
            return
        layout = self._host.layout
        host = layout.hosts[rank]
        name = f"{layout.names[host]}: " if any(map(self._host.is_far, self._host.ranks)) else ""
        is_first = not self._failures
        self._failures.setdefault(host, f"{name}{text}")
        if is_first:
            self._give_up()
        self._on_answered(rank)

    def _give_up(self) -> None:
        """End everything; the launcher knows why the ranks cannot run."""
        self._is_given_up = True
        self._attribution.is_ending = True
        if self._has_begun:
            self._kill_rest()

    # -- the launcher -------------------------------------------------------------------------

    def on_signal(self, number: signal.Signals) -> None:
        """Forward a signal to the ranks and end them.

        A second SIGINT kills them at once. After one of `USER_SIGNALS` they go on.
        """
        if number in USER_SIGNALS:
            if self._has_begun:
                for rank in self._attribution.running:
                    self._host.take(SignalRank(rank, number))
            return
        self._attribution.is_forced = True
        if not self._has_begun:
            if not self._is_given_up:
                self._launcher.on_not_started("they were ended before all hosts were up")
                self._give_up()
        elif self._ending is None:
            self._first_signal = number
            self._end_rest((number, *([] if number == signal.SIGTERM else [signal.SIGTERM])))
        elif number == signal.SIGINT:
            self._kill_rest()

    def input(self, data: bytes) -> None:
        """Send input to all ranks; empty ``data`` ends the input.

        At most as many bytes as `Launcher.on_input_taken` has allowed.
        """
        self._n_given += len(data)
        self._host.take(CommandInput(data))

    def output_shown(self, output: CommandOutput) -> None:
        """Let a rank print more: the launcher has shown this output."""
        key = output.rank, output.stream
        amount = self._shown.pop(key, 0) + cost(output.data)
        if amount < WINDOW_COST // 4:
            self._shown[key] = amount  # goes with later output: a small print needs no message
        else:
            self._host.take(OutputDone(*key, amount))

    async def stacks(self) -> dict[int, RankStack]:
        """Return where the code of each rank is."""
        return await self._inspector.stacks(self._host.ranks if self._has_begun else ())

    def tell(self, message: BootProgress | Notice) -> None:
        """Pass a message on to the launcher."""
        self._launcher.tell(message)

    # -- the ranks ----------------------------------------------------------------------------

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Answer or record a rank's message."""
        if isinstance(message, EpochAborted):
            self._attribution.blame(rank, culprit_rank(message.kind, message.culprit, rank))
        if isinstance(message, Join | Recover):
            self._attribution.forgive(rank)
        if not self._membership.answer(rank, message):
            log.warning("rank %d sent a %s, which a script does not", rank, type(message).__name__)
        if self._world.asking:
            self._look_for_stalls()

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Record the end of a rank and free the ranks that waited.

        If the rank failed, start it again, or end the other ranks too (unless ``keep_going``).
        """
        status = self._host.statuses[rank] or 0
        self._on_answered(rank)
        self._launcher.on_rank_ended(rank, reason)
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
        self._attribution.end(rank, status)
        if status:
            self._membership.lose(rank, reason)
            if self._options.keep_going:
                self._go_on(rank, reason)
            elif self._attribution.is_open:
                self._loop.call_later(BLAME_S, self._await_rest)
            else:
                self._await_rest()
        else:
            self._membership.send_all(self._world.lose(rank, "has ended (exit status 0)"))
            self._left.add(rank)
            if len(self._left) == 1:
                self._look_for_stalls()
        self._membership.look()  # this rank may have been the only one the others waited for
        if not self._attribution.running:
            attribution = self._attribution
            attribution.leave_behind(set(self._host.ranks) - set(self._world.members))
            self._launcher.on_all_ended(attribution)

    def _go_on(self, rank: int, reason: str) -> None:
        """Report that a rank has failed and that the others go on."""
        if self._ending is None and self._attribution.running:
            self.tell(Notice(f"rank {rank} {reason}; the others go on (--keep-going)"))

    def _running(self) -> tuple[int, ...]:
        return self._attribution.running

    def _gone(self) -> set[int]:
        # A rank that has left this epoch is not waited for in it.
        return self._left.intersection(self._world.members)

    def on_command(self, message: FromCommand) -> None:
        """Handle a message about a rank's command."""
        match message:
            case CommandOutput():
                self._launcher.on_output(message)
            case InputTaken():  # of one host: a rank of another may be faster
                taken = min(message.nbytes, self._n_given) - self._n_taken
                if taken > 0:
                    self._n_taken += taken
                    self._launcher.on_input_taken(taken)
            case InputCut():
                self._launcher.on_input_cut(message.rank, message.nbytes)
            case CommandRuns():
                self._pids.setdefault(message.rank, message.pid)
                self._on_answered(message.rank)
            case CommandFails():
                self._on_command_failed(message.rank, message.text)

    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Give up: hosts could not be started."""
        if not self._is_given_up:
            self._launcher.on_not_started("\n".join(reasons))
            self._give_up()

    # -- the end ------------------------------------------------------------------------------

    def _await_rest(self) -> None:
        """Give running ranks ``grace_s`` to handle a failure, then end them.

        Ranks may save data in that time.
        """
        if self._patience is None and self._attribution.running:
            self._attribution.is_ending = True
            self._patience = self._loop.call_later(self._boot.grace_s, self._end_rest)

    def _end_rest(self, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        if self._ending is None and self._attribution.running:
            self._attribution.is_forced = self._attribution.is_ending = True
            self._ending = self._tasks.spawn(self._escalate(signals))

    async def _escalate(self, signals: Sequence[signal.Signals]) -> None:
        for number in signals:
            for rank in self._attribution.running:
                self._host.take(SignalRank(rank, number))
            await asyncio.sleep(self._boot.grace_s)
            if number == self._first_signal and self._attribution.running:
                await self._say_late()
        self._kill_rest()

    async def _say_late(self) -> None:
        """Report where the ranks are that the first signal has not ended."""
        stacks = await self._inspector.stacks(self._attribution.running)
        self.tell(Notice(say_late(stacks, self._boot.grace_s)))

    def _kill_rest(self) -> None:
        for rank in self._attribution.running:
            self._host.take(SignalRank(rank, signal.SIGKILL))
