"""Lines and sets of ranks: pure text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.protocol import format_ranks
from phalanx.workspace import parse_ranks
from phalanx.workspace.output.lines import LINE_LIMIT, LineAssembler
from phalanx.workspace.output.notices import chosen_ranks

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


def test_a_long_line_costs_its_length_and_is_kept_in_part():
    lines = LineAssembler()
    for _ in range(20_000):
        lines.feed(0, "stdout", "x" * 50)
        assert sum(len(piece) for piece in lines._unfinished[0, "stdout"].pieces) <= LINE_LIMIT
    (line,) = lines.feed(0, "stdout", "\n")
    assert line == "x" * LINE_LIMIT + f" … and {1_000_000 - LINE_LIMIT:,} more characters"
    assert lines.feed(0, "stdout", "next\n") == ["next"]


def test_a_long_bar_is_kept_in_part():
    lines = LineAssembler()
    assert lines.feed(0, "stdout", "y" * 150_000 + "\r" + "z" * 120_000 + "\r\r") == []
    assert lines.bars()[0] == "z" * LINE_LIMIT + " … and 20,000 more characters"
    assert lines.feed(0, "stdout", "50%\r") == []
    assert lines.bars() == {0: "50%"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[31mred", "\x1b[31mred\x1b[0m"),
        ("\x1b[38;5;196;1mred\x1b[m", "\x1b[38;5;196;1mred\x1b[m"),
        ("\x1b[2J\x1b[1;1Hhome\x1b[A", "home"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]never ends", ""),
        ("\x1b[" + "1;" * 40_000 + "m" + "text", "text"),
        ("a\0b\x07\x0e\x7f\x9b", "a␀b␇␎␡\ufffd"),
        ("|\b/\b-\b done", " done"),
        ("\b\bab", "ab"),
        ("tab\tand é 漢 𝄞", "tab\tand é 漢 𝄞"),
        ("\x1b", ""),
    ],
)
def test_controls_do_no_harm_and_colours_stay(text, shown):
    assert LineAssembler().feed(0, "stdout", text + "\n") == [shown]


def test_a_colour_goes_on_in_the_next_line_of_its_rank():
    lines = LineAssembler()
    assert lines.feed(0, "stdout", "\x1b[1;31mone\nt") == ["\x1b[1;31mone\x1b[0m"]
    assert lines.feed(1, "stdout", "other\n") == ["other"]
    assert lines.feed(0, "stderr", "other\n") == ["other"]
    assert lines.feed(0, "stdout", "wo\x1b[22m\n") == ["\x1b[1;31mtwo\x1b[22m\x1b[0m"]
    assert lines.feed(0, "stdout", "\x1b[39mthree\nfour\n") == ["\x1b[31m\x1b[39mthree", "four"]


@given(st.text(st.sampled_from("\x1b[]0;1m\x9b\x07\b\\A \x00"), max_size=60))
def test_no_control_but_colours_comes_through(text):
    (line,) = LineAssembler().feed(0, "stdout", text + "\n")
    assert re.sub(r"\x1b\[[\d;:]*m", "", line).isprintable()


@given(st.sets(st.integers(0, 63), min_size=1))
def test_ranks_are_read_back(ranks):
    assert parse_ranks(format_ranks(ranks), 64) == tuple(sorted(ranks))


@given(
    *(st.none() | st.integers(-9, 9) for _ in range(2)),
    st.none() | st.integers(-3, 3).filter(bool),
    st.integers(1, 8),
)
def test_a_slice_of_ranks_is_as_one_of_a_list(start, stop, step, size):
    ranks = slice(start, stop, step)
    text = ":".join("" if at is None else str(at) for at in (start, stop, step))
    expected = tuple(sorted(range(size)[ranks]))
    if expected:
        assert parse_ranks(text, size) == chosen_ranks(ranks, size) == expected
    else:
        for read, named in ((parse_ranks, text), (chosen_ranks, ranks)):
            with pytest.raises(ValueError, match="there are no ranks"):
                read(named, size)


def test_slices_and_numbers_can_be_named_together():
    assert parse_ranks("0, 1::2", 6) == (0, 1, 3, 5)
    assert parse_ranks(":2,-1:", 6) == (0, 1, 5)


def test_a_slice_without_numbers_is_refused():
    with pytest.raises(TypeError, match="a slice of ranks has whole numbers"):
        chosen_ranks(slice("a", None), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("7", "there is no rank 7: the ranks are 0 to 3"),
        ("0,x", "ranks are written like 0,2-3"),
        ("", "ranks are written like 0,2-3"),
        ("3-1", "run backwards"),
        ("-1", "ranks are written like 0,2-3"),
        ("a:", "ranks are written like 0,2-3 or ::2"),
        ("0:1:1:1", "ranks are written like 0,2-3 or ::2"),
        ("::0", "the step of the ranks '::0' is 0"),
        ("4:", "there are no ranks '4:': the ranks are 0 to 3"),
    ],
)
def test_mistakes_in_ranks_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_ranks(text, 4)
