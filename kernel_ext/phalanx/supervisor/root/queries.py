"""Answer clients' questions: the topology, stacks, traces, outputs and cells."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import combinations

from phalanx.protocol import (
    BootOptions,
    CellStatusReply,
    Failed,
    GetCellStatus,
    GetOutput,
    GetStacks,
    GetTopology,
    GetTrace,
    LinkInfo,
    RankInfo,
    RankLost,
    RootAnswer,
    StacksAre,
    TopologyIs,
    TraceIs,
    WorldTopology,
)

from ..hosts.host_set import HostSet
from ..world.state import WorldState
from .inspector import RankInspector
from .replacement import ReplacementBacklog

log = logging.getLogger(__name__)
Query = GetTopology | GetStacks | GetTrace | GetOutput | GetCellStatus  # anybody may ask this


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
        self._backlog = backlog
        self._options = options
        self._world = world
        self._host = host
        self._inspector = inspector
        self._engines = engines
        self._marks = dict.fromkeys(host.ranks, 0)  # bytes shown when the last owner left

    def mark(self) -> None:
        """Record the output and cell ends that the leaving owner has seen.

        The next owner needs everything after this mark.
        """
        self._marks = {rank: self._host.report(rank).shown_nbytes for rank in self._marks}
        self._world.cells.is_end_seen = not self._world.unfinished()

    async def answer(self, question: Query) -> RootAnswer:
        """Answer one question; an error must not end the workspace."""
        try:
            return await self._answer(question)
        except Exception as error:
            log.exception("a question could not be answered")
            return Failed(f"the supervisor cannot tell: {error}")

    async def _answer(self, question: Query) -> RootAnswer:
        if isinstance(question, GetTopology):
            await self._host.refresh()
            return TopologyIs(self._topology())
        if isinstance(question, GetStacks):
            stacks = await self._inspector.stacks(question.ranks, is_twice=question.is_twice)
            return StacksAre(stacks)
        if isinstance(question, GetTrace):
            return await self._trace()
        if isinstance(question, GetOutput):
            if question.rank not in self._host.ranks:
                return Failed(f"there is no rank {question.rank}")
            return await self._host.read_output(question)
        world = self._world
        return CellStatusReply(
            world.cells.statuses(),
            self._marks,
            tuple(
                RankLost(rank, self._host.layout.name_of(rank), reason, at=world.loss(rank).at_s)
                for rank, reason in world.dead.items()
            ),
            self._backlog.returns,
            self._backlog.every_start,
            dict(world.cells.begun),
        )

    def _topology(self) -> WorldTopology:
        world, host, hosts = self._world, self._host, self._host.layout.hosts
        cells = [world.cells.title_on(rank) for rank in host.ranks]
        ranks = tuple(
            RankInfo(
                rank=rank,
                host=hosts[rank],
                pid=host.report(rank).pid,
                state=world.state(rank),
                engine=self._engines[rank],
                # The cause of death, or the current operation.
                detail=world.dead.get(rank)
                or ("in recover" if rank in world.asking else host.report(rank).doing),
                rss_nbytes=0 if rank in world.dead else host.report(rank).rss_nbytes,
                cell=cells[rank][0],
                cell_s=cells[rank][1],
            )
            for rank in host.ranks
        )
        return WorldTopology(
            name=self._options.world.name,
            epoch=world.epoch,
            hosts=host.infos,
            ranks=ranks,
            links=links_of(hosts, self._options.world.transport),
        )

    async def _trace(self) -> TraceIs:
        """Read all flight recorders, each in the clock of its host."""
        clocks, found = await self._host.traces()
        records, dropped = zip(*found, strict=True)
        now = time.monotonic_ns()
        return TraceIs(now, clocks, self._host.layout.hosts, records, dropped)
