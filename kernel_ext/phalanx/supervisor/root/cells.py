"""Schedule cells on ranks and answer clients' questions about them.

`CellScheduler` decides when a cell may begin. `CellTimeline` and `CellHistory` record which ranks
ran a cell, when, and with which result. `QueryService` answers `GetTopology`, `GetStacks` and the
like for `WorkspaceRoot`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import combinations
from typing import Any

import msgspec

from phalanx.protocol import (
    ENTRY,
    BeginCell,
    BootOptions,
    CancelCell,
    CellAllowed,
    CellEnded,
    CellStatus,
    CellStatusReply,
    CellTime,
    Entered,
    EnterWorld,
    Failed,
    FromRoot,
    GetCellStatus,
    GetOutput,
    GetStacks,
    GetTopology,
    GetTrace,
    LineNeed,
    LineNotNeeded,
    LinkInfo,
    OutputIs,
    RankDeath,
    RankInfo,
    StacksAre,
    StopCell,
    TopologyIs,
    TraceIs,
    TypedLine,
    TypeLine,
    WorldTopology,
    name_ranks,
    say_busy,
)
from phalanx.protocol.host import WatchRanks

from ..hosts.host_set import HostSet
from ..membership import MembershipCoordinator, RankDirectory, WorldState
from .observers import RankInspector, StallWatcher
from .replacement import ReplacementBacklog, Restarts

KEPT_NS = 2_000_000_000  # six samples: a client that misses some still gets the end of each cell

log = logging.getLogger(__name__)
Question = GetTopology | GetStacks | GetTrace | GetOutput | GetCellStatus
RESTART_WAIT_S = 5.0  # how long a cell waits for replacements; clients wait longer for permission
ENTRY_S = 35.0  # a rank itself gives up after 30 s
REFUSED_S = 5.0  # if a rank cannot enter, the others are freed at once
UNFINISHED_WAIT_S = 2.0  # how long a new cell waits for ranks that still run the last one


class CellTimeline:
    """Record when each cell began and when each rank ended it.

    Examples
    --------
    >>> times = CellTimeline(iter(range(100)).__next__)
    >>> times.begin("a", (0, 1))
    >>> times.end("a", 1)
    >>> times.recent()
    (CellTime(cell='a', begun_ns=1, ranks=(0, 1), ended_ns={1: 2}, title=''),)
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._cells: dict[str, CellTime] = {}

    def begin(self, cell: str, ranks: Iterable[int], title: str = "") -> None:
        """Record that a cell begins now."""
        self._forget_old()
        self._cells[cell] = CellTime(cell, self._clock(), tuple(ranks), {}, title)

    def forget(self, cell: str) -> None:
        """Drop a cell that did not begin after all."""
        self._cells.pop(cell, None)

    def end(self, cell: str, rank: int) -> None:
        """Record that a rank has ended its part of a cell."""
        its = self._cells.get(cell)
        if its is not None and rank in its.ranks:
            its.ended_ns.setdefault(rank, self._clock())

    def end_all(self, rank: int) -> None:
        """Record that a rank has ended its part of every cell."""
        for cell in self._cells:
            self.end(cell, rank)

    def recent(self) -> tuple[CellTime, ...]:
        """Return the running cells and those that ended less than `KEPT_NS` ago."""
        self._forget_old()
        return tuple(self._cells.values())

    def running(self, rank: int) -> tuple[str, float]:
        """Return title and seconds so far of a rank's cell.

        Returns ``("", 0.0)`` for a rank that runs no cell.
        """
        for its in reversed(self._cells.values()):
            if rank in its.ranks and rank not in its.ended_ns:
                return its.title, (self._clock() - its.begun_ns) / 1e9
        return "", 0.0

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_NS
        over = [
            cell
            for cell, its in self._cells.items()
            if len(its.ended_ns) == len(its.ranks)
            and max(its.ended_ns.values(), default=0) < oldest
        ]
        for cell in over:
            del self._cells[cell]


