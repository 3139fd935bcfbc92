"""Looking after a cell that has ended on some ranks and not on others.

It joins the world, the page and the clock; the verdict itself is `_hopeless`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ._any_host import Host
from ._hopeless import Hopeless, HopelessSearch
from ._steady import Steady
from ._world import World

__all__ = ["CellWatch"]

LOOK_EVERY_S = 0.05  # a look reads two cache lines a rank, and only while a cell is partly over


class CellWatch:
    """Calls ``on_hopeless`` once an operation of the running cell can never complete."""

    def __init__(self, world: World, host: Host, on_hopeless: Callable[[Hopeless], None]) -> None:
        self._world = world
        self._host = host
        self._on_hopeless = on_hopeless
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._search = HopelessSearch()
        self._steady = Steady("a look for operations that nobody can complete")

    def look(self) -> None:
        """Look now, and again and again while the cell is partly over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Who waits in px.recover() comes to no operation before the others do so, too.
        asking = self._world.asking
        running, gone = self._world.unfinished() - asking, self._world.gone() | asking
        if not running or not gone:
            return
        self._timer = self._loop.call_later(LOOK_EVERY_S, self.look)
        with self._steady.look():
            found = self._search.look(
                {rank: self._host.activity(rank) for rank in running | gone},
                now_s=self._loop.time(),
                epoch=self._world.epoch,
                running=running,
                gone=gone,
                splits=self._world.splits,
            )
            if found is not None:
                self._on_hopeless(found)
