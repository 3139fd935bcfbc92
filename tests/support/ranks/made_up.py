"""A workspace as far as live widgets look at one: what there is to see is set by the test."""

from __future__ import annotations

from phalanx.errors import DistributedError
from phalanx.protocol import (
    LinkMeasurement,
    LinksProgress,
    RankSample,
    RankState,
    Samples,
    WorldTopology,
)
from phalanx.workspace import SampleView, Trace


class MadeUp:
    """It stands as ``world`` says, until there is a reason (``why``) that it cannot be seen."""

    def __init__(self, world: WorldTopology, trace: Trace | None = None) -> None:
        self.world, self.name, self.size = world, world.name, world.size
        self.recorded = trace
        self.new: tuple[Samples, ...] = ()
        self.measured_links: tuple[LinkMeasurement, ...] = ()
        self.links_progress: LinksProgress | None = None
        self.why = self.why_lost = ""
        self.is_running, self.was_left = True, False
        self.n_ended = 0

    def _look(self) -> None:
        if self.why:
            raise DistributedError(self.why)

    def topology(self) -> WorldTopology:
        self._look()
        return self.world

    def trace(self) -> Trace:
        self._look()
        assert self.recorded is not None
        return self.recorded

    def samples(self, after: int = 0) -> SampleView:
        self._look()
        return SampleView(tuple(its for its in self.new if its.number > after))


def sample(
    number: int,
    *,
    at_s: float,
    moved: int = 0,
    state: RankState = "busy",
) -> Samples:
    """Two ranks that have sent so many bytes to each other, over a wire."""
    ranks = tuple(
        RankSample(rank, 7, state, "", 0, 0, 0, 0, {1 - rank: (moved, 0)}) for rank in range(2)
    )
    return Samples(number, int(at_s * 1e9), 0.0, 1, ranks, (), 0, (), ())
