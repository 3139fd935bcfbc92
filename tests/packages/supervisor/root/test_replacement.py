"""Which ranks a stop reports as killed, and which replaced ranks a client still has to prepare."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import pytest
from support.ranks.loops import jumping

from phalanx.protocol import EndRank, RankStack, Replaced, ReplacementsReady
from phalanx.protocol.host import SignalRank
from phalanx.supervisor.root.replacement import RankEnding, ReplacementBacklog

GRACE_S = 5.0
PLACE = RankStack(place="cell line 3")


class _Hosts:
    """Two ranks that end only by SIGKILL, and their inspector."""

    def __init__(self) -> None:
        self.statuses: list[int | None] = [None, None]
        self.pids = [10, 11]
        self.ending = RankEnding(self, self, GRACE_S)

    def report(self, rank):
        return SimpleNamespace(pid=self.pids[rank])

    def send(self, rank, message):
        assert message == EndRank()

    def take(self, message):
        assert message == SignalRank(message.rank, signal.SIGKILL)
        loop = asyncio.get_running_loop()
        loop.call_soon(self.statuses.__setitem__, message.rank, -9)  # once it is reaped

    async def wait_ended(self, ranks, timeout_s):
        alive = [rank for rank in ranks if self.statuses[rank] is None]
        if alive:
            await asyncio.sleep(timeout_s)
        return [rank for rank in alive if self.statuses[rank] is None]

    async def stacks(self, ranks, *, is_twice):
        return dict.fromkeys(ranks, PLACE)

    async def end(self, *ranks):
        return self.ending.say(await self.ending.end(ranks))


@jumping
async def test_ranks_that_outlive_the_grace_time_are_named_with_their_places():
    said = await _Hosts().end(0, 1)
    assert said == "ranks 0-1 did not end within 5 s of the stop (at cell line 3) and were killed"


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
@jumping
async def test_ranks_that_a_second_stop_kills_are_named(delay_s):
    """Without a delay both requests came in one read: the task of the first has not begun."""
    hosts = _Hosts()
    ending = asyncio.ensure_future(hosts.end(0, 1))
    if delay_s:
        await asyncio.sleep(delay_s)
    hosts.ending.hurry((0, 1))
    said = await ending
    assert said == "ranks 0-1 had not ended at the second stop and were killed"


@jumping
async def test_the_next_process_of_a_killed_rank_may_end_in_peace():
    hosts = _Hosts()
    ending = asyncio.ensure_future(hosts.end(1))
    hosts.ending.hurry((1,))
    await ending
    hosts.pids[1], hosts.statuses[1] = 12, None
    ending = asyncio.ensure_future(hosts.end(1))
    await asyncio.sleep(1.0)
    hosts.statuses[1] = 0
    assert await ending == ""


@pytest.mark.parametrize(("handled", "left"), [("second", []), ("first", ["second"])])
def test_a_handled_replacement_drops_older_ones_of_its_rank_only(handled, left):
    backlog = ReplacementBacklog()
    for engine in ("first", "second"):  # of rank 1, one after the other
        backlog.add(Replaced(1, engine, "was killed", 10.0, 11.0))
    backlog.settle(ReplacementsReady((handled,)))
    assert [its.engine for its in backlog.returns] == left
