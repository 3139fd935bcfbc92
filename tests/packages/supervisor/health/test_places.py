"""Places in the words of a notebook's or a script's author."""

from __future__ import annotations

import pytest

from phalanx.distributed.bootstrap.stack_listener import is_cell_file
from phalanx.supervisor.health.stack_reader import _OWN, Frame, Stack, place_of

SITE = "/venv/lib/python3.11/site-packages/"
STDLIB = "/usr/lib/python3.11/"
CELL, OLD = "<cell 57295dad>", "<cell 65adf98a>"

OP = (Frame(_OWN + "distributed/operations/run_collective.py", 70, "collective"),)
ASKING = (
    Frame(STDLIB + "threading.py", 327, "wait"),
    Frame(_OWN + "rank/input.py", 70, "next_line"),
    Frame(_OWN + "rank/kernel.py", 180, "raw_input"),
)
NUMPY = (Frame(SITE + "numpy/linalg/_linalg.py", 1681, "svd"),)
KERNEL = (
    Frame(SITE + "IPython/core/interactiveshell.py", 3823, "run_code"),
    Frame(SITE + "ipyparallel/engine/kernel.py", 213, "do_execute"),
    Frame(_OWN + "rank/kernel.py", 131, "do_execute"),
    Frame(STDLIB + "asyncio/base_events.py", 607, "run_forever"),
    Frame(_OWN + "supervisor/engine/rank_main.py", 85, "<module>"),
    Frame("<frozen runpy>", 198, "_run_module_as_main"),
)
SCRIPT = (Frame("/home/ada/train.py", 80, "<module>"),)
LOOP = (Frame(STDLIB + "selectors.py", 468, "select"), *KERNEL[3:])
JOIN = (Frame(STDLIB + "threading.py", 1119, "join"),)


def main(*frames):
    return [Stack((Frame(STDLIB + "threading.py", 1, "run"),), False), Stack(frames, True)]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ((Frame(CELL, 3, "<module>"), *KERNEL), "cell line 3"),
        ((Frame(CELL, 3, "<cell line: 2>"), *KERNEL), "cell line 3"),
        ((*OP, Frame(CELL, 3, "<module>"), *KERNEL), "cell line 3"),
        (
            (Frame(CELL, 2, "load"), Frame(CELL, 4, "<module>"), *KERNEL),
            "cell line 2 in load <- cell line 4",
        ),
        (
            (Frame(OLD, 2, "load"), Frame(CELL, 4, "<module>"), *KERNEL),
            "earlier cell line 2 in load <- cell line 4",
        ),
        (
            (
                *NUMPY,
                Frame("/home/ada/solver.py", 12, "solve"),
                Frame(CELL, 3, "<module>"),
                *KERNEL,
            ),
            "solver.py:12 in solve <- cell line 3",
        ),
        ((*OP, Frame("/home/ada/train.py", 31, "load"), *SCRIPT), "train.py:31 in load"),
        (SCRIPT, "train.py:80"),
        ((Frame("/tmp/ipykernel_123/456.py", 5, "<module>"), *KERNEL), "cell line 5"),
        # Nothing of the user's own: a module that was run with -m from a library.
        ((*NUMPY, Frame("<frozen runpy>", 88, "_run_code")), "numpy/linalg/_linalg.py:1681 in svd"),
        ((Frame("<string>", 1, "<module>"),), "<string>:1"),
        ((Frame("/home/ada/x.py", 0, "f"),), "x.py:? in f"),
        (LOOP, ""),
        ((), ""),
    ],
)
def test_the_innermost_place_of_the_users_own(frames, text):
    place = place_of(main(*frames))
    assert (place.text, place.is_asking) == (text, False)


