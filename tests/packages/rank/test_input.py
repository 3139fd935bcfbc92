"""The log of typed lines: order, repeats, overtaking, its end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.distributed.bootstrap.supervised import Loss
from phalanx.errors import RankFailure
from phalanx.protocol import LineNeed, LineNotNeeded, TypedLine
from phalanx.rank.input import POLL_S, TypedLines


class Asked:
    """Collects what is asked, and lets a test wait for it."""

    def __init__(self) -> None:
        self.needs: list[LineNeed] = []
        self.withdrawn: list[str] = []
        self.came = threading.Semaphore(0)

    def __call__(self, need: LineNeed | LineNotNeeded) -> None:
        if isinstance(need, LineNotNeeded):
            self.withdrawn.append(need.cell)
            return
        self.needs.append(need)
        self.came.release()


def test_lines_that_come_before_their_cell_are_kept():
    lines = TypedLines(0, lambda need: None)
    lines.feed("cell", TypedLine("line 0"))
    lines.begin("cell")
    lines.feed("cell", TypedLine("line 1"))
    assert [lines.next_line() for _ in range(2)] == ["line 0", "line 1"]


def test_a_missing_line_is_asked_for_once():
    asked = Asked()
    lines = TypedLines(0, asked)
    lines.begin("cell")
    with ThreadPoolExecutor(1) as pool:
        line = pool.submit(lines.next_line, "who? ", password=True)
        assert asked.came.acquire(timeout=PATIENCE_S)
        lines.feed("other", TypedLine("not this"))
        lines.feed("cell", TypedLine("ann"))
        assert line.result(PATIENCE_S) == "ann"
    assert asked.needs == [LineNeed("cell", 0, "who? ", True, False)]


def test_end_of_input_stays_the_end():
    lines = TypedLines(0, lambda need: None)
    lines.begin("cell")
    lines.feed("cell", TypedLine(None))
    for _ in range(2):
        with pytest.raises(EOFError):
            lines.next_line()


def test_a_front_end_that_cannot_ask_frees_the_reader():
    asked = Asked()
    lines = TypedLines(0, asked)
    lines.begin("cell")
    with ThreadPoolExecutor(1) as pool:
        line = pool.submit(lines.next_line)
        assert asked.came.acquire(timeout=PATIENCE_S)
        lines.refuse("cell", "no input here")
        with pytest.raises(RuntimeError, match="no input here"):
            line.result(PATIENCE_S)


def test_the_end_of_the_cell_frees_the_reader_of_another_thread():
    asked = Asked()
    lines = TypedLines(0, asked)
    lines.begin("cell")
    with ThreadPoolExecutor(1) as pool:
        line = pool.submit(lines.next_line)
        assert asked.came.acquire(timeout=PATIENCE_S)
        lines.end()
        with pytest.raises(EOFError):
            line.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="while a cell runs"):
        lines.next_line()


def test_a_new_cell_has_a_new_log():
    lines = TypedLines(0, lambda need: None)
    lines.begin("a")
    lines.feed("a", TypedLine("old"))
    lines.begin("b")
    lines.feed("b", TypedLine("new"))
    assert lines.next_line() == "new"


class World:
    """What is known of the loss of a rank."""

    def __init__(self) -> None:
        self.loss: Loss | None = None
        self.n_looks = 0

    def look(self) -> Loss | None:
        self.n_looks += 1
        return self.loss

    def wait_looks(self) -> None:
        """Wait until a read has looked whether a rank is lost, and has gone on waiting."""
        n_before = self.n_looks
        wait_until(lambda: self.n_looks >= n_before + 3, "looks at what is lost")

    def lose(self, rank: int, *, epoch: int = 1, was_raised: bool = False) -> None:
        self.loss = Loss(RankFailure(rank, "node", "killed"), epoch, was_raised)


def a_world(lost=()):
    """Lines of a cell that runs, what they ask, and a world to lose ranks of."""
    asked, world = Asked(), World()
    lines = TypedLines(0, asked, world.look)
    lines.begin("cell", lost)
    return lines, asked, world


def waiting(lines, pool, asked, **options):
    """A read that has asked for its line."""
    line = pool.submit(lines.next_line, "? ", **options)
    assert asked.came.acquire(timeout=PATIENCE_S)
    return line


def test_a_loss_frees_all_who_read_data_and_takes_their_question_back():
    lines, asked, world = a_world()
    with ThreadPoolExecutor(2) as pool:
        first = waiting(lines, pool, asked)
        second = pool.submit(lines.next_line)  # of another thread, which waits for its turn
        wait_until(lambda: len(lines._condition._waiters) == 2, "two reads")
        world.lose(2, was_raised=True)  # an operation of a third thread was freed first
        for line in (first, second):
            with pytest.raises(RankFailure, match="rank 2 on node: killed"):
                line.result(PATIENCE_S)
        assert asked.withdrawn[0] == "cell"
        third = waiting(lines, pool, asked)  # the read that goes on may ask anew
        lines.feed("cell", TypedLine("ann"))
        assert third.result(PATIENCE_S) == "ann"


def test_a_read_that_begins_after_a_loss_raises_it_unless_something_has():
    lines, asked, world = a_world()
    world.lose(2)
    with pytest.raises(RankFailure):
        lines.next_line()
    with ThreadPoolExecutor(1) as pool:
        line = waiting(lines, pool, asked)
        world.wait_looks()
        assert not line.done()
        world.lose(1, epoch=2)
        with pytest.raises(RankFailure, match="rank 1"):
            line.result(PATIENCE_S)


def test_a_loss_leaves_a_debugger_alone():
    lines, asked, world = a_world()
    with ThreadPoolExecutor(1) as pool:
        command = waiting(lines, pool, asked, is_command=True)
        world.lose(2)
        with pytest.raises(TimeoutError):
            command.result(5 * POLL_S)
        lines.feed("cell", TypedLine("bt", (0,), is_command=True))
        assert command.result(PATIENCE_S) == "bt"
    assert asked.withdrawn == []


def test_a_loss_that_the_cell_was_begun_with_is_no_news():
    lines, asked, world = a_world(lost=[2])
    world.lose(2)
    with ThreadPoolExecutor(1) as pool:
        line = waiting(lines, pool, asked)
        world.wait_looks()
        assert not line.done()
        lines.feed("cell", TypedLine("ann"))
        assert line.result(PATIENCE_S) == "ann"


def test_what_was_typed_is_read_before_a_loss_was_raised():
    lines, asked, world = a_world()
    lines.feed("cell", TypedLine("ann"))
    world.lose(2)
    assert lines.next_line() == "ann"
    with pytest.raises(RankFailure):
        lines.next_line()
    assert asked.withdrawn == []  # nothing had been asked
