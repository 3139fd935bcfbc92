"""What is new in a flight recorder, and who came last: pure, on records made up."""

from __future__ import annotations

import random
from functools import partial
from itertools import islice

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx import _native
from phalanx.distributed.control import AbortKind
from phalanx.distributed.summaries import (
    ENTRY,
    LAST_NS,
    LONGEST_LOOKS,
    Lateness,
    StragglerReport,
    TraceSummarizer,
    find_stragglers,
    new_spans,
)
from phalanx.protocol import LateRank, Span

_NAMES = _native.trace_names()
_OPS = {name: number for number, name in _NAMES["op"].items()}
_FAILURES = {0: "", **{kind.value: kind.name.lower() for kind in AbortKind}}
MS = 1_000_000
MOST_SPANS, MOST_FIRST = 16, 64


def _record(
    number, op="all_sum", *, begun, arrived=0, done=0, nbytes=8, group=0, seq=None, failure=0
):
    """One record as the engine packs it; ``done`` 0: it runs."""
    seq = number + 1 if seq is None else seq
    what = _OPS[op] | failure << 32
    return [number << 1 | (done == 0), 1 << 40 | seq, nbytes, group, begun, arrived, done, what]


def _packed(*records):
    return np.array(records, np.uint64).tobytes()


def _quick(first, count, *, begun=1, op="all_sum"):
    """Operations of 6 us, one each 10 us, that wait 4 us for the last rank."""
    return [
        _record(
            first + i,
            op,
            begun=begun + 10_000 * i,
            arrived=begun + 10_000 * i + 4000,
            done=begun + 10_000 * i + 6000,
        )
        for i in range(count)
    ]


def test_a_record_comes_once_and_one_that_runs_until_it_is_over():
    reader = TraceSummarizer()
    first = _record(0, begun=5 * MS, arrived=7 * MS, done=8 * MS)
    spans, missed, entries = new_spans(reader, _packed(first, _record(1, begun=9 * MS)))
    runs, over = spans
    assert (over.op, over.seq, over.inside_ns, over.wait_ns) == ("all_sum", 1, 3 * MS, 2 * MS)
    assert (runs.number, runs.done_ns, runs.wait_ns) == (1, 0, -1)
    assert (missed, len(entries)) == (0, 2 * ENTRY.size)
    again = new_spans(reader, _packed(first, _record(1, begun=9 * MS, arrived=10 * MS)))[0]
    assert [(span.number, span.wait_ns) for span in again] == [(1, MS)]
    ended = _record(1, begun=9 * MS, arrived=10 * MS, done=12 * MS)
    assert [span.done_ns for span in new_spans(reader, _packed(first, ended))[0]] == [12 * MS]
    assert new_spans(reader, _packed(first, ended)) == ((), 0, b"")


def test_the_first_look_goes_back_ten_seconds():
    old = _quick(0, 50, begun=MS)
    new = _quick(50, 50, begun=20_000 * MS)
    spans, missed, *_ = new_spans(TraceSummarizer(), _packed(*old, *new))
    assert (sum(span.count for span in spans), missed) == (50, 0)
    hangs = _record(0, "recv", begun=MS)  # while another thread goes on
    spans, *_ = new_spans(TraceSummarizer(), _packed(hangs, *new))
    assert (spans[0].op, spans[0].done_ns) == ("recv", 0)
    assert sum(span.count for span in spans) == 51
    seconds = [
        _record(i, begun=i * 100 * MS + 1, arrived=i * 100 * MS + 2, done=i * 100 * MS + 9)
        for i in range(90)
    ]
    assert MOST_SPANS < len(new_spans(TraceSummarizer(), _packed(*seconds))[0]) <= MOST_FIRST


def test_mixed_operations_and_failures_are_told_of():
    mixed = [*_quick(0, 20), *_quick(20, 3, begun=200_001, op="barrier")]
    mixed[19] = _record(19, begun=190_001, done=196_001, failure=1)
    spans = new_spans(TraceSummarizer(), _packed(*mixed))[0]
    assert {span.op for span in spans} == {"all_sum", "barrier"}
    assert [bool(span.failure) for span in spans].count(True) == 1


def _entries(*rows, group=0):
    return b"".join(ENTRY.pack(group, *row) for row in rows)


def _compared(*looks, clocks=None, members=None):
    """What is reported of looks at 100, 200, ..., and of two more in which nothing is new."""
    take = partial(Lateness().take, clocks=clocks or {}, members=members or {})
    found = [take(look, 100 * n) for n, look in enumerate((*looks, {}, {}), 1)]
    return next((its for its in found if its.n_compared), StragglerReport())