class CellHistory:
    r"""Record the unfinished cells and the last cell that all ranks ended.

    Examples
    --------
    >>> log = CellHistory(RankDirectory(2))
    >>> log.begin("a", (0, 1))
    >>> log.end(0, CellEnded("a", ok=True))
    >>> [[*cell.ended] for cell in log.unfinished(has_seen_all=True)]
    [[0]]
    """

    def __init__(self, ranks: RankDirectory) -> None:
        self.times = CellTimeline()
        self._dead = ranks.dead
        ranks.subscribe(lost=self._on_lost, alive=self._on_alive)
        self._cells: dict[str, tuple[tuple[int, ...], dict[int, CellEnded]]] = {}
        self._last = ""  # the cell that ended last
        self.begun: dict[int, str] = {}  # the cell that each rank began last
        self._typed: dict[str, list[TypedLine]] = {}  # by cell
        self._needs: dict[tuple[int, bool], LineNeed] = {}  # by rank and is_command

    def begin(self, cell: str, ranks: tuple[int, ...], title: str = "") -> None:
        """Record a cell that is about to run."""
        self._cells.pop(self._last, None)
        self._last = ""
        self._cells[cell] = tuple(rank for rank in ranks if rank not in self._dead), {}
        self.times.begin(cell, self._cells[cell][0], title)

    def forget(self, cell: str) -> None:
        """Drop a cell that was announced and never sent."""
        self._cells.pop(cell, None)
        self.times.forget(cell)

    def end(self, rank: int, notice: CellEnded) -> None:
        """Record how a rank's part of a cell ended."""
        self.times.end(notice.cell, rank)
        if notice.cell in self._cells:
            self._cells[notice.cell][1][rank] = notice
            self._look(notice.cell)

    def type_line(self, order: TypeLine) -> None:
        """Record a line that was typed for a cell."""
        if order.cell in self._cells:
            self._typed = {order.cell: [*self._typed.get(order.cell, ()), order.entry]}

    def ask_line(self, rank: int, news: LineNeed | LineNotNeeded) -> None:
        """Record whether a rank waits for a line."""
        if isinstance(news, LineNeed):
            self._needs[rank, news.is_command] = news
        else:
            self._needs.pop((rank, False), None)

    def _on_lost(self, rank: int) -> None:
        self.times.end_all(rank)
        for cell in list(self._cells):
            self._look(cell)

    def _on_alive(self, rank: int) -> None:
        """Leave a rank out that was replaced: the successor runs no cell."""
        self.begun.pop(rank, None)
        for cell, (ranks, ended) in self._cells.items():
            if rank not in ended:
                self._cells[cell] = tuple(r for r in ranks if r != rank), ended

    def _look(self, cell: str) -> None:
        if cell != self._last and self._is_over(cell):
            self._cells.pop(self._last, None)
            self._last = cell

    def _is_over(self, cell: str) -> bool:
        ranks, ended = self._cells[cell]
        return not set(ranks) - ended.keys() - self._dead.keys()

    def unfinished(self, *, has_seen_all: bool) -> tuple[CellStatus, ...]:
        """Return the running cells, and the last until its end is seen."""
        return tuple(
            CellStatus(
                cell,
                ranks,
                dict(ended),
                tuple(self._typed.get(cell, ())),
                tuple(
                    (rank, need)
                    for (rank, _), need in self._needs.items()
                    if need.cell == cell and rank not in ended
                ),
            )
            for cell, (ranks, ended) in self._cells.items()
            if not (has_seen_all and self._is_over(cell))
        )


def links_of(hosts: tuple[int, ...], transport: str) -> tuple[LinkInfo, ...]:
    """Return the links between all ranks; ``hosts[r]`` is rank r's host.

    Examples
    --------
    >>> [(link.a, link.b, link.transport) for link in links_of((0, 0, 1), "any")]
    [(0, 1, 'arena'), (0, 2, 'tcp'), (1, 2, 'tcp')]
    """
    return tuple(
        LinkInfo(a, b, "arena" if hosts[a] == hosts[b] and transport != "tcp" else "tcp")
        for a, b in combinations(range(len(hosts)), 2)
    )


def topology_of(
    options: BootOptions,
    world: WorldState,
    host: HostSet,
    engines: Sequence[str],
    times: CellTimeline,
) -> WorldTopology:
    """Describe the current topology."""
    hosts = host.layout.hosts
    cells = [times.running(rank) for rank in range(options.world.size)]
    ranks = tuple(
        RankInfo(
            rank=rank,
            host=hosts[rank],
            pid=host.report(rank).pid,
            state=world.state(rank) if world.ranks.is_ready(rank) else "starting",
            engine=engines[rank],
            # The cause of death, or the current operation.
            detail=world.dead.get(rank)
            or ("in recover" if rank in world.asking else host.report(rank).doing),
            rss_nbytes=0 if rank in world.dead else host.report(rank).rss_nbytes,
            cell=cells[rank][0],
            cell_s=cells[rank][1],
        )
        for rank in range(options.world.size)
    )
    return WorldTopology(
        name=options.world.name,
        epoch=world.epoch,
        hosts=host.infos,
        ranks=ranks,
        links=links_of(hosts, options.world.transport),
    )


