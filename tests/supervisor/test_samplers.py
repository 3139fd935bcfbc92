"""Who is sent samples, and for how long: with a host that has no ranks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from phalanx.supervisor._cell_times import KEPT_NS, CellTimes
from phalanx.supervisor._samples import Samplers
from phalanx.supervisor._world import World


def _samplers(sent):
    host = SimpleNamespace(ranks=(), memory=None)
    return Samplers(
        host,
        World(1),
        CellTimes(),
        is_ready=lambda _: True,
        send=lambda who, samples: sent.append((who, samples.number)),
    )


def test_samples_go_to_who_watches_and_end_with_the_wish():
    sent = []

    async def main():
        samplers = _samplers(sent)
        assert samplers.watch(b"a", 0.3)
        assert not samplers.watch(b"b", 0.05)
        await asyncio.wait_for(samplers.run(), 5)  # nobody has said it again
        n_sent = len(sent)
        assert samplers.watch(b"a", 0.05)
        await asyncio.wait_for(samplers.run(), 5)
        assert len(sent) == n_sent + 1

    asyncio.run(main())
    assert [number for who, number in sent if who == b"a"] == [1, 2, 3]
    assert [number for who, number in sent if who == b"b"] == [1]


def test_who_does_not_watch_any_more_is_sent_nothing():
    sent = []

    async def main():
        samplers = _samplers(sent)
        samplers.watch(b"a", float("inf"))
        samplers.watch(b"b", 0.05)
        samplers.watch(b"a", 0)
        await asyncio.wait_for(samplers.run(), 5)

    asyncio.run(main())
    assert [who for who, _ in sent] == [b"b"]


def test_cells_that_run_are_kept_and_others_for_a_moment():
    now = [0]
    times = CellTimes(lambda: now[0])
    times.begin("long", (0, 1))
    times.begin("short", (0,))
    times.begin("never", (0,))
    times.forget("never")
    now[0] = 5
    times.end("short", 0)
    times.end("short", 1)  # which is not in it
    times.lose(1)
    assert {its.cell: its.ended_ns for its in times.recent()} == {"long": {1: 5}, "short": {0: 5}}
    now[0] = KEPT_NS + 6
    assert [its.cell for its in times.recent()] == ["long"]