def test_who_came_last_and_by_how_much():
    rows = {0: (1, 10, 60), 1: (1, 50, 60), 2: (1, 20, 60), 3: (1, 30, 60)}
    look = {rank: _entries(row) for rank, row in rows.items()}
    found = _compared(look)
    assert found.n_compared == 1
    assert found.late == (LateRank(1, 1, 30, 30),)  # 20 is the median
    both = {rank: its + _entries((1, 10 * rank, 60), group=5) for rank, its in look.items()}
    assert _compared(both).late == (LateRank(1, 1, 30, 30), LateRank(3, 1, 20, 20))
    both[1] += _entries((2, 50, 60))
    both[2] += _entries((2, 44, 60))
    both[3] += _entries((2, 41, 60))
    assert _compared(both).late[0] == LateRank(1, 2, 30 + 8, 30)  # between two: their mean
    assert _compared(look, members={0: 4}).n_compared == 1
    assert _compared(look, members={0: 5}) == StragglerReport()
    del look[2], look[3]
    assert _compared(look, clocks={0: (0, 0), 1: (1, 39)}).late == (LateRank(1, 1, 1, 1),)
    assert _compared(look, clocks={0: (0, 41), 1: (0, 41)}).late == (LateRank(1, 1, 40, 40),)
    # 40 apart: nobody can tell.
    assert _compared(look, clocks={0: (0, 0), 1: (1, 41)}) == StragglerReport(1, (), 1, 41)
    for rows in ({0: (1, 10, 0), 1: (1, 50, 0)}, {0: (1, 10, 60)}, {}):  # it runs, or is alone
        look = {rank: _entries(row) for rank, row in rows.items()}
        assert _compared(look) == StragglerReport()
    assert find_stragglers([[(10, 0, 0, 0, 0), (50, 1, 0, 0, 0)]]) == StragglerReport()
    # Any process may have written the page: no number is too large for a client.
    look = {0: _entries((1, 0, 60)), 1: _entries((1, (1 << 64) - 1, 60))}
    assert _compared(look).late == (LateRank(1, 1, LAST_NS, LAST_NS),)


def test_a_collective_is_counted_once_over_many_looks():
    lateness = Lateness()
    take = partial(lateness.take, clocks={}, members={})
    # Rank 0 is read while it waits in the second one, rank 1 when it has ended it.
    found = [take({0: _entries((1, 5, 30), (2, 40, 0)), 1: _entries((1, 20, 30))}, 50)]
    found += [take({0: _entries((2, 40, 90)), 1: _entries((2, 85, 90))}, 100)]
    found += [take({0: b"", 1: b""}, at) for at in (150, 200)]
    assert [its.n_compared for its in found] == [0, 1, 1, 0]
    late = [its for compared in found for its in compared.late]
    assert [(its.rank, its.late_ns) for its in late] == [(1, 15), (1, 45)]
    # What nobody runs any more is forgotten, as is what ended before a look that was not whole.
    take({0: _entries((3, 210, 0)), 1: _entries((4, 210, 220))}, 250)
    take({0: _entries((5, 260, 0), (6, 260, 1 << 63))}, 300)
    take({}, 350)
    assert not lateness._collectives


def test_entries_are_kept_until_all_ranks_were_read_but_not_for_ever():
    lateness = Lateness()
    take = partial(lateness.take, clocks={}, members={})
    for first, n_looks, expected in (
        (1, LONGEST_LOOKS, 1),
        (50, LONGEST_LOOKS, 1),
        (99, LONGEST_LOOKS + 1, 0),
    ):
        take({0: _entries((first, first, first + 3))}, first, is_whole=False)
        for at in range(1, n_looks):
            take({}, first + at, is_whole=False)
        take({1: _entries((first, first + 1, first + 3))}, first + 20)
        assert take({}, first + 30).n_compared == expected
    lateness.restart(200)  # a host is lost: what ended before is not known of all its ranks
    before = {0: _entries((1, 150, 160)), 1: _entries((1, 151, 160))}
    assert [take(look, at).n_compared for look, at in ((before, 250), ({}, 300))] == [0, 0]


