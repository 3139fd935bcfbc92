"""Find out what ranks do, and where their code is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

import msgspec

from phalanx.protocol import SHOWS_ERROR, RankStack

from ..health.stack_reader import parse_dump, place_of
from ..health.waits import Activities
from ..hosts.host_set import HostSet
from ..world.state import WorldState

BETWEEN_CELLS = "between cells"
SECOND_LOOK_S = 0.2  # delay after the first stack dump: running Python code has moved on by then


def activities_of(ranks: Collection[int], world: WorldState, host: HostSet) -> Activities:
    """Return what these ranks do now."""
    return Activities(
        {rank: host.activity(rank) for rank in sorted(ranks)}, world.epoch, world.splits
    )


class RankInspector:
    """Inspect the ranks from outside, without waiting for their Python.

    File names are shown relative to ``cwd``.
    """

    def __init__(self, host: HostSet, world: WorldState, cwd: str) -> None:
        self._host = host
        self._world = world
        self._cwd = cwd

    async def stacks(self, ranks: Iterable[int], *, is_twice: bool = False) -> dict[int, RankStack]:
        """Return the stacks of those ``ranks`` that exist.

        With ``is_twice`` a second dump shows which ranks stay where they are (``is_still``).
        """
        chosen = tuple(set(ranks).intersection(self._host.ranks))
        first = await self._look(chosen)
        if not is_twice:
            return first
        await asyncio.sleep(SECOND_LOOK_S)
        second = await self._look(chosen)
        return {
            rank: msgspec.structs.replace(
                now, is_still=now == first[rank] and now.doing != SHOWS_ERROR
            )
            for rank, now in second.items()
        }

    async def _look(self, ranks: tuple[int, ...]) -> dict[int, RankStack]:
        # All at once: each rank that does not answer costs 0.5 s.
        found = await asyncio.gather(*(self._stack(rank) for rank in ranks))
        return dict(zip(ranks, found, strict=True))

    async def _stack(self, rank: int) -> RankStack:
        if rank in self._world.dead and self._host.statuses[rank] is not None:
            return RankStack(note=f"dead: {self._world.dead[rank]}")
        looked = await self._host.look(rank)
        dump = looked.dump
        if looked.is_stopped:
            return RankStack(note="stopped (frozen)", is_silent=True)
        doing = self._host.activity(rank).doing
        if dump is None:
            return RankStack(doing, note="in a program that has not called px.init()")
        if not dump:
            return RankStack(doing, note="without an answer from its Python", is_silent=True)
        place = place_of(parse_dump(dump), self._cwd)
        if place.is_showing:
            return RankStack(SHOWS_ERROR)
        if place.is_asking:
            doing = "waiting for input"
        if place.text:
            return RankStack(doing, place.text, place.frames)
        is_idle = self._world.has_cells and self._world.state(rank) in {"idle", "starting"}
        return RankStack(doing, note=BETWEEN_CELLS if is_idle else "in no code of yours")
