"""What a root can say of its ranks while they run: where they are, and who waits long for whom.

It joins the activity page, the stacks and the world into words; whom it tells is its user's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from phalanx.protocol import RankStack, name_ranks

from ._any_host import Host
from ._dumps import parse_dump
from ._places import place_of
from ._quiet import LongWait, QuietWatch
from ._steady import Steady
from ._world import World

__all__ = ["Lookout"]

LOOK_EVERY_S = 1.0  # a look reads two cache lines a rank
SECOND_LOOK_S = 0.2  # after the first: Python code has gone on by then
MAX_LOOKS = 32  # missing ranks that are looked at for one line


class Lookout:
    """Looks at the ranks from outside; nothing here waits for a rank's Python.

    Parameters
    ----------
    quiet_s : float
        How long an operation may last before it is told of.
    cwd : str
        Where the ranks were started: files are named from there.
    has_cells : bool
        Whether the ranks run cells, and nothing between them.
    tell : callable
        Gets a line for whoever looks on.
    """

    def __init__(
        self,
        host: Host,
        world: World,
        *,
        quiet_s: float,
        cwd: str,
        has_cells: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._host = host
        self._world = world
        self._quiet_s = quiet_s
        self._cwd = cwd
        self._has_cells = has_cells
        self._tell = tell
        self._quiet = QuietWatch(quiet_s)

    async def stacks(self, ranks: Iterable[int], *, is_twice: bool = False) -> dict[int, RankStack]:
        """Where ranks are, of those that there are; ``is_twice``: again, to tell what stays there."""
        chosen = tuple(set(ranks).intersection(self._host.ranks))
        first = await self._look(chosen)
        if not is_twice:
            return first
        await asyncio.sleep(SECOND_LOOK_S)
        second = await self._look(chosen)
        return {
            rank: RankStack(now.doing, now.place, now.frames, now.note, is_still=now == first[rank])
            for rank, now in second.items()
        }

    async def _look(self, ranks: tuple[int, ...]) -> dict[int, RankStack]:
        # All at once: one rank that does not answer costs half a second, not each.
        found = await asyncio.gather(*(self._stack(rank) for rank in ranks))
        return dict(zip(ranks, found, strict=True))

    async def _stack(self, rank: int) -> RankStack:
        if rank in self._world.dead:
            return RankStack(note=f"dead: {self._world.dead[rank]}")
        is_stopped, dump = await self._host.look(rank)
        if is_stopped:
            return RankStack(note="stopped (frozen)")
        doing = self._host.activity(rank).doing
        if dump is None:
            return RankStack(doing, note="in a program that has not called px.init()")
        if not dump:
            return RankStack(doing, note="without an answer from its Python")
        place = place_of(parse_dump(dump), self._cwd)
        if place.is_asking:
            doing = "waiting for input"
        if place.text:
            return RankStack(doing, place.text, place.frames)
        is_idle = self._has_cells and self._world.state(rank) == "idle"
        return RankStack(doing, note="between cells" if is_idle else "in no code of yours")

    async def watch(self, ranks: Callable[[], Collection[int]]) -> None:
        """Tell of each operation that lasts long, while there are ``ranks`` to look at."""
        steady = Steady("a look for long operations")
        while True:
            await asyncio.sleep(min(LOOK_EVERY_S, self._quiet_s / 4))
            with steady.look():
                await self._tell_of_waits(ranks())

    async def _tell_of_waits(self, ranks: Collection[int]) -> None:
        if not ranks:
            return
        await self._host.refresh()  # of other hosts the last word may be old
        waits = self._quiet.look(
            {rank: self._host.activity(rank) for rank in ranks},
            epoch=self._world.epoch,
            splits=self._world.splits,
            now_s=asyncio.get_running_loop().time(),
        )
        for wait in waits:
            self._tell(await self._line(wait))

    async def _line(self, wait: LongWait) -> str:
        verb = "has" if len(wait.waiting) == 1 else "have"
        who = f"{name_ranks(wait.waiting)} {verb}"
        if not wait.missing:
            return f"{who} been in {wait.what} for {self._quiet_s:g} s; nobody is missing"
        stacks = await self.stacks(wait.missing[:MAX_LOOKS])
        parts: dict[str, list[int]] = {}
        for rank in wait.missing:
            words = [stacks[rank].summary] if rank in stacks else []
            words += [wait.last[rank]] if rank in wait.last else []
            parts.setdefault(", ".join(words), []).append(rank)
        missing = "; ".join(f"{name_ranks(ranks)}, {words}" for words, ranks in parts.items())
        return f"{who} waited {self._quiet_s:g} s in {wait.what}; missing: {missing}"