class QueryService:
    """Answer clients' questions from the state of the root."""

    def __init__(
        self,
        options: BootOptions,
        world: WorldState,
        host: HostSet,
        inspector: RankInspector,
        engines: Sequence[str],
        backlog: ReplacementBacklog,
    ) -> None:
        self.cells = CellHistory(world.ranks)
        self._backlog = backlog
        self._options = options
        self._world = world
        self._host = host
        self._inspector = inspector
        self._engines = engines
        self._marks = dict.fromkeys(
            range(options.world.size), 0
        )  # bytes shown when the last owner left
        self._is_end_seen = True  # whether the owner knows of the end of the last cell

    def mark(self) -> None:
        """Record the output and cell ends that the leaving owner has seen.

        The next owner needs everything after this mark.
        """
        self._marks = {rank: self._host.report(rank).shown_nbytes for rank in self._marks}
        self._is_end_seen = not self._world.unfinished()

    def begin_cell(self, cell: str, ranks: tuple[int, ...], title: str) -> None:
        """Record a cell that its owner is about to send."""
        self.cells.begin(cell, ranks, title)
        self._is_end_seen = True

    async def answer(self, question: Question) -> FromRoot:
        """Answer one question; return `Failed` on any error.

        An error in an answer must not end the workspace.
        """
        try:
            return await self._answer(question)
        except Exception as error:
            log.exception("a question could not be answered")
            return Failed(question.id, f"the supervisor cannot tell: {error}")

    async def _answer(self, question: Question) -> FromRoot:
        if isinstance(question, GetTopology):
            world, host = self._world, self._host
            await host.refresh()
            topology = topology_of(self._options, world, host, self._engines, self.cells.times)
            return TopologyIs(question.id, topology)
        if isinstance(question, GetStacks):
            stacks = await self._inspector.stacks(question.ranks, is_twice=question.is_twice)
            return StacksAre(question.id, stacks)
        if isinstance(question, GetTrace):
            return await self._trace(question)
        if isinstance(question, GetOutput):
            return await self._output(question)
        ranks = self._world.ranks
        return CellStatusReply(
            question.id,
            self.cells.unfinished(has_seen_all=self._is_end_seen),
            self._marks,
            tuple(
                RankDeath(rank, self._host.layout.name_of(rank), reason, ranks.loss(rank).at_s)
                for rank, reason in ranks.dead.items()
            ),
            self._backlog.returns,
            self._backlog.every_start,
            dict(self.cells.begun),
        )

    async def _trace(self, question: GetTrace) -> TraceIs:
        """Read all flight recorders, each in the clock of its host."""
        clocks, found = await self._host.traces()
        records, dropped = zip(*found, strict=True)
        now = time.monotonic_ns()
        return TraceIs(question.id, now, clocks, self._host.layout.hosts, records, dropped)

    async def _output(self, question: GetOutput) -> FromRoot:
        if question.rank not in self._host.ranks:
            return Failed(question.id, f"there is no rank {question.rank}")
        piece = await self._host.read_shown(question.rank, question.since, question.max_lines)
        left_out = piece.left_out_nbytes, piece.left_out_lines
        return OutputIs(question.id, piece.text, piece.end, *left_out)


class WorldEntry:
    """Have all ranks enter the present epoch, and wait for them.

    ``missing`` has the ranks that have not answered. If one cannot enter, the others are freed.
    """

    def __init__(self, world: WorldState, host: HostSet, membership: MembershipCoordinator) -> None:
        self.missing: set[int] = set()
        self._world = world
        self._host = host
        self._membership = membership
        self._number = 0
        self._failed: dict[int, tuple[str, str]] = {}
        self._changed = asyncio.Event()
        world.ranks.subscribe(lost=self._on_lost)

    async def run(self) -> dict[int, tuple[str, str]]:
        """Order the ranks to enter; return the errors by rank."""
        self._number += 1
        self.missing, self._failed = self._world.alive, {}
        for rank in self.missing:
            self._host.send(rank, EnterWorld(self._number))
        while self.missing:
            self._changed.clear()
            limit_s = REFUSED_S if self._failed else ENTRY_S
            try:
                await asyncio.wait_for(self._changed.wait(), limit_s)
            except asyncio.TimeoutError:
                late = "DistributedError", "it did not join the group in time"
                return {**dict.fromkeys(self.missing, late), **self._failed}
        return self._failed

    def take(self, rank: int, entered: Entered) -> None:
        """Record a rank's answer."""
        if entered.id == self._number:
            if entered.ename:
                why = f"could not join: {entered.ename}: {entered.evalue}"
                self._membership.release_waiters(rank, why)
            self._end(rank, entered.ename, entered.evalue)

    def _on_lost(self, rank: int) -> None:
        self._end(rank, "RankFailure", self._world.dead[rank])

    def _end(self, rank: int, ename: str, evalue: str) -> None:
        if rank in self.missing:
            self.missing = self.missing - {rank}
            if ename:
                self._failed[rank] = ename, evalue
            self._changed.set()

    def stop(self) -> None:
        """Interrupt the ranks that are entering."""
        for rank in self.missing:
            self._host.send(rank, StopCell(ENTRY, f"entry {self._number}"))


