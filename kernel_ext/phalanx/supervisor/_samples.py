"""Samples of all ranks for those who watch, three times a second, and nothing for nobody.

Ranks of this machine are read here, those of others by their hosts, which are asked for each look.
What a sample looks like on a screen it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from phalanx.distributed import Compared, ItsClock, Lateness
from phalanx.protocol import RankSample, Samples, Span, Waiting

from ._cell_times import CellTimes
from ._courtesy import Courtesy
from ._hopeless import WORLD, Activity
from ._quiet import waits_now
from ._rank_reader import RankReader
from ._steady import Steady
from ._world import World

if TYPE_CHECKING:  # a world of one host does not load it
    from ._far_samples import FarSamples

__all__ = ["Samplers"]

# A look at two ranks that have done 550 operations each takes 0.8 ms of a core, with its sending: as
# they keep both cores busy, not much of what it needs is in a cache (in numpy it was 3.1 ms).
# So often, it adds 0.4 % of a core here and 0.3 % in who watches, in processor time.
INTERVAL_S = 1 / 3
FAR_S = 0.1  # for other hosts to answer: one that takes longer is heard at the next look
LEASE_S = 10.0  # the longest that who watches need not say so again


class Samplers:
    """Sends samples to the clients that watch; `run` is its task while there are any.

    Parameters
    ----------
    readers : sequence of RankReader
        Of the hosts whose pages are seen from here.
    far : sequence of FarSamples
        Of the others.
    activity : callable
        What a rank is in.
    is_ready : callable
        Whether a rank has started.
    send : callable
        Sends to a client.
    """

    def __init__(
        self,
        world: World,
        cells: CellTimes,
        readers: Sequence[RankReader],
        *,
        far: Sequence[FarSamples] = (),
        activity: Callable[[int], Activity],
        is_ready: Callable[[int], bool],
        send: Callable[[bytes, Samples], None],
    ) -> None:
        self._world = world
        self._cells = cells
        self._readers = tuple(readers)
        self._far = tuple(far)
        self._far_up: list[bool] = []
        self._activity = activity
        self._is_ready = is_ready
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._until_s: dict[bytes, float] = {}  # client -> when its lease ends
        self._courtesy = Courtesy(self._loop)
        self._lateness = Lateness()
        self._number = 0
        self._is_running = False
        self._is_first = False  # the look that comes after nobody has watched

    def watch(self, identity: bytes, seconds: float) -> bool:
        """Take a client's wish; True: `run` is needed from now on."""
        if seconds <= 0:
            self._until_s.pop(identity, None)
            return False
        self._until_s[identity] = self._loop.time() + min(seconds, LEASE_S)
        is_first, self._is_running = not self._is_running, True
        return is_first

    async def run(self) -> None:
        """Sample until nobody watches any more."""
        steady = Steady("a sample of the ranks")
        # What came and went while nobody watched is no loss.
        self._is_first = True
        for far in self._far:
            far.begin()
        try:
            while self._watching():
                self._courtesy.show()
                await self._ask_far()
                begun_s = self._loop.time()
                with steady.look():
                    samples = self.take()
                    for identity in self._until_s:
                        self._send(identity, samples)
                # A look that takes long, of very many ranks, must not become all there is to do.
                took_s = self._loop.time() - begun_s
                await asyncio.sleep(max(INTERVAL_S - took_s, 4 * took_s))
        finally:
            self._courtesy.end()
            self._is_running = False

    def _watching(self) -> bool:
        now_s = self._loop.time()
        self._until_s = {who: until_s for who, until_s in self._until_s.items() if until_s > now_s}
        return bool(self._until_s)

    async def _ask_far(self) -> None:
        """Have other hosts look, and give them a moment."""
        asked = [far for far in self._far if far.ask()]
        if asked:
            answers = asyncio.gather(*(far.answered.wait() for far in asked))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(answers, FAR_S)

    def take(self) -> Samples:
        """Look at all ranks once; of other hosts at what they have answered."""
        self._number += 1
        now_ns = time.monotonic_ns()
        seen = {its.rank: its for reader in self._readers for its in reader.read()}
        if self._is_first:
            self._is_first = False
            seen = {rank: msgspec.structs.replace(its, missed=0) for rank, its in seen.items()}
        for far in self._far:
            seen.update(far.take())
        entries = {rank: its.entries for rank, its in seen.items()}
        compared = self._compare(entries, now_ns)
        every = (seen.get(rank) or _unseen(rank) for rank in range(self._world.size))
        return Samples(
            number=self._number,
            now_ns=now_ns,
            time=time.time(),
            epoch=self._world.epoch,
            ranks=tuple(self._told(its) for its in every),
            cells=self._cells.recent(),
            compared=compared.n_compared,
            late=compared.late,
            waits=self._waits({rank: its.spans for rank, its in seen.items()}, now_ns),
            unsure=compared.n_unsure,
            unsure_ns=compared.unsure_ns,
        )

    def _compare(self, entries: Mapping[int, bytes], now_ns: int) -> Compared:
        if not self._far:
            return self._lateness.take(entries, now_ns)
        up = [far.is_up for far in self._far]
        if up != self._far_up:  # nobody knows what the ranks of one that is gone entered last
            self._lateness.restart(now_ns)
            self._far_up = up
        clocks = {
            rank: ItsClock(number, far.unsure_ns)
            for number, far in enumerate(self._far, start=1)
            for rank in far.ranks
        }
        # Hosts are not read at one moment: of a short one some entries may have been overwritten.
        members = {number: len(ranks) for number, ranks in self._world.splits.items()}
        return self._lateness.take(
            entries,
            now_ns,
            clocks=clocks,
            members={**members, WORLD: self._world.size},
            is_whole=not any(far.is_asked for far in self._far),
        )

    def _told(self, its: RankSample) -> RankSample:
        world = self._world
        state = world.state(its.rank) if self._is_ready(its.rank) else "starting"
        detail = world.dead.get(its.rank) or its.detail
        return msgspec.structs.replace(its, state=state, detail=detail, entries=b"")

    def _waits(self, spans: Mapping[int, tuple[Span, ...]], now_ns: int) -> tuple[Waiting, ...]:
        activities = {
            rank: self._activity(rank)
            for rank in range(self._world.size)
            if rank not in self._world.dead
        }
        found = waits_now(activities, epoch=self._world.epoch, splits=self._world.splits)
        told = []
        for wait in found:
            runs = [
                span for rank in wait.waiting for span in spans.get(rank, ()) if not span.done_ns
            ]
            own = [span for span in runs if wait.what == f"{span.op} #{span.seq}"]
            since_ns = min((span.begun_ns for span in own or runs), default=now_ns)
            told.append(Waiting(wait.waiting, wait.missing, wait.what, since_ns))
        return tuple(told)


def _unseen(rank: int) -> RankSample:
    return RankSample(rank, 0, "starting", "its host sends no samples yet", 0, 0, 0, 0)
