"""When a cell may begin, and what follows from its end: the root's side of cells.

It joins the world, the ranks that are being replaced and those that are still busy; what a cell
says and who runs it is its client's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from phalanx.protocol import (
    BeginCell,
    CellAllowed,
    CellEnded,
    Failed,
    ForgetCell,
    name_ranks,
    say_busy,
)

from ._answers import Answers
from ._any_host import Host
from ._cell_watch import CellWatch
from ._lookout import Lookout
from ._membership import Membership
from ._restart import Restarts
from ._world import World

__all__ = ["Cells"]

RESTART_WAIT_S = 5.0  # and for ranks that are being replaced; less than a client waits for leave
UNFINISHED_WAIT_S = 2.0  # how long a new cell waits for ranks that still run the last one


class Cells:
    """Gives cells leave to begin, and learns of their ends.

    Parameters
    ----------
    spawn_task : callable
        Runs a coroutine for as long as the root lives.
    """

    def __init__(
        self,
        world: World,
        host: Host,
        membership: Membership,
        restarts: Restarts,
        lookout: Lookout,
        answers: Answers,
        watch: CellWatch,
        spawn_task: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._world = world
        self._host = host
        self._membership = membership
        self._restarts = restarts
        self._lookout = lookout
        self._answers = answers
        self._watch = watch
        self._spawn_task = spawn_task
        self._ended = asyncio.Condition()
        self._announced: set[str] = set()  # cells that wait for leave to begin

    def announce(self, cell: str) -> None:
        """Note that a cell waits for leave; `begin` must follow."""
        self._announced.add(cell)

    async def begin(
        self, request: BeginCell, still_wanted: Callable[[], bool]
    ) -> CellAllowed | Failed:
        """Let a cell begin as soon as its ranks are free; the answer to its client."""

        def busy() -> set[int]:
            return self._world.unfinished().intersection(request.ranks)

        async def wait() -> None:
            async with self._ended:
                await self._ended.wait_for(lambda: not busy())

        if unknown := set(request.ranks) - set(range(self._world.size)):  # they would never end
            self._announced.discard(request.cell)
            return Failed(request.id, f"there is no {name_ranks(unknown)}")
        await self._restarts.settled(request.ranks, RESTART_WAIT_S)
        try:
            await asyncio.wait_for(wait(), UNFINISHED_WAIT_S)
        except asyncio.TimeoutError:
            stacks = await self._lookout.stacks(busy(), is_twice=True)
            if busy():
                self._announced.discard(request.cell)
                return Failed(request.id, say_busy(stacks))
        is_wanted = request.cell in self._announced and still_wanted()
        self._announced.discard(request.cell)
        if not is_wanted:
            return Failed(request.id, "the cell was taken back")
        # A rank tells of an abort before it ends its cell; the page knows of any other.
        reason = self._host.abort_reason(self._world.epoch)
        if reason is not None:
            self._membership.send_all(self._world.abort(self._world.epoch, reason[2]))
        self._answers.begin_cell(request.cell, request.ranks)
        allowed = self._world.begin_cell(request.id, request.cell, request.ranks)
        self._host.watch(is_on=True)
        if allowed.reform:  # also for threads that live on from the cell before
            self._membership.welcome_asking()
        return allowed

    def forget(self, message: ForgetCell) -> None:
        """Take a cell back that was announced and not sent: to these ranks, or to any."""
        if not message.ranks:
            self._announced.discard(message.cell)
            self._world.forget_cell(message.cell)
            self._answers.cells.forget(message.cell)
        for rank in set(message.ranks).intersection(range(self._world.size)):
            self._world.end_cell(rank, message.cell, ok=False)
            never = CellEnded(message.cell, ok=False, error="CellLost: it was never sent here")
            self._answers.cells.end(rank, never)
        self.ended()
        self._watch.look()

    def end(self, rank: int, message: CellEnded) -> None:
        """Note that a rank's part of a cell is over."""
        self._world.end_cell(rank, message.cell, ok=message.ok, lives_on=message.lives_on)
        self._answers.cells.end(rank, message)
        self.ended()
        self._membership.look()
        self._watch.look()

    def ended(self) -> None:
        """Have the cells that wait look who is still busy."""
        self._host.watch(is_on=bool(self._world.unfinished()))
        self._spawn_task(self._notify_ended())

    async def _notify_ended(self) -> None:
        async with self._ended:
            self._ended.notify_all()
