"""What is new in a flight recorder, and who came last: pure, on records made up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from distributed.recorder.spans_in_numpy import MOST_FIRST, MOST_SPANS

from phalanx import _native
from phalanx.distributed import (
    ENTERED,
    ENTRY,
    Lateness,
    StragglerReport,
    TraceSummarizer,
    find_stragglers,
)
from phalanx.protocol import Use

_OPS = {name: number for number, name in _native.trace_names()["op"].items()}
MS = 1_000_000


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
    spans, missed, entries, _ = reader.read(_packed(first, _record(1, begun=9 * MS)))
    runs, over = spans
    assert (over.op, over.seq, over.inside_ns, over.wait_ns) == ("all_sum", 1, 3 * MS, 2 * MS)
    assert (runs.number, runs.done_ns, runs.wait_ns) == (1, 0, -1)
    assert (missed, len(np.frombuffer(entries, ENTRY))) == (0, 2)
    again = reader.read(_packed(first, _record(1, begun=9 * MS, arrived=10 * MS)))[0]
    assert [(span.number, span.wait_ns) for span in again] == [(1, MS)]
    ended = _record(1, begun=9 * MS, arrived=10 * MS, done=12 * MS)
    assert [span.done_ns for span in reader.read(_packed(first, ended))[0]] == [12 * MS]
    assert reader.read(_packed(first, ended)) == ((), 0, b"", ())


def test_many_are_laid_together_and_none_is_lost():
    reader = TraceSummarizer()
    spans, *_ = reader.read(_packed(*_quick(0, 1000)))
    assert len(spans) == MOST_SPANS
    assert sum(span.count for span in spans) == 1000
    assert sum(span.wait_ns for span in spans) == 1000 * 4000
    assert sum(span.inside_ns for span in spans) == 1000 * 6000
    assert sum(span.nbytes for span in spans) == 8000
    assert all(a.done_ns <= b.begun_ns for a, b in pairwise(spans))


def test_what_was_overwritten_between_two_looks_is_counted():
    reader = TraceSummarizer()
    reader.read(_packed(*_quick(0, 5)))
    assert reader.read(_packed(*_quick(12, 5)))[1] == 7
    # A new process begins anew, and has missed nothing.
    spans, missed, *_ = reader.read(_packed(*_quick(0, 3)))
    assert (len(spans), missed) == (3, 0)


def test_what_is_known_need_not_be_read_again():
    reader = TraceSummarizer()
    assert reader.since == 0
    reader.read(_packed(*_quick(0, 5)))
    assert reader.since == 5
    runs, others = _record(5, begun=9 * MS), _quick(6, 3, begun=10 * MS)
    reader.read(_packed(runs, *others))
    assert reader.since == 5  # as its end is to be seen
    over = _record(5, begun=9 * MS, arrived=11 * MS, done=12 * MS)
    assert [span.number for span in reader.read(_packed(over, *others))[0]] == [5]
    assert reader.since == 9


def test_the_first_look_goes_back_ten_seconds():
    old = _quick(0, 50, begun=MS)
    new = _quick(50, 50, begun=20_000 * MS)
    spans, missed, *_ = TraceSummarizer().read(_packed(*old, *new))
    assert (sum(span.count for span in spans), missed) == (50, 0)
    hangs = _record(0, "recv", begun=MS)  # while another thread goes on
    spans, *_ = TraceSummarizer().read(_packed(hangs, *new))
    assert (spans[0].op, spans[0].done_ns) == ("recv", 0)
    assert sum(span.count for span in spans) == 51
    seconds = [
        _record(i, begun=i * 100 * MS + 1, arrived=i * 100 * MS + 2, done=i * 100 * MS + 9)
        for i in range(90)
    ]
    assert MOST_SPANS < len(TraceSummarizer().read(_packed(*seconds))[0]) <= MOST_FIRST


def test_mixed_operations_and_failures_are_told_of():
    mixed = [*_quick(0, 20), *_quick(20, 3, begun=200_001, op="barrier")]
    mixed[19] = _record(19, begun=190_001, done=196_001, failure=1)
    spans = TraceSummarizer().read(_packed(*mixed))[0]
    assert {span.op for span in spans} == {"all_sum", "barrier"}
    assert [bool(span.failure) for span in spans].count(True) == 1


def test_which_algorithm_was_used_for_which_sizes():
    algorithms = {name: code for code, name in _native.trace_names()["algorithm"].items()}
    records = [
        _record(0, begun=1, done=2, nbytes=64),
        _record(1, begun=3, done=4, nbytes=4096),
        _record(2, begun=5, done=6, nbytes=1 << 20),
        _record(3, "all_gather", begun=7, done=0, nbytes=8, group=5),
    ]
    for record, name in zip(records, ("mesh", "mesh", "ring", "staged+ring"), strict=True):
        record[-1] |= algorithms[name] << 8
    reader = TraceSummarizer()
    assert set(reader.read(_packed(*records)).uses) == {
        Use("all_sum", "mesh", 64, 4096),
        Use("all_sum", "ring", 1 << 20, 1 << 20),
        Use("all_gather", "staged+ring", 8, 8, is_split=True),
    }
    assert [use.op for use in reader.read(_packed(*records)).uses] == ["all_gather"]  # it runs


def test_who_came_last_and_by_how_much():
    def seen(*rows):
        return np.array(
            [(rank, 0, place, begun, done, 0, 0) for rank, place, begun, done in rows], ENTERED
        )

    rows = [(0, 1, 10, 60), (1, 1, 50, 60), (2, 1, 20, 60), (3, 1, 30, 60)]
    found = find_stragglers(seen(*rows))
    (late,) = found.late
    assert found.n_compared == 1
    assert (late.rank, late.count, late.late_ns) == (1, 1, 30)  # 20 is the median
    assert find_stragglers(seen((0, 1, 10, 0), (1, 1, 50, 0))) == StragglerReport()  # it runs
    assert find_stragglers(seen((0, 1, 10, 60))) == StragglerReport()
    assert find_stragglers(np.zeros(0, ENTERED)) == StragglerReport()


def test_nobody_is_said_to_come_last_where_the_clocks_may_be_wrong():
    def seen(last_ns, unsure_ns):
        rows = [(0, 10, 0, 0), (1, 20, 0, 0), (2, 30, 1, unsure_ns), (3, last_ns, 1, unsure_ns)]
        return np.array(
            [(rank, 0, 1, begun, 900, host, unsure) for rank, begun, host, unsure in rows], ENTERED
        )

    # Ranks 2 and 3 have one clock: that is right, but may be wrong beside that of the others.
    assert [find_stragglers(seen(100, unsure)).late[0].late_ns for unsure in (0, 5, 15)] == [
        80,
        75,
        70,
    ]
    # Nobody can tell, and by how much the clocks may be wrong is said.
    assert find_stragglers(seen(100, 81)) == StragglerReport(1, (), 1, 81)
    found = find_stragglers(seen(100, 5), members={0: 4})
    assert (found.n_compared, found.n_unsure, found.unsure_ns) == (1, 0, 0)
    assert find_stragglers(seen(100, 5), members={0: 5}).n_compared == 0


def test_a_collective_is_counted_once_over_many_looks():
    def entries(*rows):
        return np.array([(0, place, begun, done) for place, begun, done in rows], ENTRY).tobytes()

    lateness = Lateness()
    # Rank 0 is read while it waits in the second one, rank 1 when it has ended it.
    found = [lateness.take({0: entries((1, 5, 30), (2, 40, 0)), 1: entries((1, 20, 30))}, 50)]
    found += [lateness.take({0: entries((2, 40, 90)), 1: entries((2, 85, 90))}, 100)]
    found += [lateness.take({0: b"", 1: b""}, at) for at in (150, 200)]
    assert [its.n_compared for its in found] == [0, 1, 1, 0]
    late = [its for compared in found for its in compared.late]
    assert [(its.rank, its.late_ns) for its in late] == [(1, 15), (1, 45)]
