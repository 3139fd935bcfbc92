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
