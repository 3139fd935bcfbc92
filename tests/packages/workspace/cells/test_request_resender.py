"""When a request is sent again: by a clock of the test's own."""

from __future__ import annotations

from phalanx.protocol import CellEnded, CellStatus, CellStatusReply
from phalanx.rank import last_error
from phalanx.workspace.cells.cell import Cell, make_task
from phalanx.workspace.cells.dispatch import RequestResender

RANKS = (0, 1, 2)


class Resent:
    """A cell on three ranks, and what was asked, sent and said for it."""

    def __init__(self, cell: Cell | None = None) -> None:
        self.cell = cell or Cell("cell", RANKS)
        self.n_asked = 0
        self.sent: list[int] = []
        self.sent_stopped: list[int] = []
        self.said: list[str] = []
        self.resender = RequestResender(self.cell, self.ask, self.send, self.said.append, 0.0)

    def ask(self):
        self.n_asked += 1

    def send(self, cell, rank, *, is_stopped):
        assert cell is self.cell
        self.sent.append(rank)
        self.sent_stopped += [rank] * is_stopped
        return True

    def at(
        self, now_s, *, begun=(), ended=(), listed=True, age_s=0.0, running=RANKS, is_stopping=False
    ):
        """Step; the root, if asked, answers which ranks have begun and ended; what was sent then."""
        before, self.sent = self.n_asked, []
        self.resender.step(set(running), now_s, is_stopping=is_stopping)
        if self.n_asked > before:
            known = CellStatus("cell", RANKS, {rank: CellEnded("cell", ok=True) for rank in ended})
            begun_last = {rank: "cell" if rank in begun else "before" for rank in RANKS}
            cells = (known,) if listed else ()
            status = CellStatusReply(cells, {}, (), (), (), begun_last)
            self.resender.take(status, now_s - age_s, set(running), now_s)
        return self.sent


def test_a_short_cell_asks_nothing():
    resent = Resent()
    assert resent.at(1.9) == []
    assert resent.n_asked == 0


def test_a_cell_that_all_ranks_have_begun_asks_once_and_sends_nothing():
    resent = Resent()
    assert not any(resent.at(float(now_s), begun=RANKS) for now_s in range(1000))
    assert resent.n_asked == 1


def test_a_rank_that_has_not_begun_is_sent_the_cell_at_growing_intervals():
    resent = Resent()
    at = [now_s for now_s in range(40) if resent.at(float(now_s), begun=(0, 2)) == [1]]
    assert at == [2, 4, 8, 16, 24, 32]
    assert resent.said == ["rank 1 did not begin the cell yet; it is sent again"]


def test_a_rank_that_has_ended_is_sent_nothing():
    assert Resent().at(2.0, begun=(0,), ended=(1, 2)) == []


def test_a_cell_that_the_root_does_not_list_any_more_is_never_sent():
    """The new owner of the ranks has cancelled it, or it has ended everywhere."""
    assert Resent().at(2.0, listed=False) == []


def test_an_old_answer_sends_nothing():
    """Of a process that was stopped after it had asked."""
    resent = Resent()
    assert resent.at(10.0, age_s=1.1) == []
    assert resent.at(12.0) == [*RANKS]


def test_a_stop_sends_at_once_what_has_not_begun():
    resent = Resent()
    assert resent.at(0.1) == []
    assert resent.at(0.2, begun=(0, 1), is_stopping=True) == [2]
    assert resent.sent_stopped == [2]


def test_a_cell_that_the_root_does_not_know_is_sent_until_it_has_begun():
    resent = Resent(Cell("cell", RANKS, make_task(last_error), is_announced=False))
    assert resent.at(2.0, begun=(0,), listed=False) == [1, 2]


def test_a_stop_also_hurries_what_was_sent_again_already():
    resent = Resent()
    assert resent.at(2.0, begun=(0, 1)) == [2]
    assert resent.at(3.0, begun=(0, 1)) == []
    assert resent.at(3.1, begun=(0, 1), is_stopping=True) == [2]


def test_a_call_without_the_values_of_a_rank_that_has_ended_is_sent_again():
    resent = Resent(Cell("cell", RANKS, make_task(last_error)))
    assert resent.at(2.0, begun=RANKS) == []
    assert resent.at(4.0, begun=RANKS, ended=(1,)) == [1]
    assert resent.at(8.0, listed=False, running=(0, 1)) == [0, 1]
    assert resent.said == []


def test_a_large_value_is_not_sent_again_while_it_may_be_on_its_way():
    """To all ranks over one wire: 3 x 100 MB at 10 MB/s."""
    cell = Cell("cell", RANKS)
    cell.nbytes = 100_000_000
    resent = Resent(cell)
    at = [now_s for now_s in range(100) if resent.at(float(now_s), is_stopping=now_s > 1)]
    assert at == [30, 62, 96]
