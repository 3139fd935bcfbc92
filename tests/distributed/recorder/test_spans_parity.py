"""What the engine makes of records and entries is what numpy would; what no engine wrote is borne."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from distributed.recorder.spans_in_numpy import NumpyTraceSummarizer, numpy_late_ranks
from hypothesis import given
from hypothesis import strategies as st

from phalanx import _native
from phalanx.distributed import ENTERED, ENTRY, AbortKind, TraceSummarizer, find_stragglers
from phalanx.protocol import Span, Use

_NAMES = _native.trace_names()
_OPS = [*_NAMES["op"], 0, 77, 255]
_ALGORITHMS = [*_NAMES["algorithm"], 255]
_FAILURES = [0, 0, 0, *AbortKind, 200]
_TICK_NS = [1, 10_000, 3_000_000, 200_000_000, 3_000_000_000]  # from one operation to the next


class _Rank:
    """Makes up the recorder of one rank: threads, messages, groups, what hangs, other processes."""

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
        kinds = dice.sample(_OPS, dice.randint(1, 3))
        for _ in range(count):
            self._now_ns += dice.randint(0, self._tick_ns)
            self._number += dice.random() < 0.1  # a ticket that was passed over
            self._records[self._number] = self._operation(dice.choice(kinds))
            self._number += 1
        for number in sorted(self._records)[: -n_kept or None]:
            if not self._records[number][0] & 1:
                del self._records[number]
        return np.array([self._records[its] for its in sorted(self._records)], np.uint64).tobytes()

    def be_another(self) -> None:
        self._number, self._records = 0, {}

    def _operation(self, kind: int) -> list[int]:
        dice = self._dice
        begun = max(1, self._now_ns - dice.randint(0, 20) * self._tick_ns * (self._n_threads > 1))
        what = kind | dice.choice(_ALGORITHMS) << 8 | dice.randint(0, 1 << 16) << 40
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
        record[7] |= int(self._dice.choice(_FAILURES)) << 32


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 3),
    st.sampled_from(_TICK_NS),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 400)), min_size=1, max_size=4),
    st.integers(0, 8),
)
def test_a_look_finds_what_numpy_finds(seed, n_threads, tick_ns, looks, at):
    rank, native, reference = (
        _Rank(seed, n_threads, tick_ns),
        TraceSummarizer(),
        NumpyTraceSummarizer(),
    )
    for number, (count, n_kept) in enumerate(looks):
        if number == at:
            rank.be_another()
        packed = rank.go_on(count, n_kept)
        assert native.read(packed) == reference.read(packed)
        assert (native.has_open, native.since) == (reference.has_open, reference.since)


@given(
    st.integers(0, 1 << 32),
    st.integers(0, 60),
    st.integers(1, 5),
    st.sampled_from([0, 3, 50]),
    st.sampled_from([{}, {0: 3}, {0: 2, 5: 4}]),
)
def test_who_came_last_is_whom_numpy_finds(seed, count, n_ranks, unsure_ns, members):
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        rank, begun = dice.randrange(n_ranks), dice.randint(1, 100)
        ended = dice.choice([0, begun + dice.randint(0, 50)])
        host = dice.choice([0, rank % 2])
        rows.append(
            (rank, dice.choice([0, 5]), dice.randint(1, 8), begun, ended, host, host * unsure_ns)
        )
    seen = np.array(rows, ENTERED)
    assert find_stragglers(seen, members=members) == numpy_late_ranks(seen, members=members)
    assert find_stragglers(seen, 20, 90) == numpy_late_ranks(seen, 20, 90)


@given(st.lists(st.binary(min_size=64, max_size=64), max_size=40), st.booleans())
def test_whatever_lies_in_a_page_a_client_takes_what_is_told_of_it(records, has_largest):
    reader = TraceSummarizer()
    for packed in (b"".join(records), b"\xff" * 64 * 20 * has_largest + b"".join(records)):
        found = reader.read(packed)
        encoded = msgspec.msgpack.encode((found.spans, found.uses))
        msgspec.msgpack.decode(encoded, type=tuple[tuple[Span, ...], tuple[Use, ...]])
        seen = np.zeros(len(found.entries) // ENTRY.itemsize, ENTERED)
        for name in ENTRY.names:
            seen[name] = np.frombuffer(found.entries, ENTRY)[name]
        seen["rank"], seen["host"], seen["unsure"] = np.arange(len(seen)), seen["entered"], -1
        seen["place"] %= 3
        assert all(0 <= its.late_ns < 1 << 62 for its in find_stragglers(seen).late)


def test_part_of_a_record_is_refused():
    with pytest.raises(ValueError, match="no whole records"):
        TraceSummarizer().read(b"\0" * 65)
    with pytest.raises(ValueError, match="no whole entries"):
        _native.entered(b"\0" * 33, 0, 0, 0)
