"""Samples over a line to another host, which is the test: what is asked, taken and refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from support.ranks.loops import run_jumping

from phalanx.distributed import ENTRY
from phalanx.protocol import Activity, RankSample, Span
from phalanx.protocol.host import (
    MOST_SPANS_SAID,
    FromHost,
    HostSample,
    HostSamples,
    SampleRanks,
    said_of,
)
from phalanx.supervisor.hosts.samples import RemoteSampler, SampleAnswers
from phalanx.supervisor.membership import WorldState
from phalanx.supervisor.root import observers as observers_module
from phalanx.supervisor.root.cells import CellTimeline
from phalanx.supervisor.root.observers import INTERVAL_S, Samplers

RANK = RankSample(0, 1, "idle", "", 0, 0, 0, 0)
AHEAD_NS = -5_000  # the other host's clock is ahead of ours by so much


def _entries(*rows):
    return np.array([(0, place, begun, done) for place, begun, done in rows], ENTRY).tobytes()


def _sample(rank, *, operations=0, spans=(), entries=b"", **more):
    fields = {"arena_nbytes": 0, "inside_ns": 0, "waiting_ns": 0, "wires": {}, "missed": 0, **more}
    return HostSample(rank, 9, operations, spans=spans, entries=entries, **fields)


def _span(number, begun_ns=6_000, done_ns=0):
    return Span(number, "all_sum", begun_ns, done_ns, 0, 0, 8, number)


class Line:
    """The line to a host, of which the test says how its clock stands."""

    def __init__(self, *ranks, answer=None, unsure_ns=100):
        self.asked, self.stands = [], (AHEAD_NS, unsure_ns)
        self._answer = answer
        self.far = RemoteSampler(ranks, 2, lambda: self)

    def clock(self):
        return self.stands

    def send(self, message):
        self.asked.append(message)
        if self._answer is not None:
            asyncio.get_running_loop().call_soon(lambda: self.far.come(self._answer()))


def _samplers(sent, *lines, size=2, readers=()):
    return Samplers(
        WorldState(size),
        CellTimeline(),
        readers,
        far=[line.far for line in lines],
        activity=lambda _: Activity(1, {}),
        is_ready=lambda _: True,
        send=lambda _, samples: sent.append(samples),
    )


def test_a_host_is_asked_once_for_each_look_and_not_when_nobody_watches():
    sent = []

    async def main():
        line = Line(0, 1, answer=lambda: HostSamples((_sample(0), _sample(1, operations=7))))
        samplers = _samplers(sent, line)
        await asyncio.sleep(5.0)
        assert line.asked == []
        samplers.watch(b"a", 1.5 * INTERVAL_S)
        await samplers.run()
        assert line.asked == [SampleRanks()] * len(sent)
        await asyncio.sleep(5.0)
        assert len(line.asked) == len(sent) == 2

    run_jumping(main)
    assert [its.operations for its in sent[-1].ranks] == [0, 7]


def test_what_came_and_went_while_nobody_watched_is_not_missed():
    sent = []

    async def main():
        line = Line(1, answer=lambda: HostSamples((_sample(1, missed=3),)))
        samplers = _samplers(sent, line, readers=[_Missing()])
        for _ in range(2):
            assert samplers.watch(b"a", 1.5 * INTERVAL_S)
            await samplers.run()

    run_jumping(main)
    # Of each watch the first look is of the time before it.
    assert [[its.missed for its in samples.ranks] for samples in sent] == 2 * [[0, 0], [5, 3]]


class _Missing:
    """A reader of a host of which something is missed at each look."""

    def read(self):
        return (RankSample(0, 7, "starting", "", 0, 0, 0, 0, missed=5),)


def test_a_host_that_does_not_answer_is_not_asked_again_and_holds_nobody_up():
    sent = []

    async def main():
        line = Line(1)
        samplers = _samplers(sent, line)
        samplers.watch(b"a", 3.5 * INTERVAL_S)
        await samplers.run()
        assert len(line.asked) == 1
        spans = _span(1), _span(2, 6_000, 9_000)
        line.far.come(HostSamples((_sample(1, operations=7, missed=3, spans=spans),)))

        def told():
            its = samplers.take().ranks[1]
            return its.operations, its.missed, [span.number for span in its.spans]

        # What is over is told once, what runs at each look; sums stay. Missed was that before.
        assert [told(), told()] == [(7, 0, [1, 2]), (7, 0, [1])]
        line.far.ask()
        line.stands = None
        line.far.lose()
        assert told() == (7, 0, [])
        assert not line.far.ask()

    run_jumping(main)
    assert len(sent) == 4  # none of them waited for it after the first, but for a moment
    assert sent[-1].ranks[1].detail == "its host sends no samples yet"


def test_times_are_moved_to_our_clock_and_stay_what_a_client_takes():
    async def main():
        line = Line(1)
        line.far.ask()
        last = (1 << 62) - 1
        spans = _span(1), _span(2, 6_000, 9_000), _span(3, 10, 20)
        assert not line.far.come(
            HostSamples((_sample(1, spans=spans, entries=_entries((1, 6_000, 0))),))
        )
        its = line.far.take()[1]
        assert [(s.begun_ns, s.done_ns) for s in its.spans] == [(1_000, 0), (1_000, 4_000), (1, 1)]
        assert np.frombuffer(its.entries, ENTRY).tolist() == [(0, 1, 1_000, 0)]
        line.stands = 10_000, 0
        line.far.ask()
        line.far.come(HostSamples((_sample(1, spans=(_span(4, last, last),)),)))
        moved = line.far.take()[1]
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(moved), type=RankSample) == moved

    run_jumping(main)


def test_what_was_not_asked_for_or_cannot_be_read_is_refused():
    async def main():
        line = Line(1)
        assert line.far.come(HostSamples(())) == "answered what it was not asked"
        line.far.ask()
        for bad in (
            (_sample(1, entries=b"short"),),
            (_sample(1, wires={2: (1, 1)}),),  # there is no rank 2
            (_sample(1), _sample(1)),
        ):
            assert "cannot understand" in line.far.come(HostSamples(bad))

    run_jumping(main)


@pytest.mark.parametrize(
    "bad",
    [
        _sample(1, entries=bytes(5000)),
        _sample(1, spans=(_span(1),) * (MOST_SPANS_SAID + 1)),
        _sample(1, spans=(msgspec.structs.replace(_span(1), op="x" * 65),)),
        _sample(1, spans=(_span(1, begun_ns=-1),)),
        _sample(1, operations=1 << 62),
        _sample(1, wires={1: (-1, 0)}),
        _sample(-1),
    ],
)
def test_sizes_are_checked_where_it_is_decoded(bad):
    good = msgspec.msgpack.encode(HostSamples((_sample(1, spans=(_span(1),)),)))
    assert isinstance(msgspec.msgpack.decode(good, type=FromHost), HostSamples)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(HostSamples((bad,))), type=FromHost)


def test_what_may_not_be_said_is_counted():
    many = tuple(_span(number) for number in range(MOST_SPANS_SAID + 5))
    said = said_of(RankSample(1, 9, "idle", "", 0, 0, 0, 0, spans=many, missed=2))
    assert (len(said.spans), said.missed) == (MOST_SPANS_SAID, 7)


def test_a_host_whose_look_fails_says_so_little_and_goes_on():
    said = []

    async def main():
        memory = SimpleNamespace(
            trace=lambda *_: (b"", 0),
            counters=lambda _: (0, 0, 0, 0, {}),
            activity=lambda _: Activity(1, {}),
        )
        report = SimpleNamespace(pid=9)
        host = SimpleNamespace(ranks=(4,), memory=memory, report=lambda _: report)
        answers = SampleAnswers(host, lambda: said.append("report"), said.append)
        await answers.answer()
        memory.counters = None  # as a mistake of ours
        await answers.answer()

    run_jumping(main)
    assert said[0] == "report"
    assert [its.rank for its in said[1].ranks] == [4]
    assert said[2] == HostSamples(())


def test_who_came_last_is_told_when_all_have_answered_and_no_clock_may_be_wrong(monkeypatch):
    """Rank 0 is here, rank 1 on a host that is slow once."""

    async def main():
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(monotonic_ns=lambda: int(loop.time() * 1e9), time=loop.time)
        monkeypatch.setattr(observers_module, "time", clock)
        line, read = Line(1, unsure_ns=100_000), []
        line.stands = 0, 100_000
        reader = SimpleNamespace(read=lambda: [msgspec.structs.replace(RANK, entries=read.pop())])
        samplers = _samplers([], line, readers=[reader])

        def look(here, there=None):
            read.append(here)
            line.far.ask()
            if there is not None:
                line.far.come(HostSamples((_sample(1, entries=there),)))
            samples = samplers.take()
            return samples.compared, [(its.rank, its.late_ns) for its in samples.late]

        found = [look(b"", b"")]
        begun = clock.monotonic_ns()
        await asyncio.sleep(0.01)
        # Rank 1 comes 1 ms after rank 0 to the one, and 50 us after it to the other.
        ended = begun + 3_000_000
        here = _entries((1, begun, ended), (2, begun, ended), (3, begun, ended))
        there = _entries((1, begun + 1_000_000, ended), (2, begun + 50_000, ended))
        found += [look(here), look(b"", there), look(b"", b""), look(b"", b"")]
        return found

    # The third one is not compared: of rank 1's part in it nothing is known.
    nothing = 0, []
    assert run_jumping(main) == [nothing, nothing, nothing, (2, [(1, 900_000)]), nothing]
