"""Run the root supervisor of a workspace: coordinate ranks, serve clients.

The root serves clients over a Unix socket, keeps the `WorldState`, and runs ipyparallel's controller and
the ranks on their hosts. The root alone decides which ranks are alive.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from phalanx.protocol import (
    AddStartupCell,
    AskDebugger,
    AskRoot,
    BeginCell,
    Booted,
    BootOptions,
    CancelCell,
    CellBegan,
    CellEnded,
    EngineReady,
    Entered,
    Failed,
    FromRoot,
    Hello,
    LineNeed,
    LineNotNeeded,
    Notice,
    OrderRanks,
    RankLost,
    RankNews,
    RankSays,
    Register,
    Registered,
    ReplacementsReady,
    Restart,
    RootAnswer,
    RootAnswered,
    RootRequest,
    Stop,
    ToRoot,
    ToSupervisor,
    TypeLine,
    WatchSamples,
)
from phalanx.protocol.host import FromCommand, Spawn

from ..engine.controller import Connection, ControllerProcess, file_for_rank
from ..hosts.host_set import HostSet
from ..runtime_dir import Claim
from ..world.state import WorldState
from .cell_scheduler import CellScheduler
from .clients import Client, Clients
from .queries import Query, QueryService
from .replacement import RankEnding, ReplacementBacklog, Restarts
from .root import Root
from .samplers import Samplers

log = logging.getLogger(__name__)

STOPPING = "the workspace is being stopped"


class Engines:
    """Run the controller and send each rank its uuid and connection file.

    ``names`` (engine uuid by rank) is also changed by `Restarts`, when a rank is replaced.
    """

    def __init__(
        self, world: WorldState, hosts: HostSet, *, on_lost: Callable[[str, str], None]
    ) -> None:
        self.names = [str(uuid.uuid4()) for _ in range(world.size)]
        self._session = str(uuid.uuid4())
        self._hosts = hosts
        self._world = world
        self._waiting: dict[int, int] = {}  # rank -> request id, until the controller is up
        self._connection: Connection = {}
        self.controller = ControllerProcess(self._on_up, on_lost)

    def register(self, rank: int, request_id: int) -> None:
        """Answer a rank's registration, now or when the controller is up."""
        if not self._connection:
            self._waiting[rank] = request_id
            return
        file = file_for_rank(self._connection, self._hosts.root_address(rank))
        is_new = self._world.is_replacement(rank)
        answer = Registered(request_id, rank, self._world.size, self.names[rank], file, is_new)
        self._hosts.send(rank, answer)

    def booted(self, client: int) -> Booted:
        return Booted(self._connection["client"], tuple(self.names), self._session, client)

    def _on_up(self, connection: Connection) -> None:
        self._connection = connection
        for rank, request_id in self._waiting.items():
            self.register(rank, request_id)
        self._waiting.clear()


