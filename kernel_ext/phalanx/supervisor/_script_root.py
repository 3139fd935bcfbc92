"""The root role for a script: parent of plain processes that are ranks, for one launcher.

It runs a command once per rank, hands output up and input down, and ends all ranks when one
fails, when a signal says so, or when the launcher is gone. It knows no cells and no controller.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import zmq.asyncio

from phalanx.distributed import accused
from phalanx.protocol import (
    BootProgress,
    EpochAborted,
    FromRoot,
    GetStacks,
    Hello,
    Notice,
    Recover,
    RootAddress,
    StacksAre,
    ToSupervisor,
    say_late,
)
from phalanx.protocol.scripts import (
    AllEnded,
    FromScriptRoot,
    Input,
    NotStarted,
    Output,
    OutputTaken,
    RankEnded,
    ScriptOptions,
    ToScriptRoot,
    cost,
)

from ._cell_watch import LOOK_EVERY_S
from ._commands import Commands
from ._hopeless import HopelessSearch
from ._hosts import Hosts
from ._log_keeper import LogKeeper, script_record
from ._lookout import Lookout
from ._membership import Membership
from ._next_message import next_message
from ._system import open_pidfd
from ._verdict import Verdict
from ._world import World

__all__ = ["ScriptRoot"]

log = logging.getLogger(__name__)

# How long a failed rank's accusation may wait for the accused to end as well: the time in which
# an interpreter with a traceback to print is gone.
BLAME_S = 0.5


class ScriptRoot:
    """One launch: made with its options and its bound socket, run until it is over."""

    def __init__(
        self, options: ScriptOptions, client: zmq.asyncio.Socket, address: RootAddress
    ) -> None:
        boot = options.boot
        self._options = options
        self._client = client
        self._client_id = b""
        self._unsent: list[FromScriptRoot] = []
        self._decoder = msgspec.msgpack.Decoder(ToScriptRoot)
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._world = World(boot.ranks)
        self._host = Hosts(boot, self)
        self._membership = Membership(boot, self._world, self._host)
        self._verdict = Verdict(boot.ranks)
        self._left: set[int] = set()  # ranks that have ended well
        self._commands = Commands(options, self._host, self._tell, self._give_up)
        self._has_begun = False
        self._is_given_up = False
        self._ending: asyncio.Task[None] | None = None
        self._is_forced = False
        self._search = HopelessSearch()
        self._looking: asyncio.TimerHandle | None = None
        self._lookout = Lookout(
            self._host,
            self._world,
            quiet_s=boot.quiet_s,
            cwd=boot.cwd,
            has_cells=False,
            tell=lambda text: self._tell(Notice(text)),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = LogKeeper(options.log_dir, boot.ranks) if options.log_dir else None
        self._record = script_record(options, address, os.getpid()) if options.log_dir else None

    async def run(self) -> None:
        """Start the ranks, serve, and end when all is told or nobody is there to be told."""
        self._spawn_task(self._serve())
        self._spawn_task(self._lookout.watch(lambda: self._verdict.running))
        self._spawn_task(self._host.watch_health(lambda: self._verdict.running))
        try:
            if self._keeper is None:
                self._watch_client(self._options.boot.client_pid)
            self._spawn_task(self._begin())
            await self._over.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await self._host.stop()
            if self._keeper is not None:
                self._keeper.close()
            if self._record is not None:
                self._record.close()

    async def _begin(self) -> None:
        """Start the other hosts, and when all are up the ranks: none runs where one cannot."""
        await self._host.boot()
        if self._is_given_up:
            return
        self._has_begun = True
        self._commands.start()
        if self._keeper is not None:
            self._commands.input(b"")  # its end

    def _give_up(self) -> None:
        """Nothing runs, or shall: it was told why."""
        self._is_given_up = True
        self._verdict.ending()
        if self._has_begun:
            self._kill_rest()

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("a task of the supervisor failed", exc_info=task.exception())
            self._over.set()

    # -- the launcher -------------------------------------------------------------------------

    def on_signal(self, number: signal.Signals) -> None:
        """End the ranks; told a second time, at once."""
        self._is_forced = True
        if not self._has_begun:
            if not self._is_given_up:
                self._tell(NotStarted("they were ended before all hosts were up"))
                self._give_up()
        elif self._ending is None:
            self._end_rest((signal.SIGINT, signal.SIGTERM))
        elif number == signal.SIGINT:
            self._kill_rest()

    def _watch_client(self, pid: int) -> None:
        """End with the process that started us."""
        try:
            pidfd = open_pidfd(pid)
        except ProcessLookupError:
            self._over.set()
            return

        def gone() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._over.set()

        self._loop.add_reader(pidfd, gone)

    async def _serve(self) -> None:
        while True:
            self._client_id, message = await next_message(self._client, self._decoder)
            if isinstance(message, Hello):
                unsent, self._unsent = self._unsent, []
                for kept in unsent:
                    self._tell(kept)
            elif isinstance(message, OutputTaken):
                self._commands.taken(message)
            elif isinstance(message, Input):
                self._commands.input(message.data)
            elif isinstance(message, GetStacks):
                self._spawn_task(self._get_stacks(message))
            else:
                self._over.set()

    async def _get_stacks(self, request: GetStacks) -> None:
        stacks = await self._lookout.stacks(request.ranks, is_twice=request.is_twice)
        self._tell(StacksAre(request.id, stacks))

    def _tell(self, message: FromScriptRoot) -> None:
        if self._keeper is not None:
            if self._keeper.take(message):
                self._over.set()
            if isinstance(message, Output):
                self._commands.taken(OutputTaken(message.rank, message.stream, cost(message.data)))
                return
        if self._client_id:
            self._client.send_multipart([self._client_id, msgspec.msgpack.encode(message)])
        else:
            self._unsent.append(message)

    # -- the ranks (WorldEvents) --------------------------------------------------------------

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Answer or note what a rank said."""
        if isinstance(message, EpochAborted):
            self._verdict.blame(rank, accused(message.kind, message.culprit, rank))
        if isinstance(message, Recover):
            self._verdict.forgive(rank)
        if not self._membership.answer(rank, message):
            log.warning("rank %d sent a %s, which a script does not", rank, type(message).__name__)
        if self._world.asking:
            self._look_for_hopeless()

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Note the end of a rank, free those who wait for it, and end the rest if it failed."""
        status = self._host.status(rank) or 0
        self._verdict.end(rank, status)
        self._commands.ended(rank)
        self._tell(RankEnded(rank, status, reason))
        if status:
            self._membership.lose(rank, reason)
            if self._verdict.is_open:
                self._loop.call_later(BLAME_S, self._end_rest)
            else:
                self._end_rest()
        else:
            self._membership.send_all(self._world.lose(rank, "has ended (exit status 0)"))
            self._left.add(rank)
            if len(self._left) == 1:
                self._look_for_hopeless()
        if not self._verdict.running:
            verdict = self._verdict
            self._tell(AllEnded(verdict.culprit, verdict.statuses, self._is_forced))

    def _look_for_hopeless(self) -> None:
        """Free whoever waits for a rank that has ended or waits in `recover`; while there is one."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        asking = self._world.asking
        running, gone = set(self._verdict.running) - asking, self._left | asking
        if self._over.is_set() or not running or not gone:
            return
        self._host.watch(is_on=True)  # from now on it may matter what ranks elsewhere do
        found = self._search.look(
            {rank: self._host.activity(rank) for rank in running | gone},
            now_s=self._loop.time(),
            epoch=self._world.epoch,
            running=running,
            gone=gone,
            splits=self._world.splits,
            ended=self._left,
        )
        if found is not None:
            is_asking = found.missing in asking
            how = "waits in px.recover()" if is_asking else "has ended (exit status 0)"
            self._membership.free(found.missing, f"{how}; {found}")
        self._looking = self._loop.call_later(LOOK_EVERY_S, self._look_for_hopeless)

    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Give up: hosts could not be started."""
        if not self._is_given_up:
            self._tell(NotStarted("\n".join(reasons)))
            self._give_up()

    def on_news(self, message: FromRoot) -> None:
        """Hand on how the start of a host goes on."""
        if isinstance(message, BootProgress):
            self._tell(message)

    def on_frozen(self, rank: int, reason: str) -> None:
        """Free the ranks that may wait for a frozen one."""
        if len(self._verdict.running) > 1:
            self._membership.free(rank, reason)

    # -- ending -------------------------------------------------------------------------------

    def _end_rest(self, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        if self._ending is None and self._verdict.running:
            self._is_forced = True
            self._verdict.ending()
            self._ending = self._spawn_task(self._escalate(signals))

    async def _escalate(self, signals: Sequence[signal.Signals]) -> None:
        for number in signals:
            for rank in self._verdict.running:
                self._host.signal(rank, number)
            await asyncio.sleep(self._options.grace_s)
            if number == signal.SIGINT and self._verdict.running:
                await self._say_late()
        self._kill_rest()

    async def _say_late(self) -> None:
        """Say where ranks are that a stop has not ended, before they are ended less kindly."""
        stacks = await self._lookout.stacks(self._verdict.running)
        self._tell(Notice(say_late(stacks, self._options.grace_s)))

    def _kill_rest(self) -> None:
        for rank in self._verdict.running:
            self._host.signal(rank, signal.SIGKILL)
