"""Who is sent samples, and for how long: with a host that has no ranks."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import msgspec
import pytest
from support.ranks.loops import run_jumping

from phalanx.protocol import Activity, CellEnded, GroupProgress
from phalanx.protocol.host import HostSamples
from phalanx.supervisor.hosts.samples import SampleReader
from phalanx.supervisor.root.samplers import INTERVAL_S, Samplers
from phalanx.supervisor.world.cell_history import KEPT_NS, CellHistory
from phalanx.supervisor.world.state import WorldState


def _samplers(sent):
    hosts = SimpleNamespace(every=(), activity=lambda _: Activity(1, {}))
    world = WorldState(1)
    world.mark_ready(0)
    return Samplers(world, hosts, lambda who, samples: sent.append((who, samples.number)))


def test_samples_go_to_who_watches_and_end_with_the_wish():
    sent = []

    async def main():
        samplers = _samplers(sent)
        assert samplers.watch(b"a", 1.5 * INTERVAL_S)
        assert not samplers.watch(b"b", 0.05)
        await samplers.run()  # nobody has said it again
        n_sent = len(sent)
        assert samplers.watch(b"a", 0.05)
        await samplers.run()
        assert len(sent) == n_sent + 1

    run_jumping(main)
    assert [number for who, number in sent if who == b"a"] == [1, 2, 3]
    assert [number for who, number in sent if who == b"b"] == [1]


def test_a_rank_whose_page_is_not_seen_is_named_all_the_same():
    async def main():
        return _samplers([]).take()

    (rank,) = run_jumping(main).ranks
    assert (rank.rank, rank.state, rank.detail) == (0, "idle", "its host sends no samples yet")


def test_who_does_not_watch_any_more_is_sent_nothing():
    sent = []

    async def main():
        samplers = _samplers(sent)
        samplers.watch(b"a", float("inf"))
        samplers.watch(b"b", 0.05)
        samplers.watch(b"a", 0)
        await samplers.run()

    run_jumping(main)
    assert [who for who, _ in sent] == [b"b"]


class _Memory:
    """A page whose only rank does what a test says; counts how often its recorder is read."""

    def __init__(self):
        self.operations, self.doing, self.n_read, self.packed = 0, "", 0, b""

    def trace(self, slot, since=0):
        self.n_read += 1
        return self.packed, 0

    def counters(self, slot):
        return self.operations, 0, 0, 0, {}

    def activity(self, slot):
        return Activity(1, {0: GroupProgress(self.doing, 1, 0)})


def test_the_recorder_of_a_rank_that_does_nothing_is_not_read():
    memory, pids = _Memory(), [7]
    reader = SampleReader(
        SimpleNamespace(ranks=(0,), memory=memory, report=lambda _: SimpleNamespace(pid=pids[0]))
    )

    def n_read():
        before = memory.n_read
        assert len(reader.read().ranks) == 1
        return memory.n_read - before

    assert [n_read() for _ in range(3)] == [1, 0, 0]
    memory.operations = 5
    assert [n_read(), n_read()] == [1, 0]
    memory.doing = "all_sum"  # it has begun one, and none has ended
    assert [n_read(), n_read()] == [1, 1]
    memory.doing, pids[0] = "", 8
    assert [n_read(), n_read()] == [1, 0]


@pytest.mark.parametrize(
    ("is_open", "entered", "arrived"), [(1, 1 << 63, 0), (1, 1, 1 << 63), (0, 1 << 61, 0)]
)
def test_whatever_a_record_says_the_root_takes_what_a_host_tells(is_open, entered, arrived):
    memory = _Memory()
    # A number and whether it is open, place, bytes, group, entered, arrived, ended, what.
    memory.packed = struct.pack("<8Q", is_open, 1, 4, 0, entered, arrived, 0, 1)
    memory.counters = lambda _: (1, 0, (1 << 62) - 1, (1 << 62) - 1, {})
    reader = SampleReader(
        SimpleNamespace(ranks=(0,), memory=memory, report=lambda _: SimpleNamespace(pid=7))
    )
    told = msgspec.msgpack.encode(reader.read())
    assert len(msgspec.msgpack.decode(told, type=HostSamples).ranks[0].spans) == 1


def test_cells_that_run_are_kept_and_others_for_a_moment():
    now = [0]
    cells = CellHistory(lambda: now[0])
    cells.begin("long", (0, 1))
    cells.begin("short", (0,))
    cells.begin("never", (0,))
    assert cells.forget("never")
    now[0] = 5
    cells.end(0, CellEnded("short", ok=True))
    cells.end(1, CellEnded("short", ok=True))  # which is not in it
    cells.lose(1)
    assert {its.cell: its.ended_ns for its in cells.recent()} == {"long": {1: 5}, "short": {0: 5}}
    cells.begin("new", (0,), "print(rank)")
    now[0] += 2_000_000_000
    assert cells.title_on(0) == ("print(rank)", 2.0)
    assert cells.title_on(1) == ("", 0.0)
    assert cells.forget("new")
    now[0] = KEPT_NS + 6
    assert [its.cell for its in cells.recent()] == ["long"]


def test_the_last_cell_is_told_until_its_end_is_seen():
    now = [0]
    cells = CellHistory(lambda: now[0])

    def told():
        return {its.cell: (its.ranks, [*its.ended]) for its in cells.statuses()}

    cells.begin("last", (0, 1, 2))
    cells.end(0, CellEnded("last", ok=True))
    cells.is_end_seen = False
    cells.lose(1)
    cells.revive(1)  # a new process, which does not run it
    assert told() == {"last": ((0, 2), [0])}
    cells.end(2, CellEnded("last", ok=True))
    now[0] = 2 * KEPT_NS
    assert cells.recent() == ()
    assert told() == {"last": ((0, 2), [0, 2])}
    cells.begin("next", (0,))
    assert told() == {"next": ((0,), [])}
    assert not cells.forget("last")
