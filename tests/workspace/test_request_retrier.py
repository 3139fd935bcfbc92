"""When a request is sent again, and when an end is asked for: by a clock of the test's own."""

from __future__ import annotations

import pytest
from support.promise import PATIENCE_S

from phalanx.protocol import CellStatus, CellStatusReply
from phalanx.workspace.cells.cell import Cell, UnannouncedCell
from phalanx.workspace.cells.dispatch import RequestRetrier, RetryAction
from phalanx.workspace.output.events import Ended

RANKS = (0, 1, 2)


class Told:
    """A cell on three ranks that is looked after, and what was asked, sent and said."""

    def __init__(self, cell: Cell | None = None) -> None:
        self.cell = cell or Cell("cell", RANKS)
        self.n_asked = 0
        self.sent: list[tuple[int, bool]] = []
        self.sent_stopped: list[int] = []
        self.said: list[str] = []
        self.stopped: list[tuple[int, ...]] = []
        retry = RetryAction(lambda take: None, self.send, self.stopped.append)
        self.again = RequestRetrier(self.cell, self.ask, retry, self.said.append, 0.0)

    def ask(self):
        self.n_asked += 1

    def send(self, rank, whole, stopped):
        self.sent.append((rank, whole))
        self.sent_stopped += [rank] * stopped

    def at(self, now_s, *, ended=(), listed=True, asked_s=None, running=RANKS, is_stopping=False):
        """Step; the root, if asked, answers that some have ended; what was sent then."""
        before, self.sent = self.n_asked, []
        self.again.step(running, now_s, is_stopping=is_stopping)
        if self.n_asked > before:
            known = CellStatus("cell", RANKS, dict.fromkeys(ended, ""))
            status = CellStatusReply(1, (known,) if listed else (), {}, (), (), ())
            self.again.take(status, now_s if asked_s is None else asked_s, running, now_s)
        return self.sent


def test_a_short_cell_asks_nothing():
    told = Told()
    assert told.at(1.9) == []
    assert told.n_asked == 0


def test_a_rank_that_runs_is_left_alone_for_ever():
    told = Told()
    told.cell.answering.update(RANKS)
    assert not any(told.at(float(now_s)) for now_s in range(1000))


def test_a_rank_that_was_not_heard_is_sent_the_cell_at_growing_intervals():
    told = Told()
    told.cell.answering.update({0, 2})
    at = [now_s for now_s in range(200) if told.at(float(now_s)) == [(1, True)]]
    assert at == [2, 6, 14, 30, 62, 122, 182]
    assert told.said == ["no message of rank 1 has come yet; the cell is sent again"]


def test_an_end_that_the_root_knows_is_asked_for_and_nothing_is_run_again():
    told = Told()
    told.cell.answering.update({0, 1})
    assert told.at(2.0, ended=(1, 2)) == []  # their words may just be on their way
    assert told.at(3.0, ended=(1, 2)) == [(1, False), (2, False)]
    assert told.said == []


def test_a_cell_that_the_root_does_not_tell_of_any_more_is_never_sent():
    """The new owner of the ranks has cancelled it, or it has ended everywhere."""
    told = Told()
    assert told.at(2.0, listed=False) == []
    assert told.at(3.0, listed=False) == [(rank, False) for rank in RANKS]


def test_an_old_answer_sends_nothing():
    """Of a process that was stopped after it had asked."""
    told = Told()
    assert told.at(10.0, asked_s=8.9) == []
    assert told.at(11.0, asked_s=11.0) == [(rank, True) for rank in RANKS]


def test_without_an_answer_there_is_one_question():
    told = Told()
    told.again.step(RANKS, 2.0, is_stopping=False)
    told.again.step(RANKS, 6.9, is_stopping=False)
    assert told.n_asked == 1
    told.again.step(RANKS, 7.0, is_stopping=False)  # the root has failed at it
    assert told.n_asked == 2


def test_a_stop_sends_at_once_what_has_not_come():
    told = Told()
    told.cell.answering.update({0, 1})
    assert told.at(0.1) == []
    assert told.at(0.2, is_stopping=True) == [(2, True)]
    assert told.stopped == [(2,)]
    assert told.sent_stopped == [2]


def test_a_stop_is_sent_once_more_to_ranks_that_still_run():
    told = Told()
    told.cell.answering.update(RANKS)
    for now_s in (0.1, 0.5, 0.9, 1.3, 1.7):
        told.at(now_s, is_stopping=True, running=(0, 2))
    assert told.stopped == [(0, 2)]


def test_what_the_root_does_not_know_by_name_is_sent_as_long_as_nothing_is_heard():
    told = Told(UnannouncedCell("cell", RANKS))
    told.cell.answering.add(0)
    assert told.at(2.0, listed=False) == [(1, True), (2, True)]


def test_a_stop_also_hurries_what_was_sent_again_already():
    told = Told()
    told.cell.answering.update({0, 1})
    assert told.at(2.0) == [(2, True)]
    assert told.at(3.0) == []
    assert told.at(3.1, is_stopping=True) == [(2, True)]


def test_a_large_value_is_not_sent_again_while_it_may_be_on_its_way():
    """To all ranks over one wire: 3 x 100 MB at 10 MB/s."""
    cell = Cell("cell", RANKS)
    cell.nbytes = 100_000_000
    told = Told(cell)
    at = [now_s for now_s in range(140) if told.at(float(now_s), is_stopping=now_s > 1)]
    assert at == [32, 66, 104]


@pytest.mark.parametrize(("nbytes", "at"), [(1000, 3.0), (10_000_000, 6.0)])
def test_a_large_value_has_more_time(nbytes, at):
    cell = Cell("cell", RANKS)
    cell.nbytes = nbytes
    told = Told(cell)
    assert next(now_s / 2 for now_s in range(100) if told.at(now_s / 2)) in (at, at - 0.5, at - 1.0)


def test_a_wait_for_one_rank_goes_on_when_another_ends():
    cell = UnannouncedCell("greeting", (0, 1))
    for rank in (1, 0):
        cell.events.put(Ended(rank, None, 0))
    assert cell.wait_ended({0}, PATIENCE_S) == {0, 1}
