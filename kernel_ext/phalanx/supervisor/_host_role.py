"""The process of a host's supervisor where the root is on another host.

It starts, watches and ends the ranks of its machine as its root says, and tells it what happens
there. Where it cannot hear its root it frees its ranks, and ends them after the linger time; where
there is none any more, at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine
from typing import Any

import phalanx
from phalanx.distributed import AbortKind
from phalanx.protocol import Join, ToSupervisor, Welcome
from phalanx.protocol.host_commands import ToCommand
from phalanx.protocol.host_samples import SampleRanks
from phalanx.protocol.hosts import (
    AbortEpoch,
    Beat,
    Beaten,
    Bye,
    Disowned,
    GetTraces,
    GiveBack,
    HostBoot,
    HostUp,
    Kill,
    Killed,
    Look,
    Looked,
    RankFrozen,
    RankGone,
    RankSaid,
    ReadShown,
    Refresh,
    Refreshed,
    Rejoined,
    ReleaseOutput,
    Shown,
    SignalRank,
    Spawn,
    StopHost,
    TellRank,
    ToHost,
    Traces,
    WatchRanks,
)

from ._beats import Silence
from ._far_samples import SampleAnswers
from ._health import HealthWatch
from ._host import HostSupervisor
from ._host_commands import HostCommands
from ._reports import Reports
from ._root_link import RootLink
from ._system import usable_cores

__all__ = ["HostRole"]

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05  # as often as a root looks at ranks of its own host, while a cell runs
SILENCE_LOOK_S = 0.2
FIRST_WORD_S = 10.0  # the root answers a host that has come in milliseconds, or not at all


class HostRole:
    """One host of a world, until its root says so or is gone for too long.

    ``root`` is its way to the root; ``addresses`` are those on which its ranks listen.
    """

    def __init__(
        self, boot: HostBoot, root: RootLink, addresses: tuple[str, ...], cwd: str
    ) -> None:
        self._boot = boot
        self._root = root
        self._cwd = cwd
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._host = HostSupervisor(boot.ranks, self, addresses=addresses, size=boot.size)
        self._host.use(len(boot.addresses), boot.connections_per_ip)
        self._reports = Reports(self._host)
        self._say = root.say
        self._commands = HostCommands(self._host, self._say, cwd)
        self._samples = SampleAnswers(
            self._host, lambda: self._report(*self._host.ranks), self._say
        )
        self._silence = Silence(boot.silence_s, self._loop.time())
        self._clock: asyncio.TimerHandle | None = None
        self._watching = asyncio.Event()
        self._has_heard = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem = ""  # why it could not serve, or did not go on

    async def run(self) -> None:
        """Serve until it is over; then end the ranks."""
        health = HealthWatch(self._host, self._boot.silence_s, self._on_frozen)
        name = socket.gethostname()
        at = self._host.addresses, self._root.address, self._host.device
        self._say(HostUp(phalanx.__version__, os.getpid(), name, usable_cores(), *at))
        try:
            self._spawn_task(self._serve())
            self._spawn_task(self._watch_silence())
            self._spawn_task(self._watch_ranks())
            self._spawn_task(health.run(lambda: self._host.ranks))
            await self._over.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._clock is not None:
                self._clock.cancel()
            await self._host.stop()
            self._say(Bye())

    def end(self) -> None:
        """End the ranks and this process."""
        self._over.set()

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("a task of the supervisor failed", exc_info=task.exception())
            self._end_for(f"a task of this host's supervisor failed: {task.exception()!r}")

    # -- the root -----------------------------------------------------------------------------

    async def _serve(self) -> None:
        if await self._root.run(self._hear):
            self._free_ranks()
            self._give_up("does not listen there any more")
        else:
            self._give_up("has not let this host in (another job's?)")

    def _hear(self, message: ToHost) -> None:
        self._has_heard = True
        self._silence.heard()
        if self._clock is not None:  # it was only silent for a while
            self._clock.cancel()
            self._clock = None
        self._do(message)

    def _do(self, message: ToHost) -> None:
        host = self._host
        if isinstance(message, Beat):
            self._root.note(Beaten(message.number, time.monotonic_ns()))
        elif isinstance(message, TellRank):
            if isinstance(message.message, Welcome):
                self._reports.epoch = message.message.epoch
            host.send(message.rank, message.message)
        elif isinstance(message, AbortEpoch):
            host.abort(message.epoch, message.kind, message.culprit, message.message)
        elif isinstance(message, WatchRanks):
            if message.is_on:
                self._watching.set()
            else:
                self._watching.clear()
        elif isinstance(message, Spawn):
            self._spawn(message.rank)
        elif isinstance(message, GiveBack):
            host.give_back(message.rank)
        elif isinstance(message, ReleaseOutput):
            host.release_output(message.rank)
        elif isinstance(message, SignalRank):
            host.signal(message.rank, signal.Signals(message.number))
        elif isinstance(message, Refresh):
            self._report(*host.ranks, with_memory=True)
            self._say(Refreshed(message.id))
        elif isinstance(message, GetTraces):
            self._say(Traces(message.id, host.traces_here()))
        elif isinstance(message, StopHost | Disowned):
            self.end()
        elif isinstance(message, Rejoined):
            return
        elif isinstance(message, SampleRanks):
            self._spawn_task(self._samples.answer())
        elif isinstance(message, ToCommand):
            self._commands.do(message)
        else:
            self._spawn_task(self._answer(message))

    async def _answer(self, message: Kill | Look | ReadShown) -> None:
        """Do what takes a moment."""
        if isinstance(message, Kill):
            self._say(Killed(message.id, await self._host.kill(message.rank, message.timeout_s)))
        elif isinstance(message, Look):
            is_stopped, dump = await self._host.look(message.rank)
            self._report(message.rank)
            self._say(Looked(message.id, is_stopped, dump))
        else:
            shown = await self._host.read_shown(message.rank, message.since, message.max_lines)
            if shown is None:
                self._say(Shown(message.id, b"", 0, 0, 0))
            else:
                left_out = shown.left_out_nbytes, shown.left_out_lines
                self._say(Shown(message.id, shown.text, shown.end, *left_out))

    def _spawn(self, rank: int) -> None:
        try:
            self._host.spawn(rank, cwd=self._cwd)
        except OSError as error:
            self._say(RankGone(rank, 1, f"could not be started: {error}", ""))
        else:
            self._report(rank)

    # -- a root that is gone ------------------------------------------------------------------

    async def _watch_silence(self) -> None:
        waited_s = 0.0
        while True:
            await asyncio.sleep(SILENCE_LOOK_S)
            waited_s += SILENCE_LOOK_S
            is_over = self._silence.is_over(self._loop.time())
            if not self._has_heard:
                if waited_s > FIRST_WORD_S:
                    self._give_up(f"did not answer within {FIRST_WORD_S:g} s")
                continue
            if self._silence.lasts_s >= self._boot.silence_s / 2:
                self._root.doubt()  # a connection may break without a word: another may not
            if is_over and self._clock is None:
                self._free_ranks()
                self._clock = self._loop.call_later(self._boot.linger_s, self._give_up_silent)

    def _give_up_silent(self) -> None:
        self._give_up(f"has not been heard for {self._silence.lasts_s:.0f} s")

    def _give_up(self, why: str) -> None:
        self._end_for(f"the supervisor at {', '.join(self._boot.endpoints)} {why}")

    def _end_for(self, problem: str) -> None:
        """End, and say why, should anybody be left to read it: with a status, or it looks asked for."""
        if not self._over.is_set():  # by who asked, or for what came first
            self.problem = problem
        self.end()

    def _free_ranks(self) -> None:
        """Free the ranks, which wait for others in vain."""
        if self._reports.epoch:
            text = f"the supervisor of this workspace, on {self._boot.root_name}, is gone"
            self._host.abort(self._reports.epoch, AbortKind.ERROR, -1, text)

    # -- the ranks ----------------------------------------------------------------------------

    async def _watch_ranks(self) -> None:
        while True:
            await self._watching.wait()
            # What is said is kept until it is heard, and a later look tells all that this one would.
            if self._root.is_joined:
                self._report(*self._host.ranks)
            await asyncio.sleep(LOOK_EVERY_S)

    def _report(self, *ranks: int, with_memory: bool = False) -> None:
        report = self._reports.draw_up(ranks, with_memory=with_memory)
        if report is not None:
            self._say(report)

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Hand on what a rank said, after how far it had come by then."""
        if isinstance(message, Join):
            self._host.speaks(rank, message.pid)
        self._report(rank)
        self._say(RankSaid(rank, message))

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Tell of a rank's end, after how far it had come."""
        self._report(rank)
        self._say(RankGone(rank, self._host.status(rank) or 0, reason, tail))

    def _on_frozen(self, rank: int, reason: str) -> None:
        self._say(RankFrozen(rank, reason))
