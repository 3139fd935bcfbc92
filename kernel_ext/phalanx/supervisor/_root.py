"""The root role: coordinator of one world, and the one authority on who is alive.

It answers the workspace over CURVE, keeps the `World`, runs ipyparallel's controller and the
ranks on their hosts. It knows nothing of cells' code, of output that kernels capture, of arrays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from phalanx.protocol import (
    BeginCell,
    Booted,
    BootFailed,
    BootOptions,
    CellEnded,
    EngineReady,
    Failed,
    ForgetCell,
    FromRoot,
    Hello,
    KeepCell,
    LetGo,
    Notice,
    RankLost,
    Register,
    Restart,
    RootAddress,
    Settled,
    Stop,
    Stopped,
    ToRoot,
    ToSupervisor,
    WatchSamples,
)

from ._answers import Answers, Question
from ._cell_watch import CellWatch
from ._cells import Cells
from ._clients import Clients
from ._engines import Engines
from ._hopeless import Hopeless
from ._hosts import Hosts
from ._lookout import Lookout
from ._membership import Membership
from ._next_message import next_message
from ._rank_reader import RankReader
from ._restart import Restarts
from ._runtime_folder import RecordFile
from ._samples import Samplers
from ._world import World

__all__ = ["RootSupervisor"]

log = logging.getLogger(__name__)

HELLO_S = 5.0  # for who has started us to connect, before it is told that it was in vain


class RootSupervisor:
    """One workspace's root: made with its options and its bound socket, run until it is over."""

    def __init__(
        self, options: BootOptions, client: zmq.asyncio.Socket, address: RootAddress
    ) -> None:
        self._options = options
        self._client = client
        self._decoder = msgspec.msgpack.Decoder(ToRoot)
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._stop_request: tuple[bytes, int] | None = None
        self._world = World(options.ranks)
        self._is_given_up = False
        self._host = Hosts(options, self)
        self._engines = Engines(
            options.ranks,
            self._host,
            is_new=lambda rank: self._restarts.is_replacement(rank),  # noqa: PLW0108 - made below
            on_lost=self._on_controller_lost,
        )
        self._membership = Membership(options, self._world, self._host, self._world.gone)
        self._restarts = Restarts(
            self._world,
            self._host,
            self._engines.names,
            spawn=self._host.spawn,
            lose=self._lose,
            revive=self._revive,
            tell=self._tell,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = CellWatch(self._world, self._host, self._on_hopeless)
        self._lookout = Lookout(
            self._host,
            self._world,
            quiet_s=options.quiet_s,
            cwd=options.cwd,
            has_cells=True,
            tell=lambda text: self._tell(Notice(text)),
        )
        self._answers = Answers(
            options,
            self._world,
            self._host,
            self._lookout,
            self._engines.names,
            self._engines.ready,
        )
        self._cells = Cells(
            self._world,
            self._host,
            self._membership,
            self._restarts,
            self._lookout,
            self._answers,
            self._watch,
            self._spawn_task,
        )
        record = RecordFile(options.record_fd, options.record_path) if options.record_path else None
        self._clients = Clients(options, client, address, record, self._answers.mark, self.end)
        self._samplers = Samplers(
            self._world,
            self._answers.cells.times,
            [RankReader(host) for host in self._host.here],
            far=self._host.far_samples,
            activity=self._host.activity,
            is_ready=self._engines.ready.__contains__,
            send=self._clients.answer,
        )

    async def run(self) -> None:
        """Boot, serve, and end when told to or when the workspace's time is over."""
        try:
            self._spawn_task(self._serve())
            addresses = await self._host.reached_at()  # which may wait for a name server
            if self._over.is_set():
                return
            self._engines.start_controller(self._options.cwd, addresses)
            for rank in range(self._options.ranks):
                self._host.spawn(rank)
            self._spawn_task(self._host.watch_health(self._awaited))
            self._spawn_task(self._lookout.watch(self._looked_at))
            await self._over.wait()
        finally:
            self._clients.stopping()
            await self._close()
            self._clients.close()
            if self._stop_request is not None:
                identity, request_id = self._stop_request
                self._clients.answer(identity, Stopped(request_id))

    def end(self) -> None:
        """End everything, from a signal or a request."""
        self._over.set()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        # At once: without the controller nobody has to be told of each rank that leaves it.
        await asyncio.gather(self._engines.stop_controller(), self._host.stop())

    def _spawn_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("a task of the supervisor failed", exc_info=task.exception())
            self.end()

    # -- controller ---------------------------------------------------------------------------

    def _on_controller_lost(self, reason: str, tail: str) -> None:
        if self._over.is_set():
            return
        message = f"ipyparallel's controller {reason}"
        if not self._is_booted:
            self._tell(BootFailed(f"{message}\n{tail}".rstrip()))
        else:
            # Cells travel through it: without it the ranks cannot be reached any more.
            for rank in range(self._options.ranks):
                host = self._host.layout.name_of(rank)
                self._tell(RankLost(rank, host, f"{message}; unreachable", tail))
        self.end()

    # -- the workspace ------------------------------------------------------------------------

    def _tell(self, message: FromRoot) -> None:
        self._clients.tell(message)

    async def _serve(self) -> None:
        while True:
            self._serve_one(*await next_message(self._client, self._decoder))

    def _serve_one(self, identity: bytes, message: ToRoot) -> None:
        if isinstance(message, Hello):
            if self._clients.greet(identity, message) and self._is_booted:
                self._clients.answer(identity, self._booted())
            if self._is_given_up:
                self.end()
        elif isinstance(message, Question):
            self._spawn_task(self._answer(identity, message))
        elif isinstance(message, LetGo):
            self._clients.let_go(identity)
        elif isinstance(message, WatchSamples):
            if self._samplers.watch(identity, message.seconds):
                self._spawn_task(self._samplers.run())
        elif not self._clients.has_owner(identity):
            if isinstance(message, BeginCell | Restart | Stop):
                pid = self._clients.owner_pid
                self._clients.answer(identity, Failed(message.id, f"process {pid} has it now"))
        elif isinstance(message, BeginCell):
            self._cells.announce(message.cell)
            self._spawn_task(self._begin_cell(identity, message))
        elif isinstance(message, ForgetCell):
            self._cells.forget(message)
        elif isinstance(message, KeepCell):
            self._answers.missed.keep(message)
        elif isinstance(message, Settled):
            self._answers.missed.settle(message)
        elif isinstance(message, Restart):
            self._spawn_task(self._restart(identity, message))
        elif isinstance(message, Stop):
            self._stop_request = identity, message.id
            self.end()

    @property
    def _is_booted(self) -> bool:
        return len(self._engines.ready) == self._options.ranks

    def _booted(self) -> Booted:
        return self._engines.booted(self._clients.n_greeted)

    async def _answer(self, identity: bytes, question: Question) -> None:
        self._clients.answer(identity, await self._answers.answer(question))

    async def _restart(self, identity: bytes, request: Restart) -> None:
        if self._is_booted:
            self._clients.answer(identity, await self._restarts.restart(request))
        else:
            self._clients.answer(identity, Failed(request.id, "the ranks are not up yet"))

    async def _restart_unasked(self, rank: int) -> None:
        problem = await self._restarts.replace(rank)
        if problem:
            self._tell(Notice(f"rank {rank} could not be replaced: {problem}"))

    def _looked_at(self) -> set[int]:
        """Ranks that may wait for each other: all that live, while a cell runs."""
        if not self._world.unfinished():
            return set()
        return set(range(self._options.ranks)) - self._world.dead.keys()

    async def _begin_cell(self, identity: bytes, request: BeginCell) -> None:
        answer = await self._cells.begin(request, lambda: self._clients.has_owner(identity))
        self._clients.answer(identity, answer)
        self._watch.look()

    # -- the ranks (WorldEvents) ---------------------------------------------------------------

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Answer or note what a rank said."""
        if isinstance(message, Register):
            self._engines.register(rank, message.id)
        elif isinstance(message, EngineReady):
            self._host.release_output(rank)
            self._engines.ready.add(rank)
            if not self._restarts.on_ready(rank) and self._is_booted:
                self._tell(self._booted())
        elif isinstance(message, CellEnded):
            self._cells.end(rank, message)
        else:
            self._membership.answer(rank, message)
            if self._world.asking:
                self._watch.look()

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Name a dead rank to everybody: first to those who wait for it."""
        if self._restarts.on_lost(rank, reason, tail):
            return
        self._lose(rank, reason)
        if not self._is_booted:
            self._tell(BootFailed(f"rank {rank} {reason} while starting\n{tail}".rstrip()))
            self.end()
            return
        will_return = self._options.auto_restart
        host = self._host.layout.name_of(rank)
        self._tell(RankLost(rank, host, reason, tail, will_return))
        if will_return and self._restarts.claim(rank):
            self._spawn_task(self._restart_unasked(rank))

    def on_frozen(self, rank: int, reason: str) -> None:
        """Free the ranks that may wait for a frozen one."""
        if rank in self._awaited():
            self._membership.free(rank, reason)

    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Give up: hosts could not be started."""
        self._tell(BootFailed("\n".join(reasons)))
        self._is_given_up = True
        if self._clients.had_owner:
            self.end()
        else:  # it is on its way, to be told
            self._loop.call_later(HELLO_S, self.end)

    def on_news(self, message: FromRoot) -> None:
        """Hand on how the start goes on."""
        self._tell(message)

    def _lose(self, rank: int, reason: str) -> None:
        """Free everyone who waits for a rank that is gone."""
        self._membership.lose(rank, reason)
        self._answers.lose(rank, reason)
        self._cells.ended()

    def _revive(self, rank: int) -> None:
        self._world.revive(rank)
        self._answers.revive(rank)

    def _awaited(self) -> set[int]:
        """Ranks that others may wait for now: the living, while a cell runs."""
        alive = set(range(self._options.ranks)) - self._world.dead.keys()
        return alive if self._world.unfinished() else set()

    def _on_hopeless(self, found: Hopeless) -> None:
        """Free the ranks that wait for one whose part of the cell is over."""
        reason = f"{self._world.how_gone(found.missing)}; {found}"
        self._membership.free(found.missing, reason)
