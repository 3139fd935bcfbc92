"""Lines and sets of ranks: pure text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.workspace import format_ranks, parse_ranks
from phalanx.workspace._lines import LineAssembler

TEXT = st.text(st.sampled_from("ab\n"), max_size=40)


@given(st.lists(TEXT, max_size=8))
def test_lines_do_not_depend_on_how_the_text_is_cut(pieces):
    lines = LineAssembler()
    got = [line for piece in pieces for line in lines.feed(0, "stdout", piece)]
    got += [line for _, _, line in lines.finish()]
    whole = "".join(pieces)
    expected = whole.split("\n")
    if expected[-1] == "":
        expected.pop()
    assert got == expected


def test_ranks_and_streams_do_not_mix():
    lines = LineAssembler()
    assert lines.feed(0, "stdout", "a") == []
    assert lines.feed(1, "stdout", "b\n") == ["b"]
    assert lines.feed(0, "stderr", "c\n") == ["c"]
    assert lines.finish() == [(0, "stdout", "a")]
    assert lines.finish() == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10%\r50%\r100%\n", "100%"),
        ("\r10%\r100%\n", "100%"),
        ("10%\r100%\r\n", "100%"),
        ("windows\r\n", "windows"),
        ("\r\n", ""),
    ],
)
def test_a_line_that_was_written_over_shows_its_last_text(text, shown):
    assert LineAssembler().feed(0, "stdout", text) == [shown]


def test_a_bar_is_seen_while_it_is_drawn_and_takes_no_room():
    lines = LineAssembler()
    for percent in range(100):
        assert lines.feed(2, "stderr", f"\r{percent}%") == []
        assert lines.bars() == {2: f"{percent}%"}
    assert sum(len(line.pieces) for line in lines._unfinished.values()) == 1
    assert lines.feed(2, "stderr", "\r100%\n") == ["100%"]
    assert lines.bars() == {}


def test_a_prompt_without_end_is_no_bar():
    lines = LineAssembler()
    lines.feed(0, "stdout", "working ...")
    assert lines.bars() == {}


def test_a_long_line_costs_its_length():
    lines = LineAssembler()
    for _ in range(20_000):
        lines.feed(0, "stdout", "x" * 50)
    (line,) = lines.feed(0, "stdout", "\n")
    assert len(line) == 1_000_000


@given(st.sets(st.integers(0, 63), min_size=1))
def test_ranks_are_read_back(ranks):
    assert parse_ranks(format_ranks(ranks), 64) == tuple(sorted(ranks))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7", "there is no rank 7: the ranks are 0 to 3"),
        ("0,x", "ranks are written like 0,2-3"),
        ("", "ranks are written like 0,2-3"),
        ("3-1", "run backwards"),
        ("-1", "ranks are written like 0,2-3"),
    ],
)
def test_mistakes_in_ranks_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_ranks(text, 4)
