"""What the live topology sends: the world as it stands, and its ranks as they are now.

Pure: `phalanx.protocol.Topology` and times in, records out; ``js/src/topology/state.ts`` reads them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from phalanx.protocol import RankInfo, Topology

from ._in_use import UseFrame
from ._link_words import LinkFrame
from ._rates import LinkRate
from ._svg import clean
from ._world import State, arenas, state_of

__all__ = ["Frame", "RankFrame", "Status", "Timeline", "WorldFrame", "world_of"]

Status = Literal["live", "silent", "gone"]


class HostFrame(msgspec.Struct, frozen=True):
    """A host, as far as it is drawn."""

    index: int
    name: str
    address: str
    cores: int
    device: str = ""


class WorldFrame(msgspec.Struct, frozen=True):
    """What does not change while a world stands; ``home`` is the host of each rank."""

    name: str
    hosts: tuple[HostFrame, ...]
    home: tuple[int, ...]
    arenas: tuple[tuple[int, ...], ...]
    tcp: tuple[tuple[int, int], ...]
    measured: tuple[LinkFrame, ...] = ()


class RankFrame(msgspec.Struct, frozen=True):
    """A rank now. ``since``: of `time.time`; ``last`` is the operation that it was seen in before."""

    state: State
    since: float
    pid: int
    rss: int
    detail: str
    last: str


class Frame(msgspec.Struct, frozen=True):
    """All ranks now; ``why`` says what a person has to know where the status is not "live".

    ``links`` are the wires that something moves on, ``arena`` bytes per second of each rank,
    ``uses`` the algorithms that their operations took, ``measuring`` how far a measurement of the
    links is; empty while there is none.
    """

    status: Status
    why: str
    epoch: int
    now: float
    ranks: tuple[RankFrame, ...]
    links: tuple[LinkRate, ...] = ()
    arena: tuple[float, ...] = ()
    uses: tuple[UseFrame, ...] = ()
    measuring: str = ""


def world_of(t: Topology, measured: tuple[LinkFrame, ...] = ()) -> WorldFrame:
    """Return what there is to draw once; ``measured`` are links that somebody has asked about."""
    found = arenas(t)
    shared = [tuple(sorted(its)) for host in t.hosts for its in found.get(host.index, ())]
    return WorldFrame(
        clean(t.name),
        tuple(
            HostFrame(h.index, clean(h.name), clean(h.address), h.cores, clean(h.device))
            for h in t.hosts
        ),
        tuple(r.host for r in t.ranks),
        tuple(shared),
        tuple((link.a, link.b) for link in t.links if link.transport == "tcp"),
        measured,
    )


class Timeline:
    """Remembers since when each rank is in its state, and what it was in before.

    Times are those of this process: a state is as old as the look that saw it first.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, RankFrame] = {}

    def take(self, t: Topology, now: float) -> Frame:
        """Return the frame of a topology that was seen at ``now``."""
        for info in t.ranks:
            self._ranks[info.rank] = self._rank(info, now)
        return Frame("live", "", t.epoch, now, tuple(self._ranks[i.rank] for i in t.ranks))

    def _rank(self, info: RankInfo, now: float) -> RankFrame:
        before = self._ranks.get(info.rank)
        state, detail = state_of(info), clean(info.detail)
        is_same = before is not None and (before.state, before.pid, _key(before.detail)) == (
            state,
            info.pid,
            _key(detail),
        )
        since, last = now, ""
        if before is not None:
            if is_same:
                since = before.since
            was_in = before.state == "collective" and not is_same
            last = before.detail.removeprefix("in ") if was_in else before.last
            last = last if before.pid == info.pid else ""
        # Three figures: what a person reads, and no news where only a page came or went.
        rss = int(float(f"{info.rss_nbytes:.3g}"))
        return RankFrame(state, since, info.pid, rss, detail, last)


def _key(detail: str) -> str:
    """The operation without its place in the source, which is known a moment later."""
    return detail.partition(" at ")[0]
