"""The log of typed lines: order, repeats, overtaking, its end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.protocol import LineNeed, TypedLine
from phalanx.rank import TypedLines


class Asked:
    """Collects what is asked, and lets a test wait for it."""

    def __init__(self) -> None:
        self.needs: list[LineNeed] = []
        self.came = threading.Semaphore(0)

    def __call__(self, need: LineNeed) -> None:
        self.needs.append(need)
        self.came.release()


@given(st.permutations(range(5)), st.lists(st.integers(0, 4), max_size=5))
def test_lines_come_in_order_whatever_the_order_they_arrive_in(order, again):
    lines = TypedLines(0, lambda need: None)
    for index in [*order[:2], *again]:
        lines.feed("cell", index, TypedLine(f"line {index}"))  # some overtake the cell
    lines.begin("cell")
    for index in order:
        lines.feed("cell", index, TypedLine(f"line {index}"))
    assert [lines.next_line() for _ in range(5)] == [f"line {index}" for index in range(5)]


def test_a_missing_line_is_asked_for_once():
    asked = Asked()
    lines = TypedLines(0, asked)
    lines.begin("cell")
    with ThreadPoolExecutor(1) as pool:
        line = pool.submit(lines.next_line, "who? ", password=True)
        asked.came.acquire()
        lines.feed("other", 0, TypedLine("not this"))
        lines.feed("cell", 0, TypedLine("ann"))
        assert line.result(5) == "ann"
    assert asked.needs == [LineNeed("cell", 0, "who? ", True, False)]


def test_end_of_input_stays_the_end():
    lines = TypedLines(0, lambda need: None)
    lines.begin("cell")
    lines.feed("cell", 0, TypedLine(None))
    for _ in range(2):
        with pytest.raises(EOFError):
            lines.next_line()


def test_a_front_end_that_cannot_ask_frees_the_reader():
    asked = Asked()
    lines = TypedLines(0, asked)
    lines.begin("cell")
    with ThreadPoolExecutor(1) as pool:
        line = pool.submit(lines.next_line)
        asked.came.acquire()
        lines.refuse("cell", "no input here")
        with pytest.raises(RuntimeError, match="no input here"):
            line.result(5)


def test_the_end_of_the_cell_frees_the_reader_of_another_thread():
    asked = Asked()
    lines = TypedLines(0, asked)
    lines.begin("cell")
    with ThreadPoolExecutor(1) as pool:
        line = pool.submit(lines.next_line)
        asked.came.acquire()
        lines.end()
        with pytest.raises(EOFError):
            line.result(5)
    with pytest.raises(RuntimeError, match="while a cell runs"):
        lines.next_line()


def test_a_new_cell_has_a_new_log():
    lines = TypedLines(0, lambda need: None)
    lines.begin("a")
    lines.feed("a", 0, TypedLine("old"))
    lines.begin("b")
    lines.feed("b", 0, TypedLine("new"))
    assert lines.next_line() == "new"
