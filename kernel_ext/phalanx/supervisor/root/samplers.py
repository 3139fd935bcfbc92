"""Sample all ranks while a client watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from phalanx.distributed.summaries import Lateness, StragglerReport
from phalanx.protocol import RankSample, Samples, Waiting
from phalanx.protocol.host import HostAnswer, HostSamples, SampleRanks

from ..health.waits import WORLD, waits_now
from ..hosts.host_set import HostSet
from ..tasks import LogOnceOnError
from ..world.state import WorldState
from .inspector import activities_of

if TYPE_CHECKING:
    from ..hosts.local_host import LocalHost
    from ..hosts.remote_host import RemoteHost
    from .clients import Client


# One sample of two ranks with 550 operations each takes 0.8 ms of a core, sending included. The
# ranks keep both cores busy, so little of the needed data is cached (with numpy it took 3.1 ms).
# At this interval that is 0.4 % of a core here and 0.3 % in the watching client, in processor time.
INTERVAL_S = 1 / 3
FAR_S = 0.1  # how long to wait for other hosts; a later answer goes into the next sample
LEASE_S = 10.0  # a client must renew its request to watch at least this often


class Samplers:
    """Send samples of all ranks to the clients that watch.

    `run` is the sampling task; it runs while at least one client watches.
    """

    def __init__(
        self,
        world: WorldState,
        hosts: HostSet,
        send: Callable[[Client, Samples], None],
    ) -> None:
        self._world = world
        self._hosts = hosts
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._until_s: dict[Client, float] = {}  # client -> when its lease ends
        self._asked: dict[LocalHost | RemoteHost, asyncio.Task[HostAnswer | None]] = {}
        self._seen: dict[int, RankSample] = {}  # the newest of each rank
        self._lateness = Lateness()
        self._up: list[bool] | None = None
        self._number = 0
        self._is_running = False

    def watch(self, client: Client, seconds: float) -> bool:
        """Start, renew or end a client's lease; True: `run` must be started."""
        if seconds <= 0:
            self._until_s.pop(client, None)
            return False
        self._until_s[client] = self._loop.time() + min(seconds, LEASE_S)
        is_first, self._is_running = not self._is_running, True
        return is_first

    async def run(self) -> None:
        """Sample until no client watches any more."""
        errors = LogOnceOnError("a sample of the ranks")
        try:
            while self._watching():
                begun_s = self._loop.time()
                await self._ask()
                with errors.look():
                    samples = self.take()
                    for client in self._until_s:
                        self._send(client, samples)
                # A slow sample (of very many ranks) must not take all of a supervisor's time.
                took_s = self._loop.time() - begun_s
                await asyncio.sleep(max(INTERVAL_S - took_s, 4 * took_s))
        finally:
            self._is_running = False
            for asked in self._asked.values():
                asked.cancel()
            self._asked.clear()

    def _watching(self) -> bool:
        now_s = self._loop.time()
        self._until_s = {who: until_s for who, until_s in self._until_s.items() if until_s > now_s}
        return bool(self._until_s)

    async def _ask(self) -> None:
        """Ask each host that has answered before, and wait up to `FAR_S`."""
        new = {
            host: self._loop.create_task(host.answer(SampleRanks()))
            for host in self._hosts.every
            if host not in self._asked
        }
        self._asked.update(new)
        if new:
            await asyncio.wait(new.values(), timeout=FAR_S)

    def take(self) -> Samples:
        """Take the answers that have come as one sample of all ranks."""
        self._number += 1
        now_ns = time.monotonic_ns()
        clocks = {host: host.clock() for host in self._hosts.every}
        up = {rank for host, clock in clocks.items() if clock is not None for rank in host.ranks}
        seen = {rank: _again(its, rank in up) for rank, its in self._seen.items()}
        for host in [host for host, asked in self._asked.items() if asked.done()]:
            answer = self._asked.pop(host).result()
            if isinstance(answer, HostSamples):
                seen.update((its.rank, its) for its in answer.ranks)
        self._seen = seen
        compared = self._compare(clocks, now_ns)
        return Samples(
            number=self._number,
            now_ns=now_ns,
            time=time.time(),
            epoch=self._world.epoch,
            ranks=tuple(self._with_state(rank) for rank in range(self._world.size)),
            cells=self._world.cells.recent(),
            compared=compared.n_compared,
            late=compared.late,
            waits=self._waits(now_ns),
            unsure=compared.n_unsure,
            unsure_ns=compared.unsure_ns,
        )

    def _compare(
        self, clocks: Mapping[LocalHost | RemoteHost, tuple[int, int] | None], now_ns: int
    ) -> StragglerReport:
        up = [clock is not None for clock in clocks.values()]
        if self._up not in (None, up):  # the last operations of a lost host's ranks are unknown
            self._lateness.restart(now_ns)
        self._up = up
        # Hosts are not read at the same moment: short recorders may have overwritten some entries.
        members = {number: len(ranks) for number, ranks in self._world.splits.items()}
        return self._lateness.take(
            {rank: its.entries for rank, its in self._seen.items()},
            now_ns,
            clocks={
                rank: (number, clock[1])
                for number, (host, clock) in enumerate(clocks.items())
                if clock is not None
                for rank in host.ranks
            },
            members={**members, WORLD: self._world.size},
            is_whole=not self._asked,
        )

    def _with_state(self, rank: int) -> RankSample:
        world, its = self._world, self._seen.get(rank)
        detail = "" if its is not None else "its host sends no samples yet"
        return msgspec.structs.replace(
            its or RankSample(rank, 0, "starting", "", 0, 0, 0, 0),
            state=world.state(rank),
            detail=world.dead.get(rank) or detail,
            entries=b"",
        )

    def _waits(self, now_ns: int) -> tuple[Waiting, ...]:
        waits = []
        for wait in waits_now(activities_of(self._world.alive, self._world, self._hosts)):
            runs = [
                span
                for rank in wait.waiting
                if rank in self._seen
                for span in self._seen[rank].spans
                if not span.done_ns
            ]
            own = [span for span in runs if wait.what == f"{span.op} #{span.seq}"]
            since_ns = min((span.begun_ns for span in own or runs), default=now_ns)
            waits.append(Waiting(wait.waiting, wait.missing, wait.what, since_ns))
        return tuple(waits)


def _again(its: RankSample, is_up: bool) -> RankSample:
    """Return a rank's last sample, to be sent again.

    Ended spans are reported once, running spans in each sample while the host is up.
    """
    spans = tuple(span for span in its.spans if is_up and not span.done_ns)
    return msgspec.structs.replace(its, spans=spans, missed=0, entries=b"")
