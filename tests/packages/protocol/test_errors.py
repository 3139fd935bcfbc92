"""What a cell's error says, and of which type it is."""

from __future__ import annotations

import pytest

from phalanx.errors import CellError, CollectiveMismatch, DistributedError, cell_error

FREED = ("RankFailure", "rank 2 on vm: ended its cell with an error", ("a traceback",))


def test_the_root_cause_comes_first_and_followers_in_one_line():
    error = cell_error({0: FREED, 1: FREED, 2: ("ValueError", "mine", ("Traceback of mine",))})
    assert str(error).splitlines() == [
        "rank 2: ValueError: mine",
        "then ranks 0-1: RankFailure: rank 2 on vm: ended its cell with an error",
    ]
    assert error._render_traceback_() == [
        "rank 2:",
        "Traceback of mine",
        "then ranks 0-1: RankFailure: rank 2 on vm: ended its cell with an error",
    ]
    assert isinstance(error, ValueError)


def test_different_errors_come_one_after_another():
    error = cell_error({0: ("ValueError", "a", ("A",)), 1: ("TypeError", "b", ("B",))})
    assert error._render_traceback_() == ["rank 0:", "A", "rank 1:", "B"]
    assert type(error) is CellError


RED, PLAIN = "\x1b[31m", "\x1b[39m"


def _traceback(text, line=3, cause=None):
    """A traceback as IPython renders it, with the colours that it has."""
    before = (f"{RED}KeyError{PLAIN}: {cause}", "\nDuring handling of the above") if cause else ()
    head = f"{RED}ValueError{PLAIN}            Traceback (most recent call last)"
    return (
        *before,
        head,
        f"This cell, line {line}\n----> f()\n",
        f"{RED}ValueError{PLAIN}: {text}",
    )


def _errors(n, **options):
    texts = [f"no {rank}\nsecond line" for rank in range(n)]
    return {
        rank: ("ValueError", text, _traceback(text, **options)) for rank, text in enumerate(texts)
    }


def test_errors_of_one_kind_have_one_traceback():
    failures = _errors(8)
    assert cell_error(failures)._render_traceback_() == [
        "rank 0:",
        *failures[0][2],
        "and 7 more like it:",
        "  rank 1: ValueError: no 1",
        "  rank 2: ValueError: no 2",
        "  rank 3: ValueError: no 3",
        "  ranks 4-7: ValueError with other texts",
    ]
    assert cell_error(_errors(5))._render_traceback_()[-1] == "  rank 4: ValueError: no 4"


def test_errors_of_one_kind_may_have_come_from_others():
    failures = {
        rank: ("ValueError", "no", _traceback("no", cause=f"'{rank}'")) for rank in range(2)
    }
    failures[1] = ("ValueError", "never", _traceback("never", cause="'1'"))
    shown = cell_error(failures)._render_traceback_()
    assert shown[-2:] == ["and 1 more like it:", "  rank 1: ValueError: never"]


def test_errors_of_other_places_are_of_another_kind():
    failures = _errors(3)
    failures[2] = ("ValueError", "no 2", _traceback("no 2", line=5))
    shown = cell_error(failures)._render_traceback_()
    assert shown.count("and 1 more like it:") == 1
    assert shown[-4:] == ["rank 2:", *failures[2][2]]


def test_a_long_text_beside_a_traceback_is_cut():
    failures = {rank: ("ValueError", f"{rank}" * 999, ("ValueError: ...",)) for rank in range(2)}
    last = cell_error(failures)._render_traceback_()[-1]
    assert last.startswith("  rank 1: ValueError: 111")
    assert len(last) < 250


def test_followers_alone_are_the_cause():
    error = cell_error({0: FREED, 1: FREED})
    assert str(error).startswith("ranks 0-1: RankFailure")
    assert type(error) is CellError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ZeroDivisionError", ZeroDivisionError),
        ("KeyError", KeyError),
        ("AssertionError", AssertionError),
        ("CollectiveMismatch", CollectiveMismatch),
        ("DistributedError", DistributedError),
    ],
)
def test_the_type_is_the_causes_own(name, kind):
    error = cell_error({0: (name, "text", ())})
    assert isinstance(error, kind)
    assert isinstance(error, CellError)
    assert type(error).__name__ in {name, "CellError"}
    assert str(error) == f"rank 0: {name}: text"


@pytest.mark.parametrize(
    "name", ["OSError", "SyntaxError", "UnicodeDecodeError", "MyError", "print", "SystemExit"]
)
def test_where_the_type_cannot_be_it_is_a_cell_error(name):
    error = cell_error({0: (name, "text", ())})
    assert isinstance(error, CellError)
    assert str(error) == f"rank 0: {name}: text"


@pytest.mark.parametrize("name", ["MyError", "RankFailure", "KeyboardInterrupt", "SystemExit"])
def test_what_is_a_plain_cell_error_as_run_promises(name):
    assert type(cell_error({0: (name, "text", ())})) is CellError
    both = {0: ("ValueError", "a", ()), 1: (name, "b", ())}
    is_freed = name in {"RankFailure", "KeyboardInterrupt"}
    assert isinstance(cell_error(both), ValueError) is is_freed
