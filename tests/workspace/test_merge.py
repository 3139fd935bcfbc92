"""Equal lines of several ranks come together, and every rank's order stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.workspace.output.printer import WINDOW_S, LineMerger


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
