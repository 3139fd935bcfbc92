"""Make the records that the live topology sends.

A `WorldFrame` has the fixed part, a `TopologyFrame` the current state of the ranks.
``js/src/topology/state.ts`` reads them.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from phalanx.protocol import HostInfo, RankInfo, WorldTopology

from ..text.world import State, address, arenas, clean, count, state_of
from . import WidgetFrame
from .links import LinkFrame
from .rates import LinkRate


class HostFrame(msgspec.Struct, frozen=True):
    """A host in words; ``load`` compares its cores with its ranks."""

    index: int
    name: str
    where: str
    load: str


class WorldFrame(msgspec.Struct, frozen=True):
    """The fixed part of a topology; ``home`` has each rank's host."""

    name: str
    hosts: tuple[HostFrame, ...]
    home: tuple[int, ...]
    arenas: tuple[tuple[int, ...], ...]
    tcp: tuple[tuple[int, int], ...]
    measured: tuple[LinkFrame, ...] = ()


class RankFrame(msgspec.Struct, frozen=True):
    """The current state of a rank.

    ``since`` is a time of `time.time`. ``last`` is the operation that the rank was in before.
    """

    state: State
    since: float
    pid: int
    rss: int
    detail: str
    last: str


class TopologyFrame(WidgetFrame, frozen=True):
    """The current state of all ranks.

    ``links`` are the tcp links with traffic. ``arena`` has each rank's bytes per second through
    shared memory. ``measuring`` is the progress of a link measurement, or "".
    """

    epoch: int
    ranks: tuple[RankFrame, ...]
    links: tuple[LinkRate, ...] = ()
    arena: tuple[float, ...] = ()
    measuring: str = ""


def world_of(t: WorldTopology, measured: tuple[LinkFrame, ...] = ()) -> WorldFrame:
    """Return the fixed part of the drawing; ``measured``: measured links."""
    found, n_ranks = arenas(t), Counter(r.host for r in t.ranks)
    shared = [tuple(sorted(its)) for host in t.hosts for its in found.get(host.index, ())]
    return WorldFrame(
        clean(t.name),
        tuple(_host(its, n_ranks[its.index]) for its in t.hosts),
        tuple(r.host for r in t.ranks),
        tuple(shared),
        tuple((link.a, link.b) for link in t.links if link.transport == "tcp"),
        measured,
    )


def _host(host: HostInfo, n_ranks: int) -> HostFrame:
    load = f"{count(n_ranks, 'rank')} on {count(host.cores, 'core')}"
    if 0 < host.cores < n_ranks:
        load += f": {float(f'{n_ranks / host.cores:.2g}'):g} to each, they take turns"
    return HostFrame(host.index, clean(host.name), clean(address(host)), load)


class Timeline:
    """Tracks the start of each rank's state, and its last operation.

    Times are on this process's clock: a state starts at the poll that first sees it.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, RankFrame] = {}

    def take(self, t: WorldTopology, now: float) -> TopologyFrame:
        """Return the frame of a topology received at ``now``."""
        for info in t.ranks:
            self._ranks[info.rank] = self._rank(info, now)
        return TopologyFrame("live", "", now, t.epoch, tuple(self._ranks[i.rank] for i in t.ranks))

    def _rank(self, info: RankInfo, now: float) -> RankFrame:
        before = self._ranks.get(info.rank)
        state, detail = state_of(info), clean(info.detail)
        # Three digits are enough for a person, and avoid an update when only one page changed.
        rss = int(float(f"{info.rss_nbytes:.3g}"))
        if before is None or before.pid != info.pid:
            return RankFrame(state, now, info.pid, rss, detail, last="")
        if (before.state, _key(before.detail)) == (state, _key(detail)):
            return RankFrame(state, before.since, info.pid, rss, detail, before.last)
        last = before.detail.removeprefix("in ") if before.state == "collective" else before.last
        return RankFrame(state, now, info.pid, rss, detail, last)


def _key(detail: str) -> str:
    """Return the operation without its source position.

    The position is known a moment later than the operation.
    """
    return detail.partition(" at ")[0]
