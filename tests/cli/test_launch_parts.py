"""The pure parts of `phalanx launch`: labelled lines, and which words are whose."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.common import split
from phalanx.cli.launching.places import place
from phalanx.cli.launching.terminal import PARTIAL_LINE_AFTER_S, LabelledLines, rank_label
from phalanx.cli.main import _parser
from phalanx.hosts import environment, named_hosts, resolve

ONE_SCREEN = {"stdout": 1, "stderr": 1}
TWO_SCREENS = {"stdout": 1, "stderr": 2}
SOURCES = st.tuples(st.integers(0, 2), st.sampled_from(["stdout", "stderr"]))
PIECES = st.lists(st.tuples(SOURCES, st.binary(max_size=12), st.booleans()), max_size=40)
TEXTS = st.lists(
    st.tuples(SOURCES, st.text(alphabet="ab€𝄞\n", max_size=8), st.integers(1, 5)), max_size=20
)


def played(lines, pieces, *, with_silences):
    """All that is written for these pieces, stream by stream."""
    written = []
    now = 0.0
    for (rank, stream), data, is_silent in pieces:
        written += lines.feed(rank, stream, data, now)
        if with_silences and is_silent:
            now += 2 * PARTIAL_LINE_AFTER_S
            written += lines.due(now)
    for rank in range(3):
        for stream in ("stdout", "stderr"):
            written += lines.finish(rank, stream)
    return written


def said_by(pieces, source):
    return b"".join(data for who, data, _ in pieces if who == source)


@given(PIECES)
def test_lines_come_whole_with_their_label(pieces):
    pieces = [(source, data.replace(b"\r", b"?"), flag) for source, data, flag in pieces]
    written = played(LabelledLines(rank_label(3), TWO_SCREENS), pieces, with_silences=False)
    for stream in TWO_SCREENS:
        text = b"".join(data for where, data in written if where == stream)
        for rank in range(3):
            own = [line[4:] for line in text.split(b"\n") if line.startswith(b"[%d] " % rank)]
            assert b"\n".join(own) == said_by(pieces, (rank, stream)).removesuffix(b"\n")


@given(PIECES)
def test_without_labels_nothing_is_added_to_what_one_rank_says(pieces):
    pieces = [((0, source[1]), data, flag) for source, data, flag in pieces]
    lines = LabelledLines(lambda rank: b"", TWO_SCREENS)
    written = played(lines, pieces, with_silences=True)
    for stream in TWO_SCREENS:
        text = b"".join(data for where, data in written if where == stream)
        assert text == said_by(pieces, (0, stream))


@given(PIECES)
def test_no_byte_is_lost_whatever_is_shown_when(pieces):
    pieces = [
        ((rank, stream), bytes(65 + 2 * rank + (stream == "stderr") for _ in data) + b"\n" * flag, flag)
        for (rank, stream), data, flag in pieces
    ]  # fmt: skip
    written = played(LabelledLines(rank_label(3), ONE_SCREEN), pieces, with_silences=True)
    text = re.sub(rb"\[\d\] ", b"", b"".join(data for _, data in written))
    for letter in range(65, 71):
        assert text.count(letter) == sum(data.count(letter) for _, data, _ in pieces)


@given(TEXTS)
def test_no_character_is_cut_on_a_screen(texts):
    pieces = [
        (source, data[start : start + size], True)
        for source, text, size in texts
        for data in [text.encode()]
        for start in range(0, len(data), size)
    ]
    lines = LabelledLines(rank_label(3), ONE_SCREEN)
    for (rank, stream), data, _ in pieces:
        for _, shown in [*lines.feed(rank, stream, data, 0.0), *lines.due(1.0)]:
            shown.decode()
    assert lines.next_due is None or lines.next_due <= PARTIAL_LINE_AFTER_S


def test_a_prompt_is_shown_and_its_answer_follows_it():
    lines = LabelledLines(rank_label(2), ONE_SCREEN)
    assert lines.feed(0, "stdout", b"who? ", 0.0) == []
    assert lines.next_due == PARTIAL_LINE_AFTER_S
    assert lines.due(PARTIAL_LINE_AFTER_S / 2) == []
    assert lines.due(PARTIAL_LINE_AFTER_S) == [("stdout", b"[0] who? ")]
    assert lines.next_due is None
    assert lines.feed(0, "stdout", b"me\n", 1.0) == [("stdout", b"me\n")]


def test_another_s_line_ends_an_open_prompt_on_the_same_screen_only():
    lines = LabelledLines(rank_label(2), ONE_SCREEN)
    lines.feed(0, "stdout", b"who? ", 0.0)
    lines.due(1.0)
    assert lines.feed(1, "stderr", b"hm\n", 1.0) == [("stdout", b"\n"), ("stderr", b"[1] hm\n")]
    assert lines.feed(0, "stdout", b"me\n", 1.0) == [("stdout", b"[0] me\n")]
    lines = LabelledLines(rank_label(2), TWO_SCREENS)
    lines.feed(0, "stdout", b"who? ", 0.0)
    lines.due(1.0)
    assert lines.feed(1, "stderr", b"hm\n", 1.0) == [("stderr", b"[1] hm\n")]


def test_after_a_typed_line_everybody_begins_anew():
    lines = LabelledLines(rank_label(2), ONE_SCREEN)
    for rank in range(2):
        lines.feed(rank, "stdout", b"(Pdb) ", 0.0)
    assert lines.due(1.0) == [
        ("stdout", b"[0] (Pdb) "), ("stdout", b"\n"), ("stdout", b"[1] (Pdb) "),
    ]  # fmt: skip
    lines.line_was_typed()
    assert lines.feed(1, "stdout", b"42\n", 1.0) == [("stdout", b"[1] 42\n")]
    assert lines.feed(0, "stdout", b"42\n", 1.0) == [("stdout", b"[0] 42\n")]


def test_a_bar_keeps_its_label_and_is_shown_while_it_moves():
    lines = LabelledLines(rank_label(1), ONE_SCREEN)
    shown = []
    for step in range(10):
        shown += lines.feed(0, "stderr", b"\r %d" % step, step * PARTIAL_LINE_AFTER_S / 3)
        shown += lines.due(step * PARTIAL_LINE_AFTER_S / 3)
    assert len(shown) >= 2
    assert shown[0][1].startswith(b"[0] \r[0]  0\r[0]  1")
    text = b"".join(data for _, data in [*shown, *lines.finish(0, "stderr")])
    assert text.count(b"\r[0] ") == 10


def test_an_endless_line_is_shown_in_parts():
    lines = LabelledLines(rank_label(1), ONE_SCREEN)
    n_shown = sum(
        len(data) for _ in range(64) for _, data in lines.feed(0, "stdout", b"x" * 65_536, 0.0)
    )
    assert n_shown == 64 * 65_536 + len(b"[0] ")


WORDS = st.lists(st.sampled_from(["-n", "--env", "--verbose", "-m", "--", "x.py", "=", "-"]))


@given(WORDS)
def test_the_command_s_words_are_never_touched(tail):
    options = {"-n": True, "--env": True, "--verbose": False}
    assert split(["-n", "2", "run.py", *tail], options) == (["-n", "2"], ["run.py", *tail])
    assert split(["--verbose", "--", *tail], options) == (["--verbose"], tail)
    assert split(["--env=A", "-m", *tail], options) == (["--env=A"], ["-m", *tail])


def test_a_value_may_be_missing_at_the_end():
    assert split(["-n"], {"-n": True}) == (["-n"], [])


def test_scripts_get_their_python(tmp_path):
    (tmp_path / "run.py").touch()
    (tmp_path / "here").touch()
    assert resolve(["run.py", "-v"], "/bin/sh", tmp_path) == ["/bin/sh", "run.py", "-v"]
    assert resolve(["-m", "mod", "-v"], "sh", tmp_path, "/bin") == ["/bin/sh", "-m", "mod", "-v"]
    assert resolve(["sh", "-c", ":"], "", tmp_path, "/bin") == ["/bin/sh", "-c", ":"]
    with pytest.raises(ValueError, match="for the one here say ./here"):
        resolve(["here"], "", tmp_path)


@pytest.mark.parametrize(
    ("setting", "words"),
    [("A-B=1", "no name"), ("=1", "no name"), ("A=\0", "null"), ("PHALANX_CHANNEL=3", "sets it")],
)
def test_settings_that_cannot_be(setting, words):
    with pytest.raises(ValueError, match=words):
        environment([setting], {})


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_this_machine_alone_is_no_host_to_reach(name):
    options = _parser().parse_args(["launch", "--hosts", name, "-n", "2"])
    found = place(options, named_hosts(options), {})
    assert (found.ranks, found.hosts) == (2, ())


def test_words_for_ssh_are_split_as_a_shell_does():
    words = ["launch", "--hosts", "a.invalid", "--ssh-arg", "-i 'my key'", "--ssh-arg=-4"]
    options = _parser().parse_args(words)
    assert place(options, named_hosts(options), {}).remote.ssh_args == ("-i", "my key", "-4")
    options = _parser().parse_args(["launch", "--hosts", "a.invalid", "--ssh-arg", "'"])
    with pytest.raises(ValueError, match="--ssh-arg: No closing quotation"):
        place(options, named_hosts(options), {})
