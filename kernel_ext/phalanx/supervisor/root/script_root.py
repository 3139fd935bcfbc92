"""Run the root supervisor of a script and its ranks.

`ScriptRoot` runs a command once per rank and forwards output and input. A rank that fails is
started again while restarts are left. All ranks are ended when a rank fails for good, or when a
signal asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence

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
from phalanx.protocol.host import FromCommand, SignalRank

from ..world.state import WorldState
from .exit_status import FailureAttribution
from .root import Root
from .script_commands import Commands, Launcher, ScriptOptions

log = logging.getLogger(__name__)
# How long a failed rank's blame may wait for the culprit to end as well: the time that an
# interpreter needs to print a traceback and exit.
BLAME_S = 0.5


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
        self.commands = Commands(
            boot, options, self._host, launcher, self._give_up, self._on_not_restarted
        )
        self._has_begun = False
        self._ending: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None  # grace after a failure
        self._first_signal = 0  # of those that end the ranks

    async def _start(self) -> None:
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
        self.commands.start()

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
        self.commands.answered(rank)
        self._launcher.on_rank_ended(rank, reason)
        if self._may_restart(rank, status):
            self._restart(rank, reason)
        else:
            self._end_rank(rank, status, reason)

    def _may_restart(self, rank: int, status: int) -> bool:
        attribution = self._attribution
        return (
            self.commands.n_restarts < self._options.max_restarts
            and not attribution.is_ending
            and (self._options.keep_going or not attribution.has_failed)
            and attribution.has_own_cause(rank, status)
            and self._host.is_up(rank)
        )

    def _restart(self, rank: int, reason: str) -> None:
        """Start a failed rank again; it joins in the next epoch."""
        self._attribution.forgive(rank)
        count = f"{self.commands.n_restarts + 1} of {self._options.max_restarts}"
        again = f"it is started again ({count})"
        self._membership.lose(rank, reason, again, will_return=True)
        self.tell(Notice(f"rank {rank} {reason}; {again}"))
        self._world.revive(rank)
        self.commands.restart(rank)

    def _on_not_restarted(self, rank: int, text: str) -> None:
        """End a rank that could not be started again."""
        reason = f"could not be started again: {text}"
        self.tell(Notice(f"rank {rank} {reason}"))
        self._launcher.on_rank_ended(rank, reason)
        self._end_rank(rank, 1, reason)

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

    def _awaited(self) -> tuple[int, ...]:
        return self._attribution.running

    def on_command(self, message: FromCommand) -> None:
        """Handle a message about a rank's command."""
        self.commands.hear(message)

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