class CellScheduler:
    """Decide when cells may begin, and record their ends.

    Parameters
    ----------
    spawn_task : callable
        Runs a coroutine as a task of the root, cancelled when the root ends.
    """

    def __init__(
        self,
        world: WorldState,
        host: HostSet,
        membership: MembershipCoordinator,
        restarts: Restarts,
        inspector: RankInspector,
        answers: QueryService,
        watch: StallWatcher,
        spawn_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._world = world
        self._host = host
        self._membership = membership
        self._restarts = restarts
        self._inspector = inspector
        self._answers = answers
        self._watch = watch
        self._spawn_task = spawn_task
        self.entry = WorldEntry(world, host, membership)
        self._ended = asyncio.Condition()
        self._announced: set[str] = set()  # cells that wait for permission to begin
        world.ranks.subscribe(lost=lambda _rank: self.ended())

    def announce(self, cell: str) -> None:
        """Record that a cell waits for permission; `begin` must follow."""
        self._announced.add(cell)

    async def begin(
        self, request: BeginCell, still_wanted: Callable[[], bool]
    ) -> CellAllowed | Failed:
        """Let a cell begin once its ranks are free; return the reply."""

        def busy() -> set[int]:
            return (self.entry.missing | self._world.unfinished()).intersection(request.ranks)

        async def wait() -> None:
            async with self._ended:
                await self._ended.wait_for(lambda: not busy())

        if unknown := set(request.ranks) - set(range(self._world.size)):  # the cell would never end
            self._announced.discard(request.cell)
            return Failed(request.id, f"there is no {name_ranks(unknown)}")
        await self._restarts.settled(request.ranks, RESTART_WAIT_S)
        try:
            await asyncio.wait_for(wait(), UNFINISHED_WAIT_S)
        except asyncio.TimeoutError:
            stacks = await self._inspector.stacks(busy(), is_twice=True)
            if busy():
                self._announced.discard(request.cell)
                return Failed(request.id, say_busy(stacks))
        is_wanted = request.cell in self._announced and still_wanted()
        self._announced.discard(request.cell)
        if not is_wanted:
            return Failed(request.id, "the cell was taken back")
        # A rank reports an abort before the end of its cell. Any other abort is known from the
        # control page.
        reason = self._host.abort_reason(self._world.epoch)
        if reason is not None:
            self._membership.send_all(self._world.abort(self._world.epoch, reason[2]))
        self._answers.begin_cell(request.cell, request.ranks, request.title)
        allowed = self._world.begin_cell(request.id, request.cell, request.ranks)
        self._host.take(WatchRanks(is_on=True))
        if allowed.reform:  # also for threads that outlived the previous cell
            self._membership.welcome_asking()
            failed = await self.entry.run()
            return msgspec.structs.replace(allowed, failed=failed)
        return allowed

    def forget(self, message: CancelCell) -> None:
        """Cancel an announced cell on ranks that were not sent it.

        Without ``message.ranks`` the cell was sent to no rank.
        """
        if not message.ranks:
            self._announced.discard(message.cell)
            if self._world.forget_cell(message.cell):
                self.entry.stop()
            self._answers.cells.forget(message.cell)
        for rank in set(message.ranks).intersection(range(self._world.size)):
            self._world.end_cell(rank, message.cell, ok=False)
            never = CellEnded(
                message.cell, ok=False, ename="CellLost", evalue="it was never sent here"
            )
            self._answers.cells.end(rank, never)
        self.ended()
        self._watch.look()

    def end(self, rank: int, message: CellEnded) -> None:
        """Record that a rank's part of a cell is over."""
        self._world.end_cell(
            rank, message.cell, ok=message.ok, has_background_threads=message.has_background_threads
        )
        self._answers.cells.end(rank, message)
        self.ended()
        self._membership.look()
        self._watch.look()

    def entered(self, rank: int, message: Entered) -> None:
        """Record that a rank has entered the epoch, or why not."""
        self.entry.take(rank, message)
        self.ended()

    def ended(self) -> None:
        """Wake the waiting cells, which then check again which ranks are busy."""
        self._host.take(WatchRanks(is_on=bool(self._world.unfinished())))
        self._spawn_task(self._notify_ended())

    async def _notify_ended(self) -> None:
        async with self._ended:
            self._ended.notify_all()
