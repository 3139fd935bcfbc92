"""What any client of a workspace may ask, owner or watcher: how things stand, what was shown.

It reads the root's state and changes nothing but the marks of what somebody has seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from phalanx.protocol import (
    BootOptions,
    Failed,
    FromRoot,
    GetOutput,
    GetStacks,
    GetStanding,
    GetTopology,
    GetTrace,
    OutputIs,
    StacksAre,
    StandingIs,
    TopologyIs,
    TraceIs,
)

from ._any_host import Host
from ._cell_log import CellLog
from ._lookout import Lookout
from ._missed import Missed
from ._picture import topology_of
from ._world import World

log = logging.getLogger(__name__)

__all__ = ["Answers", "Question"]

Question = GetTopology | GetStacks | GetTrace | GetOutput | GetStanding


class Answers:
    """Answers questions; made of the parts of the root that know."""

    def __init__(
        self,
        options: BootOptions,
        world: World,
        host: Host,
        lookout: Lookout,
        engines: Sequence[str],
        ready: AbstractSet[int],
    ) -> None:
        self.cells = CellLog()
        self.missed = Missed()
        self._options = options
        self._world = world
        self._host = host
        self._lookout = lookout
        self._engines = engines
        self._ready = ready
        self._marks = dict.fromkeys(range(options.ranks), 0)  # shown when the last owner went
        self._is_end_seen = True  # whether the end of the last cell was told to its owner

    def mark(self) -> None:
        """Remember how far things have come: what follows, the owner does not see."""
        self._marks = {rank: self._host.shown_nbytes(rank) for rank in self._marks}
        self._is_end_seen = not self._world.unfinished()

    def begin_cell(self, cell: str, ranks: tuple[int, ...]) -> None:
        """Note a cell that its owner is about to send."""
        self.cells.begin(cell, ranks, {rank: self._host.shown_nbytes(rank) for rank in ranks})
        self._is_end_seen = True

    def lose(self, rank: int, reason: str) -> None:
        """Note a rank's death."""
        self.cells.lose(rank)
        self.missed.lose(rank, reason)

    def revive(self, rank: int) -> None:
        """Note that a dead rank was replaced."""
        self.cells.revive(rank)
        self.missed.revive(rank, self._engines[rank])

    async def answer(self, question: Question) -> FromRoot:
        """Answer one question; one that cannot be answered must not end the workspace."""
        try:
            return await self._answer(question)
        except Exception as error:
            log.exception("a question could not be answered")
            return Failed(question.id, f"the supervisor cannot tell: {error}")

    async def _answer(self, question: Question) -> FromRoot:
        if isinstance(question, GetTopology):
            world, host = self._world, self._host
            await host.refresh()
            topology = topology_of(self._options, world, host, self._engines, self._ready)
            return TopologyIs(question.id, topology)
        if isinstance(question, GetStacks):
            stacks = await self._lookout.stacks(question.ranks, is_twice=question.is_twice)
            return StacksAre(question.id, stacks)
        if isinstance(question, GetTrace):
            return await self._trace(question)
        if isinstance(question, GetOutput):
            return await self._output(question)
        return StandingIs(
            question.id,
            self.cells.standing(has_seen_all=self._is_end_seen),
            self._marks,
            self.missed.deaths(self._world.dead, self._host.layout.name_of),
            self.missed.returns,
            self.missed.every_start,
        )

    async def _trace(self, question: GetTrace) -> TraceIs:
        """Read all recorders, each on its host, whose clock it is in."""
        clocks, found = await self._host.traces()
        records, dropped = zip(*found, strict=True)
        now = time.monotonic_ns()
        return TraceIs(question.id, now, clocks, self._host.layout.hosts, records, dropped)

    async def _output(self, question: GetOutput) -> FromRoot:
        piece = await self._host.read_shown(question.rank, question.since, question.max_lines)
        if piece is None:
            return Failed(question.id, f"there is no rank {question.rank}")
        left_out = piece.left_out_nbytes, piece.left_out_lines
        return OutputIs(question.id, piece.text, piece.end, *left_out)
