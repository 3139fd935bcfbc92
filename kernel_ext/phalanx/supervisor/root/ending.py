"""End ranks in order: ask them, wait, kill the rest."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Collection

from phalanx.protocol import RankStack, say_killed, say_killed_at_once
from phalanx.protocol.host import EndRank, SignalRank

from ..hosts.host_set import HostSet
from .observers import BETWEEN_CELLS, RankInspector

LOOK_S = 1.0  # of the grace: two looks at ranks in C code take 0.2 s and up to 0.6 s each


class RankEnding:
    """End ranks at a stop or a restart, within ``grace_s``."""

    def __init__(self, host: HostSet, inspector: RankInspector, grace_s: float) -> None:
        self._host = host
        self._inspector = inspector
        self._grace_s = grace_s
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._hurried: set[int] = set()

    def on_lost(self) -> None:
        """Look again which ranks have ended."""
        self._changed.set()

    def hurry(self, ranks: Collection[int]) -> None:
        """Kill ranks that are being ended: a second request came."""
        self._hurried.update(ranks)
        self._changed.set()

    async def end(self, ranks: Collection[int]) -> dict[int, RankStack]:
        """Interrupt the cell of these ranks and let them end.

        Returns
        -------
        dict of int to RankStack
            The ranks that were killed, and where they were.
        """
        self._hurried.difference_update(ranks)
        ranks = self._alive(ranks)
        for rank in ranks:
            self._host.take(EndRank(rank))
        until_s = self._loop.time() + self._grace_s
        look_s = min(LOOK_S, self._grace_s / 2)
        late = await self._wait(ranks, until_s - look_s)
        if not late:
            return {}
        seeing = asyncio.ensure_future(self._inspector.stacks(late, is_twice=True))
        try:
            late = await self._wait(late, until_s)
            found = seeing.result() if seeing.done() else {}
        finally:
            seeing.cancel()
        for rank in late:
            self._host.take(SignalRank(rank, signal.SIGKILL))
        return {rank: _at_end(found.get(rank)) for rank in late}

    def say(self, killed: dict[int, RankStack]) -> str:
        """Name in one line the ranks that `end` has killed."""
        at_once = self._hurried.intersection(killed)
        if at_once:
            return say_killed_at_once(killed)
        return say_killed(killed, self._grace_s) if killed else ""

    def _alive(self, ranks: Collection[int]) -> list[int]:
        return [rank for rank in sorted(ranks) if self._host.statuses[rank] is None]

    async def _wait(self, ranks: Collection[int], until_s: float) -> list[int]:
        """Wait until ``until_s`` for ranks to end; return those that live."""
        while late := self._alive(ranks):
            left_s = until_s - self._loop.time()
            if left_s <= 0 or self._hurried.intersection(late):
                break
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        return late


def _at_end(stack: RankStack | None) -> RankStack:
    """Return where a rank is that was asked to end."""
    if stack is None:  # the second stop came before the look
        return RankStack(note="at an unknown place")
    return RankStack(note="in atexit") if stack.summary == BETWEEN_CELLS else stack
