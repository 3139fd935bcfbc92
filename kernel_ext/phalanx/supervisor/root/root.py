"""Run the ranks of a world and watch them.

`Root` is the base class of both roots.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from phalanx.distributed.control import AbortKind
from phalanx.protocol import BootOptions, BootProgress, Notice, ToSupervisor, name_ranks
from phalanx.protocol.host import FromCommand

from ..health.deadlock import Deadlock, DeadlockSearch, find_deadlock
from ..health.waits import Activities, ImpossibleWaitSearch, LongWait, SlowOperationDetector
from ..hosts.host_set import HostSet
from ..tasks import TaskSet, poll
from ..world.membership import MembershipCoordinator
from ..world.state import WorldState
from .inspector import RankInspector, activities_of

LOOK_S = 0.25  # this, the following checks and SEND_S end a deadlock within 2 s
LOOK_AGAIN_S = 0.06  # after a suspicious check: waiting ranks update their activity every 50 ms
# On one machine a full socket buffer drains at once, or at the kernel's second probe (after 0.2 s
# and another 0.4 s).
SEND_S = 1.0
MAX_LOOKS = 32  # most missing ranks to inspect for one line of text


class Root(ABC):
    """Run the ranks of one world until it ends.

    `HostSet` calls the ``on_`` methods and `tell`. `_look_at_waits` reads the ranks' activity pages:
    it frees ranks that wait for a rank that has gone or for each other, and reports long waits.
    """

    def __init__(self, options: BootOptions, world: WorldState) -> None:
        self._boot = options
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._tasks = TaskSet(lambda _error: self.end())
        self._world = world
        self._host = HostSet(options, self)
        self._membership = MembershipCoordinator(options, world, self._host)
        self._inspector = RankInspector(self._host, world, options.cwd)
        self._impossible_waits = ImpossibleWaitSearch()
        self._slow_operations = SlowOperationDetector(options.slow_operation_s)
        self._reported: frozenset[object] = frozenset()  # waits of the last reported deadlock

    async def run(self) -> None:
        """Start the ranks, and end them when the world is over."""
        try:
            await self._host.open()  # may wait for a name server
            if not self._over.is_set():
                self._start()
            if not self._over.is_set():
                self._tasks.spawn(self._host.watch_health(self._awaited))
                # Other hosts are asked each time, and answer later.
                every_s = LOOK_S * (1 if len(self._host.every) == 1 else 2)
                self._tasks.spawn(poll(every_s, "a look at waiting ranks", self._look_at_waits))
                await self._over.wait()
        finally:
            self._tasks.cancel()
            await self._stop()

    def end(self) -> None:
        """End the world, because of a signal, a request or an error."""
        self._over.set()

    # -- ranks that wait in vain or for long --------------------------------------------------

    def on_frozen(self, rank: int, reason: str) -> None:
        """Free the ranks that may wait for a frozen one.

        `HeartbeatMonitor` finds it, and calls this repeatedly while the rank has no heartbeat.
        """
        awaited = self._awaited()
        if rank in awaited and len(awaited) > 1:
            self._membership.free_waiters(rank, reason)

    async def _look_at_waits(self) -> None:
        """Free the ranks that wait in vain; report long waits."""
        if not self._running():
            return  # an idle workspace costs nothing
        stand = self._stand()
        is_new = await self._host.refresh()
        _, _, running, gone = stand
        now_s = self._loop.time()
        seen = activities_of(self._world.alive | gone, self._world, self._host)
        # Ranks that went on meanwhile, maybe in another cell, are looked at next time.
        if is_new and stand == self._stand():
            ended = self._world.dead.keys()
            found = self._impossible_waits.look(
                seen, now_s=now_s, running=running, gone=gone, ended=ended
            )
            if found is not None:
                reason = f"{self._world.absence_reason(found.missing)}; {found}"
                self._membership.free_waiters(found.missing, reason)
        if is_new and sum(its.wait is not None for its in seen.by_rank.values()) > 1:
            deadlock = await self._find_certain_deadlock()
            if deadlock is not None:
                self._membership.abort(AbortKind.MISMATCH, str(deadlock))
        await self._report_slow_operations(seen, now_s)

    def _stand(self) -> tuple[int, str, set[int], set[int]]:
        """Return epoch, newest cell, and the ranks that run and are gone."""
        # A rank that waits in px.recover() joins no operation until all others wait there too.
        world, asking = self._world, self._world.asking
        running, gone = set(self._running()) - asking, set(self._gone()) | asking
        return world.epoch, world.cells.newest, running, gone

    async def _find_certain_deadlock(self) -> Deadlock | None:
        """Look again and again while the ranks look deadlocked."""
        send_s = SEND_S
        if len(self._host.layout.names) > 1:
            # So long a network between hosts may fail while a large message is in transit.
            send_s = max(SEND_S, self._boot.world.heartbeat_timeout_s - SEND_S)
        search = DeadlockSearch(send_s)
        while running := set(self._running()) - self._world.asking:
            seen = activities_of(self._world.alive, self._world, self._host)
            found = search.look(seen, now_s=self._loop.time(), running=running)
            if found is not None or not search.is_suspicious:
                return found
            await asyncio.sleep(LOOK_AGAIN_S)
            if not await self._host.refresh():
                break  # the data of another host may be out of date
        return None

    async def _report_slow_operations(self, seen: Activities, now_s: float) -> None:
        """Report each operation that lasts ``slow_operation_s``."""
        ranks = self._awaited()
        living = {rank: its for rank, its in seen.by_rank.items() if rank in ranks}
        seen = seen._replace(by_rank=living)
        waits = self._slow_operations.look(seen, now_s=now_s)
        for wait in waits:
            self.tell(Notice(await self._say_wait(wait)))
        if not waits:
            return
        found = find_deadlock(seen, running=ranks, with_threads=True)
        if found is not None and found.acting and found.waits != self._reported:
            self._reported = found.waits
            others = f"{name_ranks(found.acting)} may go on in another thread"
            self.tell(Notice(f"{found}; nothing is raised, as {others}"))

    async def _say_wait(self, wait: LongWait) -> str:
        verb, for_s = "has" if len(wait.waiting) == 1 else "have", self._boot.slow_operation_s
        who = f"{name_ranks(wait.waiting)} {verb}"
        if not wait.missing:
            return f"{who} been in {wait.what} for {for_s:g} s; nobody is missing"
        stacks = await self._inspector.stacks(wait.missing[:MAX_LOOKS])
        parts: dict[str, list[int]] = {}
        for rank in wait.missing:
            words = [stacks[rank].summary] if rank in stacks else []
            words += [wait.last[rank]] if rank in wait.last else []
            parts.setdefault(", ".join(words), []).append(rank)
        missing = "; ".join(f"{name_ranks(ranks)}, {words}" for words, ranks in parts.items())
        return f"{who} waited {for_s:g} s in {wait.what}; missing: {missing}"

    @abstractmethod
    def _start(self) -> None:
        """Start the ranks."""

    @abstractmethod
    async def _stop(self) -> None:
        """End the ranks and close."""

    @abstractmethod
    def tell(self, message: BootProgress | Notice) -> None:
        """Send a message to the clients."""

    @abstractmethod
    def _running(self) -> Collection[int]:
        """Return the ranks that run code of the user."""

    @abstractmethod
    def _gone(self) -> Collection[int]:
        """Return the ranks that join no operation of the running ones."""

    def _awaited(self) -> Collection[int]:
        """Return the ranks that others may wait for.

        All that live, while a rank runs code.
        """
        return self._world.alive if self._running() else ()

    @abstractmethod
    def on_message(self, rank: int, message: ToSupervisor) -> None:
        """Answer or record a message that a rank sent on its channel."""

    @abstractmethod
    def on_lost(self, rank: int, reason: str, tail: str) -> None:
        """Handle the end of a rank's process.

        ``reason`` says how it ended. ``tail`` is the last output of the process.
        """

    @abstractmethod
    def on_command(self, message: FromCommand) -> None:
        """Handle a message about a rank's command."""

    @abstractmethod
    def on_not_up(self, reasons: Sequence[str]) -> None:
        """Give up: hosts could not be started.

        Called once every other host is up. ``reasons`` has one text for each failed host.
        """