class WorkspaceRoot(Root):
    """Run one workspace.

    ``claim`` holds its name; None: no other process can find it.
    """

    def __init__(self, options: BootOptions, claim: Claim | None = None) -> None:
        world = WorldState(options.world.size)
        super().__init__(options, world)
        self._decoder: msgspec.msgpack.Decoder[ToRoot] = msgspec.msgpack.Decoder(ToRoot)
        self._claim = claim
        self._stop_request: tuple[Client, int] | None = None
        self._cut_off = ""  # which ranks a stop has killed
        self._rank_ending = RankEnding(self._host, self._inspector, options.grace_s)
        self._engines = Engines(world, self._host, on_lost=self._on_controller_lost)
        self._clients = Clients(options, self._on_owner_gone, self._on_linger_over)
        self._backlog = ReplacementBacklog()
        self._restarts = Restarts(
            world,
            self._membership,
            self._host,
            self._engines.names,
            self._rank_ending,
            self._backlog,
            self._tasks,
            tell=self.tell,
        )
        self._queries = QueryService(
            options,
            world,
            self._host,
            self._inspector,
            self._engines.names,
            self._backlog,
        )
        self._cells = CellScheduler(
            world,
            self._host,
            self._membership,
            self._restarts,
            self._inspector,
        )
        self._samplers = Samplers(world, self._host, self._clients.answer)

    def _start(self) -> None:
        self._spawn(rank for rank in self._host.ranks if not self._host.is_far(rank))
        self._tasks.spawn(self._start_far())
        if not self._over.is_set():
            start = partial(self._engines.controller.start, self._boot.cwd, self._host.addresses)
            self._host.here[0].with_fork(start) if self._host.here else start(None)

    async def _start_far(self) -> None:
        await self._host.boot()
        self._spawn(filter(self._host.is_far, self._host.ranks))

    def _spawn(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if not self._over.is_set():  # else a rank or host could not be started
                self._host.take(Spawn(rank))

    def stop(self) -> None:
        """End the ranks in order; a second call kills them."""
        if not self._is_booted:
            self.end()
        elif self._clients.is_stopping:
            self._rank_ending.hurry(self._host.ranks)
        else:
            self._clients.stopping()
            if self._stop_request is None:  # no client asked: say why its cell ends
                self.tell(Notice(STOPPING))
            self._tasks.spawn(self._end_in_order())

    def _on_linger_over(self) -> None:
        if not self._clients.is_stopping:  # else the ranks have their grace time already
            self.stop()

    async def _end_in_order(self) -> None:
        if not self._world.unfinished():  # else the output of the cell's last lines needs it
            self._tasks.spawn(self._engines.controller.stop())
        killed = await self._rank_ending.end(self._host.ranks)
        self._cut_off = self._rank_ending.say(killed)
        self.end()

    async def _stop(self) -> None:
        self._clients.stopping()
        # Both at once: without the controller no rank's departure has to be reported.
        await asyncio.gather(self._engines.controller.stop(), self._host.stop())
        if self._claim is not None:
            self._claim.release()
        await self._clients.close(self._cut_off, self._stop_request)

    # -- controller ---------------------------------------------------------------------------

    def _on_controller_lost(self, reason: str, tail: str) -> None:
        if self._over.is_set() or self._clients.is_stopping:
            return
        message = f"ipyparallel's controller {reason}"
        if not self._is_booted:
            self.tell(Failed(f"{message}\n{tail}".rstrip()))
        else:
            # Cells travel through the controller: without it the ranks cannot be reached.
            for rank in range(self._boot.world.size):
                host = self._host.layout.name_of(rank)
                self.tell(RankLost(rank, host, f"{message}; unreachable", tail))
        self.end()

    # -- clients ------------------------------------------------------------------------------

    def on_client(self, client: Client) -> None:
        self._clients.meet(client)

    def on_client_gone(self, client: Client) -> None:
        """Detach a client without stopping the ranks."""
        self._clients.lose(client)

    def tell(self, message: FromRoot) -> None:
        self._clients.tell(message)

    def on_request(self, client: Client, body: bytes) -> None:
        """Handle a message of a client.

        A message that cannot be decoded (another version, a foreign sender) is logged and dropped.
        Such a message must not end the ranks.
        """
        try:
            message = self._decoder.decode(body)
        except (ValueError, RecursionError) as error:  # ValueError: also text that is not UTF-8
            log.warning("a message of a client was not understood: %s", error)
        else:
            self._serve(client, message)

    def _serve(self, client: Client, message: ToRoot) -> None:
        if isinstance(message, Hello):
            if self._clients.greet(client, message) and self._is_booted:
                self._clients.answer(client, self._booted())
        elif isinstance(message, AskRoot):
            self._on_ask(client, message)
        elif isinstance(message, WatchSamples):
            if self._samplers.watch(client, message.seconds):
                self._tasks.spawn(self._samplers.run())
        elif not self._clients.has_owner(client):
            pass
        elif isinstance(message, CancelCell):
            self._cells.forget(message)
        elif isinstance(message, OrderRanks) and self._is_booted:
            if isinstance(message.order, TypeLine):
                self._world.cells.type_line(message.order)
            for rank in self._world.alive.intersection(message.ranks):
                self._host.send(rank, message.order)
        elif isinstance(message, AddStartupCell):
            self._backlog.keep(message)
        elif isinstance(message, ReplacementsReady):
            self._backlog.settle(message)

    def _on_ask(self, client: Client, asked: AskRoot) -> None:
        question = asked.request
        if refusal := self._refusal(client, question):
            self._clients.answer(client, RootAnswered(asked.id, Failed(refusal)))
        elif isinstance(question, Stop):
            # A second request may come before the first one's number is known to its thread.
            self._stop_request = self._stop_request or (client, asked.id)
            self.stop()
        else:
            if isinstance(question, BeginCell):
                self._cells.announce(question.cell)
            self._tasks.spawn(self._answer(client, asked.id, question))

    def _refusal(self, client: Client, question: RootRequest) -> str:
        """Return why a client may not ask this now; "": it may."""
        if isinstance(question, Query):
            return ""
        if not self._clients.has_owner(client):
            return f"{self._clients.owner} has it now"
        if self._clients.is_stopping and not isinstance(question, Stop):
            return STOPPING
        if isinstance(question, Restart) and not self._is_booted:
            return "the ranks are not up yet"
        return ""

    async def _answer(
        self, client: Client, number: int, question: Query | BeginCell | Restart
    ) -> None:
        answer: RootAnswer
        if isinstance(question, BeginCell):
            answer = await self._cells.begin(question, lambda: self._clients.has_owner(client))
        elif isinstance(question, Restart):
            answer = await self._restarts.restart(question)
        else:
            answer = await self._queries.answer(question)
        self._clients.answer(client, RootAnswered(number, answer))

    def _on_owner_gone(self) -> None:
        self._queries.mark()
        for rank in self._world.alive if self._is_booted else ():
            self._host.send(rank, AskDebugger(b""))

    @property
    def _is_booted(self) -> bool:
        return self._world.are_ready

    def _booted(self) -> Booted:
        return self._engines.booted(self._clients.n_owners)

    # -- the ranks ---------------------------------------------------------------------------

    def on_message(self, rank: int, message: ToSupervisor) -> None:
        if isinstance(message, Register):
            self._engines.register(rank, message.id)
        elif isinstance(message, EngineReady):
            self._world.mark_ready(rank)
            if not self._restarts.on_ready(rank) and self._is_booted:
                self.tell(self._booted())
        elif isinstance(message, CellBegan):
            self._world.cells.begun[rank] = message.cell
        elif isinstance(message, Entered):
            self._cells.entered(rank, message)
        elif isinstance(message, RankNews):
            if isinstance(message, CellEnded):
                self._cells.end(rank, message)
            elif isinstance(message, LineNeed | LineNotNeeded):
                self._world.cells.ask_line(rank, message)
            self.tell(RankSays(rank, message))
        else:
            self._membership.answer(rank, message)

    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        if self._clients.is_stopping:
            self._membership.free_waiters(rank, f"has ended: {STOPPING}")
        elif self._restarts.on_lost(rank, reason, tail):
            pass  # a restart has ended it, or has started it in vain
        elif self._is_booted:
            self._lose(rank, reason, tail)
        else:
            self._membership.lose(rank, reason)
            when = "" if "could not be started" in reason else " while starting"
            self.tell(Failed(f"rank {rank} {reason}{when}\n{tail}".rstrip()))
            self.end()

    def _lose(self, rank: int, reason: str, tail: str) -> None:
        """Free the other ranks, tell the client, start a successor if wanted."""
        will_return, consequence = self._boot.auto_restart, ""
        if will_return:
            consequence = self._restarts.deaths.add(rank, self._loop.time())
            will_return = not consequence
        self._membership.lose(rank, reason, consequence)
        host, said = self._host.layout.name_of(rank), self._world.dead[rank]
        self.tell(RankLost(rank, host, said, tail, will_return))
        if will_return:
            self._restarts.begin(rank)

    def on_command(self, message: FromCommand) -> None:
        """Ignore a message about a command: ranks of a workspace run cells."""

    def on_not_up(self, reasons: Sequence[str]) -> None:
        self.tell(Failed("\n".join(reasons)))
        self.end()

    def _running(self) -> set[int]:
        return self._world.unfinished()

    def _gone(self) -> set[int]:
        return self._world.gone()
