"""Reading faulthandler's dumps: recorded ones, live ones, cut ones, hostile names."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.supervisor.health.stack_reader import Frame, Stack, looks_whole, parse_dump

# Recorded from CPython 3.11 in a rank; 3.10, 3.12 and 3.13 write the same lines.
OF_RANK = """\
Thread 0x00007f81627fc6c0 (most recent call first):
  File "/lib/python3.11/threading.py", line 982 in run
  File "/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f817d496b80 (most recent call first):
  File "<cell 65adf98a>", line 2 in load
  File "<cell 57295dad>", line 1 in <module>
  File "/venv/lib/python3.11/site-packages/IPython/core/interactiveshell.py", line 3823 in run_code
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
# 3.14 names threads; 3.13 and later have words for frames that cannot be read.
OF_LATER = """\
Thread 0x00007f81627fc6c0 [px-listener] (most recent call first):
  <no Python frame>

Thread 0x00007f817d496b80 [MainThread [x]] (most recent call first):
  File ???, line ??? in ???
  <freed frame>
  File "a.py", line 7 in <module>
"""


def test_a_recorded_dump():
    other, main = parse_dump(OF_RANK)
    assert other == Stack(
        (
            Frame("/lib/python3.11/threading.py", 982, "run"),
            Frame("/lib/python3.11/threading.py", 1002, "_bootstrap"),
        ),
        is_current=False,
    )
    assert main.is_current
    assert main.frames[:2] == (
        Frame("<cell 65adf98a>", 2, "load"),
        Frame("<cell 57295dad>", 1, "<module>"),
    )
    assert looks_whole(OF_RANK)


def test_lines_of_later_pythons():
    nothing, main = parse_dump(OF_LATER)
    assert nothing.frames == ()
    assert main.frames == (Frame("???", 0, "???"), Frame("a.py", 7, "<module>"))
    assert looks_whole(OF_LATER)


def test_a_cut_dump_has_the_frames_that_are_whole():
    for end in range(len(OF_RANK)):
        for stack, whole in zip(parse_dump(OF_RANK[:end]), parse_dump(OF_RANK), strict=False):
            assert stack.frames == whole.frames[: len(stack.frames)]
    assert not looks_whole(OF_RANK[:-1])
    assert not looks_whole(OF_RANK[: OF_RANK.index("  File")])


@pytest.mark.parametrize("end", ["  ...\n", "...\n"])
def test_what_faulthandler_itself_leaves_out_is_an_end(end):
    assert looks_whole('Thread 0x7f (most recent call first):\n  File "a", line 1 in f\n' + end)


def dump_of(function, code):
    """The text that faulthandler writes while ``function`` runs."""
    with tempfile.TemporaryFile() as file:
        code["dump"] = lambda: faulthandler.dump_traceback(file)
        function()
        file.seek(0)
        return file.read().decode("ascii")


# What CPython takes for a name; faulthandler cuts after 500 characters.
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=100)


@given(name=NAMES, file=NAMES)
def test_any_names_leave_the_other_frames_alone(name, file):
    names = {}
    exec("def function(): dump()", names)
    code = names["function"].__code__.replace(co_name=name, co_filename=file)
    function = type(names["function"])(code, names)
    main = parse_dump(dump_of(function, names))[-1]
    at = [frame.function for frame in main.frames].index("dump_of")
    hostile = main.frames[at - 1]
    assert at == 2
    assert hostile.function.isprintable()
    if name.isidentifier() and '"' not in file:
        assert hostile.function == name
        assert hostile.line == 1


@given(st.text())
def test_any_text_is_read(text):
    for stack in parse_dump(text):
        assert all(isinstance(frame.line, int) for frame in stack.frames)
    looks_whole(text)


def test_the_main_thread_is_the_last_of_a_live_dump():
    def call():
        names["dump"]()

    names = {}
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        stacks = parse_dump(dump_of(call, names))
    finally:
        is_over.set()
        thread.join()
    assert len(stacks) >= 2
    assert stacks[-1].is_current
