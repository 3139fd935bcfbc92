"""The pure parts of `phalanx launch`: labelled lines, which words are whose, who failed first."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs.terminal import Terminal

from phalanx.cli.launch.command import place, split
from phalanx.cli.launch.exit_status import FailureAttribution
from phalanx.cli.launch.lines import PROMPT_AFTER_S, REDRAW_AFTER_S, LabelledLines, rank_label
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
            now += 2 * PROMPT_AFTER_S
            written += lines.due(now)
    for rank in range(3):
        for stream in ("stdout", "stderr"):
            written += lines.finish(rank, stream)
    return written


def said_by(pieces, source):
    return b"".join(data for who, data, _ in pieces if who == source)


def lines_on(terminal, n_ranks=2):
    return LabelledLines(rank_label(n_ranks), ONE_SCREEN, {1: terminal.size})


@given(PIECES, st.booleans())
def test_lines_come_whole_with_their_label(pieces, with_silences):
    pieces = [(source, data.replace(b"\r", b"?"), flag) for source, data, flag in pieces]
    lines = LabelledLines(rank_label(3), TWO_SCREENS)
    written = played(lines, pieces, with_silences=with_silences)
    for stream in TWO_SCREENS:
        text = b"".join(data for where, data in written if where == stream)
        for rank in range(3):
            own = [line[4:] for line in text.split(b"\n") if line.startswith(b"[%d] " % rank)]
            said = said_by(pieces, (rank, stream))
            said = said.removesuffix(b"\n").split(b"\n") if said else []
            # Before a whole line, the begin of an unfinished one may be shown.
            shown = iter(own)
            assert all(line in shown for line in said)
            assert with_silences or own == said


LETTERS = st.text(alphabet="ab\r", max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 2), LETTERS, st.booleans(), st.booleans()), max_size=30)


@given(STEPS, st.integers(5, 40), st.integers(2, 8))
def test_on_a_terminal_whole_lines_stay_and_the_last_states_are_below(steps, columns, rows):
    terminal = Terminal(columns, rows)
    lines = lines_on(terminal, 3)
    said, unfinished = [], dict.fromkeys(range(3), "")
    for number, (rank, text, has_ended, is_late) in enumerate(steps):
        terminal.put(lines.feed(rank, "stdout", (text + "\n" * has_ended).encode(), float(number)))
        unfinished[rank] += text
        if has_ended:
            said.append((rank, unfinished[rank]))
            unfinished[rank] = ""
        if is_late:
            terminal.put(lines.due(number + 0.5))
    for rank in range(3):
        terminal.put(lines.finish(rank, "stdout"))
        if unfinished[rank].strip("\r"):
            said.append((rank, unfinished[rank]))
    shown = [f"[{rank}] {text.rstrip(chr(13)).split(chr(13))[-1]}" for rank, text in said]
    rows = [line[at : at + columns] for line in shown for at in range(0, len(line), columns)]
    assert terminal.rows == [*rows, ""]


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
    # What is shown before the end of its line may be shown again.
    pieces = [
        ((rank, stream), bytes(65 + 2 * rank + (stream == "stderr") for _ in data) + b"\n" * flag, flag)
        for (rank, stream), data, flag in pieces
    ]  # fmt: skip
    written = played(LabelledLines(rank_label(3), ONE_SCREEN), pieces, with_silences=True)
    text = re.sub(rb"\[\d\] ", b"", b"".join(data for _, data in written))
    for letter in range(65, 71):
        assert text.count(letter) >= sum(data.count(letter) for _, data, _ in pieces)


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
    assert lines.next_due is None or lines.next_due <= PROMPT_AFTER_S


def test_a_prompt_is_shown_and_its_answer_follows_it():
    lines = LabelledLines(rank_label(2), ONE_SCREEN)
    assert lines.feed(0, "stdout", b"who? ", 0.0) == []
    assert lines.next_due == PROMPT_AFTER_S
    assert lines.due(PROMPT_AFTER_S / 2) == []
    assert lines.due(PROMPT_AFTER_S) == [("stdout", b"[0] who? ")]
    assert lines.next_due is None
    assert lines.feed(0, "stdout", b"me\n", 1.0) == [("stdout", b"me\n")]


def test_another_s_line_ends_an_open_prompt_on_the_same_screen_only():
    lines = LabelledLines(rank_label(2), ONE_SCREEN)
    lines.feed(0, "stdout", b"who? ", 0.0)
    lines.due(PROMPT_AFTER_S)
    assert lines.feed(1, "stderr", b"hm\n", 3.0) == [("stdout", b"\n"), ("stderr", b"[1] hm\n")]
    assert lines.feed(0, "stdout", b"me\n", 3.0) == [("stdout", b"[0] who? me\n")]
    lines = LabelledLines(rank_label(2), TWO_SCREENS)
    lines.feed(0, "stdout", b"who? ", 0.0)
    lines.due(PROMPT_AFTER_S)
    assert lines.feed(1, "stderr", b"hm\n", 3.0) == [("stderr", b"[1] hm\n")]
    assert lines.feed(0, "stdout", b"me\n", 3.0) == [("stdout", b"me\n")]


def test_a_line_is_begun_at_most_once_before_it_is_whole():
    lines = LabelledLines(rank_label(2), ONE_SCREEN)
    written = []
    for step in range(5):
        for rank in range(2):
            written += lines.feed(rank, "stdout", b".", 3.0 * step)
        written += lines.due(3.0 * step + PROMPT_AFTER_S)
    for rank in range(2):
        written += lines.feed(rank, "stdout", b"\n", 20.0)
    text = b"".join(data for _, data in written)
    assert text == b"[0] .\n[1] .....\n[0] .....\n"  # of rank 1 only the newline was missing


def test_after_a_typed_line_everybody_begins_anew():
    lines = LabelledLines(rank_label(2), ONE_SCREEN)
    for rank in range(2):
        lines.feed(rank, "stdout", b"(Pdb) ", 0.0)
    assert lines.due(PROMPT_AFTER_S) == [
        ("stdout", b"[0] (Pdb) "), ("stdout", b"\n"), ("stdout", b"[1] (Pdb) "),
    ]  # fmt: skip
    assert lines.line_was_typed() == [("stdout", b"\n")]
    assert lines.feed(1, "stdout", b"42\n", 3.0) == [("stdout", b"[1] 42\n")]
    assert lines.feed(0, "stdout", b"42\n", 3.0) == [("stdout", b"[0] 42\n")]


def test_questions_stay_on_a_terminal_with_their_answer():
    terminal = Terminal()
    lines = lines_on(terminal)
    for rank in range(2):
        terminal.put(lines.feed(rank, "stderr", b"\r 10%", 0.0))
        terminal.put(lines.feed(rank, "stdout", b"(Pdb) ", 0.0))
    terminal.put(lines.due(REDRAW_AFTER_S))
    assert terminal.rows == ["[0]  10%", "[1]  10%", "[0] (Pdb) ", "[1] (Pdb) "]
    terminal.type(lines, "p x")
    terminal.put(lines.feed(1, "stdout", b"42\n", 1.0))
    assert terminal.rows[2:] == ["[0] (Pdb) ", "[1] (Pdb) p x", "[1] 42", "[0]  10%", "[1]  10%"]


def test_of_a_bar_a_file_gets_the_last_state():
    lines = LabelledLines(rank_label(1), ONE_SCREEN)
    shown = []
    for step in range(10):
        shown += lines.feed(0, "stderr", b"\r %d" % step, 10.0 * step)
        shown += lines.due(10.0 * step + 9)
    assert shown == []
    assert lines.feed(0, "stderr", b"\r done\r\nnext\r\n", 100.0) == [
        ("stderr", b"[0]  done\r\n[0] next\r\n")
    ]
    lines.feed(0, "stderr", b"\r 1%\r    \r", 100.0)
    assert lines.finish(0, "stderr") == []  # cleared


def test_without_labels_a_bar_keeps_its_bytes():
    lines = LabelledLines(lambda rank: b"", ONE_SCREEN)
    assert lines.feed(0, "stderr", b"\r 1%\r 2%", 0.0) == lines.due(9.0) == []
    assert lines.feed(0, "stderr", b"\n", 9.0) == [("stderr", b"\r 1%\r 2%\n")]


def test_more_bars_than_rows_leave_the_whole_lines_alone():
    terminal = Terminal(columns=12, rows=4)
    lines = lines_on(terminal, 10)
    for step in range(3):
        for rank in range(10):
            terminal.put(lines.feed(rank, "stderr", b"\r bar of 20 letters %d" % step, step))
        terminal.put(lines.due(step + 0.5))
        terminal.put(lines.feed(0, "stdout", b"line %d\n" % step, step + 0.6))
    assert terminal.rows[:3] == ["[0] line 0", "[0] line 1", "[0] line 2"]
    assert terminal.rows[3:] == [f"[{rank}]  bar of " for rank in (7, 8, 9)]


def test_in_the_background_nothing_is_drawn_until_the_return():
    terminal = Terminal()
    lines = lines_on(terminal)
    terminal.columns = 0
    terminal.put(lines.feed(0, "stdout", b"who? ", 0.0))
    terminal.put(lines.due(1.0))
    assert terminal.rows == [""]
    terminal.columns = 40
    terminal.put(lines.due(lines.next_due))
    assert terminal.rows == ["[0] who? "]


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


def test_the_first_that_fails_is_the_culprit():
    attribution = FailureAttribution(3)
    attribution.end(0, 0)
    attribution.end(2, 3)
    attribution.is_ending = True
    attribution.end(1, -15)
    assert (attribution.culprit, attribution.running, attribution.status) == (2, (), 3)


def test_nobody_fails():
    attribution = FailureAttribution(1)
    assert attribution.running == (0,)
    attribution.end(0, 0)
    assert attribution.culprit == -1
    assert not attribution.is_open


def test_a_rank_that_was_only_freed_points_at_the_cause():
    attribution = FailureAttribution(3)
    attribution.blame(0, 1)
    attribution.end(0, 1)
    assert attribution.is_open
    assert attribution.culprit == 0
    attribution.end(1, 1)
    assert not attribution.is_open
    assert attribution.culprit == 1


def test_one_that_left_well_is_not_to_blame():
    attribution = FailureAttribution(2)
    attribution.blame(0, 1)
    attribution.end(1, 0)
    attribution.end(0, 1)
    assert attribution.culprit == 0
    assert not attribution.is_open


@given(st.permutations(range(4)), st.dictionaries(st.integers(0, 3), st.integers(-1, 3)))
def test_blame_in_circles_ends(order, blames):
    attribution = FailureAttribution(4)
    for rank, culprit in blames.items():
        attribution.blame(rank, culprit)
    for rank in order:
        attribution.end(rank, 1)
        assert attribution.culprit in order
