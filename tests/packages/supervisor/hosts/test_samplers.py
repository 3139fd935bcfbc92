"""Samples: which hosts are asked, who is sent them and for how long, and what is refused."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace

import msgspec
import pytest
from support.hosts.far_hosts import played, until
from support.ranks.loops import jumping, run_jumping

from phalanx.distributed.summaries import ENTRY
from phalanx.protocol import MOST_SPANS, Activity, CellEnded, GroupProgress, RankSample, Span
from phalanx.protocol.host import (
    AskHost,
    FromHost,
    HostAnswered,
    HostPing,
    HostPong,
    HostSamples,
    SampleRanks,
    StopHost,
)
from phalanx.supervisor.hosts import samples as samples_module
from phalanx.supervisor.hosts.samples import SampleReader, in_root_time, is_sound
from phalanx.supervisor.root import samplers as samplers_module
from phalanx.supervisor.root.samplers import INTERVAL_S, Samplers
from phalanx.supervisor.world.cell_history import KEPT_NS, CellHistory
from phalanx.supervisor.world.state import WorldState

AHEAD_NS = -5_000  # the other host's clock is ahead of ours by so much


def _entries(*rows):
    return b"".join(ENTRY.pack(0, *row) for row in rows)


def _sample(rank, *, operations=0, **more):
    return RankSample(rank, 9, "starting", "", operations, 0, 0, 0, **more)


def _span(number, begun_ns=6_000, done_ns=0):
    return Span(number, "all_sum", begun_ns, done_ns, 0, 0, 8, number)


class Host:
    """A host that answers at once, or when the test says so."""

    def __init__(self, *ranks, answer=None, unsure_ns=100):
        self.ranks, self.stands = ranks, (0, unsure_ns)
        self.asked, self._answer = [], answer
        self.pending = None

    def clock(self):
        return self.stands

    async def answer(self, request):
        assert request == SampleRanks()
        self.asked.append(request)
        if self._answer is not None:
            return HostSamples(self._answer())
        self.pending = asyncio.get_running_loop().create_future()
        return await self.pending


def _samplers(sent, *hosts, size=2):
    every = SimpleNamespace(every=hosts, activity=lambda _: Activity(1, {}))
    world = WorldState(size)
    world.mark_ready(0)
    return Samplers(world, every, lambda who, samples: sent.append((who, samples)))


@jumping
async def test_samples_go_to_who_watches_and_end_with_the_wish():
    sent = []
    samplers = _samplers(sent, size=1)
    assert samplers.watch(b"a", 1.5 * INTERVAL_S)
    assert not samplers.watch(b"b", 0.05)
    await samplers.run()  # nobody has said it again
    n_sent = len(sent)
    assert samplers.watch(b"a", 0.05)
    await samplers.run()
    assert len(sent) == n_sent + 1
    numbers = {who: [its.number for to, its in sent if to == who] for who in (b"a", b"b")}
    assert numbers == {b"a": [1, 2, 3], b"b": [1]}
    samplers.watch(b"a", float("inf"))
    samplers.watch(b"b", 0.05)
    samplers.watch(b"a", 0)
    await samplers.run()
    assert [who for who, _ in sent[n_sent + 1 :]] == [b"b"]
    # A rank whose page is not seen is named all the same.
    (rank,) = samplers.take().ranks
    assert (rank.rank, rank.state, rank.detail) == (0, "idle", "its host sends no samples yet")


class _Rank:
    """A rank that does what a test says; counts how often its recorder is read."""

    def __init__(self, rank=0):
        self.rank, self.pid = rank, 7
        self.operations, self.doing, self.n_read, self.packed = 0, "", 0, b""
        self.host = SimpleNamespace(ranks=(rank,), report=lambda _: self)

    def trace(self, since=0):
        self.n_read += 1
        return self.packed, 0

    def counters(self):
        return self.operations, 0, 0, 0, {}

    @property
    def activity(self):
        return Activity(1, {0: GroupProgress(self.doing, 1, 0)})


def test_the_recorder_of_a_rank_that_does_nothing_is_not_read():
    rank = _Rank()
    reader = SampleReader(rank.host)

    def n_read():
        before = rank.n_read
        assert len(reader.read().ranks) == 1
        return rank.n_read - before

    assert [n_read() for _ in range(3)] == [1, 0, 0]
    rank.operations = 5
    assert [n_read(), n_read()] == [1, 0]
    rank.doing = "all_sum"  # it has begun one, and none has ended
    assert [n_read(), n_read()] == [1, 1]
    rank.doing, rank.pid = "", 8
    assert [n_read(), n_read()] == [1, 0]


@pytest.mark.parametrize(
    ("is_open", "entered", "arrived"), [(1, 1 << 63, 0), (1, 1, 1 << 63), (0, 1 << 61, 0)]
)
def test_whatever_a_record_says_the_root_takes_what_a_host_tells(is_open, entered, arrived):
    rank = _Rank()
    # A number and whether it is open, place, bytes, group, entered, arrived, ended, what.
    rank.packed = struct.pack("<8Q", is_open, 1, 4, 0, entered, arrived, 0, 1)
    rank.counters = lambda: (1, 0, (1 << 62) - 1, (1 << 62) - 1, {})
    told = msgspec.msgpack.encode(SampleReader(rank.host).read())
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


@jumping
async def test_a_host_is_asked_once_for_each_look_and_not_when_nobody_watches():
    sent = []
    host = Host(0, 1, answer=lambda: (_sample(0), _sample(1, operations=7)))
    samplers = _samplers(sent, host)
    await asyncio.sleep(5.0)
    assert host.asked == []
    samplers.watch(b"a", 1.5 * INTERVAL_S)
    await samplers.run()
    assert len(host.asked) == len(sent)
    await asyncio.sleep(5.0)
    assert len(host.asked) == len(sent) == 2
    assert [its.operations for its in sent[-1][1].ranks] == [0, 7]


@jumping
async def test_a_host_that_does_not_answer_is_not_asked_again_and_holds_nobody_up():
    sent = []
    here, there = Host(0, answer=lambda: (_sample(0),)), Host(1)
    samplers = _samplers(sent, here, there)
    samplers.watch(b"a", 5.4 * INTERVAL_S)
    running = asyncio.ensure_future(samplers.run())
    await asyncio.sleep(5 * INTERVAL_S)
    assert (len(there.asked), len(here.asked)) == (1, len(sent))
    assert len(sent) == 5  # none of them waited for it after the first, but for a moment
    assert sent[-1][1].ranks[1].detail == "its host sends no samples yet"
    spans = _span(1), _span(2, 6_000, 9_000)
    there.pending.set_result(HostSamples((_sample(1, operations=7, missed=3, spans=spans),)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    def told():
        its = samplers.take().ranks[1]
        return its.operations, its.missed, [span.number for span in its.spans]

    # What is over is told once, what runs at each look; sums stay.
    assert [told(), told()] == [(7, 3, [1, 2]), (7, 0, [1])]
    there.stands = None  # it is lost
    assert told() == (7, 0, [])
    await running


def test_times_are_moved_to_our_clock_and_stay_what_a_client_takes():
    last = (1 << 62) - 1
    spans = _span(1), _span(2, 6_000, 9_000), _span(3, 10, 20)
    its = in_root_time(_sample(1, spans=spans, entries=_entries((1, 6_000, 0))), AHEAD_NS)
    assert [(s.begun_ns, s.done_ns) for s in its.spans] == [(1_000, 0), (1_000, 4_000), (1, 1)]
    assert list(ENTRY.iter_unpack(its.entries)) == [(0, 1, 1_000, 0)]
    moved = in_root_time(_sample(1, spans=(_span(4, last, last),)), 10_000)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(moved), type=RankSample) == moved


BAD = [
    (_sample(0, entries=b"short"),),
    (_sample(0, wires={2: (1, 1)}),),  # there is no rank 2
    (_sample(0), _sample(0)),
    (_sample(1),),  # of another host
]


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_read_or_is_of_others_is_refused(bad):
    assert is_sound(HostSamples((_sample(0),)), (0,), 2)
    assert not is_sound(HostSamples(bad), (0,), 2)


@played
async def test_a_host_that_sends_such_samples_is_put_out(hosts, events, far):
    host = hosts.every[0]
    assert await host.answer(SampleRanks()) is None  # its clock is not known yet
    far.say(HostPong((await far.hear(HostPing)).sent_ns, 1))
    await until(host.clock)
    for sample in (_sample(0), _sample(1)):
        asked = asyncio.ensure_future(host.answer(SampleRanks()))
        far.say(HostAnswered((await far.hear(AskHost)).id, HostSamples((sample,))))
        assert (await asked is None) == (sample.rank == 1)
    await far.hear(StopHost)
    assert events.lost[0][1].startswith("lost its host: it has sent samples")


@pytest.mark.parametrize(
    "bad",
    [
        _sample(1, entries=bytes(5000)),
        _sample(1, spans=(_span(1),) * (MOST_SPANS + 1)),
        _sample(1, spans=(msgspec.structs.replace(_span(1), op="x" * 65),)),
        _sample(1, spans=(_span(1, begun_ns=-1),)),
        _sample(1, operations=1 << 62),
        _sample(1, wires={1: (-1, 0)}),
        _sample(-1),
    ],
)
def test_sizes_are_checked_where_it_is_decoded(bad):
    def packed(sample):
        return msgspec.msgpack.encode(HostAnswered(1, HostSamples((sample,))))

    good = _sample(1, spans=(_span(1),))
    assert isinstance(msgspec.msgpack.decode(packed(good), type=FromHost), HostAnswered)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(packed(bad), type=FromHost)


class _Reader(SampleReader):
    """A reader of a host of which a test says what its recorder has."""

    def __init__(self, found):
        super().__init__(_Rank(4).host)
        summary = SimpleNamespace(spans=(), missed=0, entries=b"", uses=())
        summary.__dict__.update(found)
        self._spans = {4: SimpleNamespace(has_open=True, since=0, news=summary)}


def test_what_may_not_be_said_or_was_overwritten_is_counted_while_somebody_watches(monkeypatch):
    now_s = [100]
    monkeypatch.setattr(
        samples_module, "time", SimpleNamespace(monotonic_ns=lambda: int(now_s[0] * 1e9))
    )
    monkeypatch.setattr(samples_module, "new_spans", lambda reader, _: reader.news)
    many = tuple(_span(number) for number in range(MOST_SPANS + 5))
    reader, missed = _Reader({"spans": many, "missed": 2}), []
    for now_s[0] in (100, 101, 150, 151):  # each watch begins with what was before it
        (its,) = reader.read().ranks
        assert len(its.spans) == MOST_SPANS
        missed.append(its.missed)
    assert missed == [0, 7, 0, 7]


def test_a_host_whose_look_fails_says_so_little_and_goes_on(monkeypatch):
    monkeypatch.setattr(samples_module, "new_spans", lambda reader, _: reader.news)
    reader = _Reader({})
    assert [its.rank for its in reader.read().ranks] == [4]
    reader._host.report(4).counters = None  # as a mistake of ours
    assert reader.read() == HostSamples(())


def test_who_came_last_is_told_when_all_have_answered_and_no_clock_may_be_wrong(monkeypatch):
    """Rank 0 is here, rank 1 on a host that is slow once."""

    async def main():
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(monotonic_ns=lambda: int(loop.time() * 1e9), time=loop.time)
        monkeypatch.setattr(samplers_module, "time", clock)
        read = []
        here = Host(0, answer=lambda: (_sample(0, entries=read.pop()),), unsure_ns=0)
        there = Host(1, unsure_ns=100_000)
        samplers = _samplers([], here, there)

        async def look(ours, theirs=None):
            read.append(ours)
            asking = asyncio.ensure_future(samplers._ask())
            await asyncio.sleep(0.001)
            if theirs is not None:
                there.pending.set_result(HostSamples((_sample(1, entries=theirs),)))
                await asyncio.sleep(0.001)
            await asking
            samples = samplers.take()
            return samples.compared, [(its.rank, its.late_ns) for its in samples.late]

        found = [await look(b"", b"")]
        begun = clock.monotonic_ns()
        await asyncio.sleep(0.01)
        # Rank 1 comes 1 ms after rank 0 to the one, and 50 us after it to the other.
        ended = begun + 3_000_000
        ours = _entries((1, begun, ended), (2, begun, ended), (3, begun, ended))
        theirs = _entries((1, begun + 1_000_000, ended), (2, begun + 50_000, ended))
        found += [await look(ours), await look(b"", theirs)]
        found += [await look(b"", b""), await look(b"", b"")]
        return found

    # The third one is not compared: of rank 1's part in it nothing is known.
    nothing = 0, []
    assert run_jumping(main) == [nothing, nothing, nothing, (2, [(1, 900_000)]), nothing]