@pytest.mark.parametrize(
    ("file", "is_cell"),
    [
        (CELL, True),
        ("<ipython-input-3-0a1b2c>", True),
        ("/tmp/ipykernel_123/456.py", True),
        ("/var/folders/x1/T/ipykernel_9/1.py", True),
        ("/home/ada/ipykernel_tools/step.py", False),
        ("/home/ada/ipykernel_12/step.py", False),
        ("/home/ada/ipykernel_12/sub/7.py", False),
        ("/home/ada/my_ipykernel_12/7.py", False),
        ("ipykernel_12/7.py", False),
        ("<cell >", False),
        ("<cell of mine>", False),
        ("<string>", False),
        ("/7.py", False),
        ("", False),
    ],
)
def test_which_files_are_cells(file, is_cell):
    assert is_cell_file(file) is is_cell


def test_no_dump_is_no_place():
    assert place_of([]).text == ""


def test_who_stands_at_a_breakpoint_is_asking():
    pydevd = SITE + "debugpy/_vendored/pydevd/pydevd.py"
    waits = Frame(STDLIB + "threading.py", 331, "wait"), Frame(pydevd, 2328, "_do_wait_suspend")
    place = place_of(main(*waits, Frame(CELL, 3, "<module>"), *KERNEL))
    assert (place.text, place.is_asking) == ("cell line 3", True)


def test_who_waits_for_a_line_is_asking():
    assert place_of(main(*ASKING, Frame(CELL, 3, "<module>"), *KERNEL)).is_asking
    # A thread of the user's that was called from there is not.
    called = Frame(CELL, 9, "completer"), *ASKING, Frame(CELL, 3, "<module>"), *KERNEL
    assert not place_of(main(*called)).is_asking


def test_a_question_is_shown_though_a_thread_is_in_an_operation():
    thread = Stack((*OP, Frame("/home/ada/train.py", 31, "work")), False)
    place = place_of([thread, Stack((*ASKING, Frame(CELL, 3, "<module>"), *KERNEL), True)])
    assert (place.text, place.is_asking) == ("cell line 3", True)


def test_libraries_that_our_code_calls_are_not_shown():
    place = place_of(main(*NUMPY, *OP, Frame(CELL, 3, "<module>"), *KERNEL))
    assert (place.text, place.frames) == ("cell line 3", ("cell line 3",))


def test_who_shows_an_error_is_in_no_library():
    colours = Frame(SITE + "pygments/lexer.py", 714, "get_tokens_unprocessed")
    shows = Frame(_OWN + "rank/output/cell_errors.py", 107, "show_error")
    place = place_of(main(colours, shows, *KERNEL))
    assert (place.text, place.is_showing) == ("", True)
    # A user's own text of the error is the user's code.
    place = place_of(main(Frame(CELL, 3, "__str__"), colours, shows, *KERNEL))
    assert (place.text, place.is_showing) == ("cell line 3 in __str__", False)


def test_the_frames_are_the_users_and_the_libraries():
    frames = *NUMPY, Frame("/home/ada/solver.py", 12, "solve"), Frame(CELL, 3, "<module>"), *KERNEL
    assert place_of(main(*frames), "/home/ada").frames == (
        "numpy/linalg/_linalg.py:1681 in svd",
        "solver.py:12 in solve",
        "cell line 3",
    )
    assert place_of(main(*frames)).frames[1] == "/home/ada/solver.py:12 in solve"


def test_a_deep_stack_is_cut():
    frames = [Frame("/home/ada/a.py", 3, "f")] * 100
    assert len(place_of(main(*frames)).frames) == 41
    assert place_of(main(*frames)).frames[-1] == "… and 60 more"


def test_a_thread_in_an_operation_counts_where_the_main_one_waits_for_it():
    worker = Stack((*OP, Frame("/home/ada/train.py", 31, "work")), False)
    waiting = Stack((*JOIN, *SCRIPT), True)
    busy = Stack((Frame("/home/ada/train.py", 90, "load"), *SCRIPT), True)
    assert place_of([worker, waiting]).text == "train.py:31 in work"
    assert place_of([worker, busy]).text == "train.py:90 in load"
    assert place_of([Stack(JOIN, False), waiting]).text == "train.py:80"
