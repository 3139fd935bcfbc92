"""Equal lines of several ranks come together, and every rank's order stays."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.workspace import View
from phalanx.workspace.output.front_end import Text
from phalanx.workspace.output.printer import LONGEST_S, WINDOW_S, CellOutput, LineMerger


def shown(merged):
    return [(tuple(sorted(line.ranks)), line.text) for line in merged]


def test_the_same_line_of_all_ranks_is_shown_at_once():
    merger = LineMerger()
    merger.add(0, "stdout", "loss 1", 0.0)
    assert merger.due({0, 1}, 0.01) == []
    merger.add(1, "stdout", "loss 1", 0.02)
    assert shown(merger.due({0, 1}, 0.02)) == [((0, 1), "loss 1")]
    assert merger.next_due_s() is None


def test_a_line_waits_no_longer_than_the_window():
    merger = LineMerger()
    merger.add(0, "stdout", "mine", 1.0)
    assert merger.next_due_s() == 1.0 + WINDOW_S
    assert shown(merger.due({0, 1}, 1.0 + WINDOW_S)) == [((0,), "mine")]
    merger.add(1, "stdout", "mine", 9.0)
    assert shown(merger.finish()) == [((1,), "mine")]


def test_streams_do_not_mix():
    merger = LineMerger()
    merger.add(0, "stdout", "x", 0.0)
    merger.add(1, "stderr", "x", 0.0)
    assert [(line.stream, line.text) for line in merger.finish()] == [
        ("stdout", "x"),
        ("stderr", "x"),
    ]


def test_a_rank_that_repeats_itself_is_not_folded():
    merger = LineMerger()
    for _ in range(3):
        merger.add(0, "stdout", "again", 0.0)
    merger.add(1, "stdout", "again", 0.0)
    assert shown(merger.finish()) == [((0, 1), "again"), ((0,), "again"), ((0,), "again")]


def test_a_line_that_no_other_rank_can_join_is_shown_at_once():
    merger = LineMerger()
    merger.add(0, "stdout", "mine", 0.0)
    merger.add(1, "stdout", "yours", 0.0)
    assert shown(merger.due({0, 1}, 0.0)) == [((0,), "mine")]
    assert merger.due({0, 1}, 0.0) == []  # rank 0 may still print "yours"
    assert shown(merger.due({1}, 0.0)) == [((1,), "yours")]


def test_a_kind_of_line_that_one_rank_alone_prints_does_not_wait():
    merger = LineMerger()
    merger.add(0, "stdout", "loss 0.5", 0.0)
    assert merger.due({0, 1}, 0.0) == []
    assert len(merger.due({0, 1}, WINDOW_S)) == 1
    merger.add(0, "stdout", "loss 0.25", 1.0)
    merger.add(0, "stdout", "done", 1.0)
    assert shown(merger.due({0, 1}, 1.0)) == [((0,), "loss 0.25")]


def test_lines_wait_as_long_as_ranks_were_apart():
    merger = LineMerger()
    for begin_s, apart_s in ((0.0, 0.75 * WINDOW_S), (1.0, 1.4 * WINDOW_S)):
        merger.add(0, "stdout", f"step {begin_s}", begin_s)
        assert merger.due({0, 1}, begin_s + apart_s) == []
        merger.add(1, "stdout", f"step {begin_s}", begin_s + apart_s)
        assert shown(merger.due({0, 1}, begin_s + apart_s)) == [((0, 1), f"step {begin_s}")]
    merger.repeated("stdout step 0.0", 60.0)
    merger.add(0, "stdout", "step 9.9", 9.0)
    assert merger.next_due_s() == 9.0 + LONGEST_S


class Rows(View):
    """Keep the lines that are shown."""

    def __init__(self):
        self.rows = []

    def lines(self, stream, lines):
        self.rows += lines


def printed(view, rank):
    return [text for ranks, text in view.rows if rank in ranks]


@pytest.mark.parametrize("late_s", [0.0, 0.3, 60.0])
def test_lines_that_ranks_print_at_different_times_count_once(late_s):
    n_lines, n_ranks, view = 1000, 4, Rows()
    output = CellOutput(view, max_lines=n_lines + 1)
    came = heapq.merge(
        *(
            [(rank * late_s + n / n_lines, rank, n) for n in range(n_lines)]
            for rank in range(n_ranks)
        )
    )
    for now_s, rank, n in came:
        output.show(range(n_ranks), now_s)
        output.text(Text(rank, "stdout", f"line {n}\n"), now_s)
    for rank in range(n_ranks):
        output.text(Text(rank, "stdout", f"the {rank + 1}th\n"), 300.0)
    output.finish()
    for rank in range(n_ranks):
        assert printed(view, rank)[:n_lines] == [f"line {n}" for n in range(n_lines)]
    assert view.rows[-1] == ((0,), "the 1th")  # one more line has room
    assert output.n_hidden == n_ranks - 1
    if late_s < WINDOW_S:
        assert len(view.rows) == n_lines + 1
    elif late_s < LONGEST_S:
        assert len(view.rows) < 2 * n_lines  # most are merged: they have learned to wait


def test_hidden_lines_count_once():
    view = Rows()
    output = CellOutput(view, max_lines=2)
    for rank in range(3):
        output.show(range(3), 9.0 * rank)
        output.text(Text(rank, "stdout", "a\na\nb\nb\nc\n"), 9.0 * rank)
    output.show(range(3), 99.0)
    assert view.rows == [((rank,), "a") for rank in range(3) for _ in range(2)]
    assert output.n_hidden == 3


EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "c"]), st.floats(0, 0.2)), max_size=60
)


@given(EVENTS)
def test_every_rank_keeps_its_lines_and_their_order(events):
    merger = LineMerger()
    now_s, out = 0.0, []
    said = {rank: [] for rank in range(4)}
    for rank, text, step_s in events:
        now_s += step_s
        merger.add(rank, "stdout", text, now_s)
        said[rank].append(text)
        out += merger.due(range(4), now_s)
    out += merger.finish()
    for rank in range(4):
        assert [line.text for line in out if rank in line.ranks] == said[rank]
    assert sum(len(line.ranks) for line in out) == len(events)