class _Rank:
    """Makes up the recorder of one rank: threads, messages, groups, what hangs."""

    def __init__(self, seed: int, n_threads: int, tick_ns: int) -> None:
        self._dice = random.Random(seed)
        self._n_threads, self._tick_ns = n_threads, tick_ns
        self._now_ns = self._dice.choice([1, 7_000_000_000, 10**15])
        self._number = 0
        self._records: dict[int, list[int]] = {}

    def go_on(self, count: int, n_kept: int) -> bytes:
        """Do so many operations, end some that ran, and forget the oldest but those that run."""
        dice = self._dice
        for record in self._records.values():
            if record[0] & 1 and dice.random() < 0.5:
                self._end(record)
        kinds = dice.sample(list(_NAMES["op"]), dice.randint(1, 3))
        for _ in range(count):
            self._now_ns += dice.randint(0, self._tick_ns)
            self._number += dice.random() < 0.1  # a ticket that was passed over
            self._records[self._number] = self._operation(dice.choice(kinds))
            self._number += 1
        for number in sorted(self._records)[: -n_kept or None]:
            if not self._records[number][0] & 1:
                del self._records[number]
        return np.array([self._records[its] for its in sorted(self._records)], np.uint64).tobytes()

    def _operation(self, kind: int) -> list[int]:
        dice = self._dice
        begun = max(1, self._now_ns - dice.randint(0, 20) * self._tick_ns * (self._n_threads > 1))
        what = kind | dice.choice(list(_NAMES["algorithm"])) << 8 | dice.randint(0, 1 << 16) << 40
        place, group = 3 << 40 | self._number + 1, dice.choice([0, 0, 0, 5, (1 << 64) - 1])
        record = [self._number << 1 | 1, place, dice.randint(0, 1 << 30), group, begun, 0, 0, what]
        if dice.random() < 0.5:
            record[5] = max(1, begun + dice.randint(-5, 2 * self._tick_ns))  # clocks differ a bit
        if dice.random() < 0.9:
            self._end(record)
        return record

    def _end(self, record: list[int]) -> None:
        record[0] &= ~1
        record[6] = max(1, record[4] + self._dice.randint(-5, 3 * self._tick_ns))
        record[7] |= int(self._dice.choice([0, 0, *_FAILURES])) << 32


def _summary(records):
    """What one span says of operations that are over."""
    _, _, nbytes, _, begun, arrived, ended, what = zip(*records, strict=True)
    return (
        len(records),
        min(begun),
        max(ended),
        sum(max(0, last - first) for first, last in zip(begun, ended, strict=True)),
        sum(max(0, there - first) for first, there in zip(begun, arrived, strict=True)),
        sum(nbytes),
        _FAILURES[max(word >> 32 & 0xFF for word in what)],
    )


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 3),
    st.sampled_from([1, 10_000, 3_000_000, 200_000_000]),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 400)), min_size=1, max_size=4),
)
def test_each_operation_is_in_one_span_whatever_a_rank_does(seed, n_threads, tick_ns, looks):
    rank, reader = _Rank(seed, n_threads, tick_ns), TraceSummarizer()
    seen, running = -1, set()
    for count, n_kept in looks:
        packed = rank.go_on(count, n_kept)
        records = np.frombuffer(packed, np.uint64).reshape(-1, 8).tolist()
        spans = new_spans(reader, packed).spans
        fresh = [its for its in records if its[0] >> 1 > seen or its[0] >> 1 in running]
        if seen < 0:
            fresh = [its for its in fresh if its[0] & 1 or its[4] + 10**10 >= records[-1][4]]
        seen = max([seen, *(its[0] >> 1 for its in records)])
        runs = [its[0] >> 1 for its in fresh if its[0] & 1]
        over = [its for its in fresh if not its[0] & 1]
        if records:
            running = set(runs)
        assert [(its.number, its.done_ns) for its in spans[: len(runs)]] == [(n, 0) for n in runs]
        assert len(spans) - len(runs) <= MOST_FIRST
        assert len(over) > MOST_SPANS or len(spans) == len(runs) + len(over)
        if len(over) > MOST_SPANS:
            over.sort(key=lambda record: record[4])  # threads record in another order
        rest = iter(over)
        for span in spans[len(runs) :]:
            assert _summary(list(islice(rest, span.count))) == (
                span.count,
                span.begun_ns,
                span.done_ns,
                span.inside_ns,
                span.wait_ns,
                span.nbytes,
                span.failure,
            )
        assert next(rest, None) is None


@given(st.lists(st.binary(min_size=64, max_size=64), max_size=40), st.booleans())
def test_whatever_lies_in_a_page_a_client_takes_what_is_told_of_it(records, has_largest):
    reader = TraceSummarizer()
    for packed in (b"".join(records), b"\xff" * 64 * 20 * has_largest + b"".join(records)):
        found = new_spans(reader, packed)
        encoded = msgspec.msgpack.encode(found.spans)
        msgspec.msgpack.decode(encoded, type=tuple[Span, ...])
        lateness = Lateness()
        for _ in range(3):
            compared = lateness.take(
                dict.fromkeys(range(3), found.entries), 1 << 62, clocks={}, members={}
            )
            msgspec.msgpack.decode(msgspec.msgpack.encode(compared.late), type=tuple[LateRank, ...])
            assert all(0 <= its.late_ns < 1 << 62 for its in compared.late)


def test_part_of_a_record_is_refused():
    with pytest.raises(ValueError, match="no whole records"):
        new_spans(TraceSummarizer(), b"\0" * 65)
