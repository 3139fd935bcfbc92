"""The file object behind ``sys.stdin``."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.rank.input import CellInput


def file_of(*lines):
    """A file that ends after these lines, and stays at its end."""
    left = list(lines)

    def next_line():
        if not left:
            raise EOFError
        return left.pop(0)

    return CellInput(next_line)


TEXT = st.text(st.characters(blacklist_characters="\r\n"), max_size=5)
CALLS = st.lists(st.tuples(st.sampled_from(["read", "readline"]), st.integers(0, 7)))


@given(st.lists(TEXT, max_size=5), CALLS)
def test_it_reads_as_any_file_does(lines, calls):
    file, model = file_of(*lines), io.StringIO("".join(f"{line}\n" for line in lines))
    for name, size in calls:
        assert getattr(file, name)(size) == getattr(model, name)(size)
    assert file.readline() == model.readline()
    assert list(file) == list(model)
    assert file.read() == ""


def test_all_at_once():
    assert file_of("a", "b").read() == "a\nb\n"
    assert file_of("a", "b").readlines() == ["a\n", "b\n"]


def test_what_it_is():
    file = file_of()
    assert (file.isatty(), file.readable(), file.writable()) == (False, True, False)
    with pytest.raises(io.UnsupportedOperation, match="no file descriptor"):
        file.fileno()
    with pytest.raises(io.UnsupportedOperation):
        file.write("x")
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.readline()


def test_a_new_cell_does_not_read_the_rest_of_a_line():
    file = file_of("one", "two")
    assert file.read(1) == "o"
    file.forget()
    assert file.readline() == "two\n"
