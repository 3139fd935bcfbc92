"""From a stop to the end of the waiting, by a clock of our own."""

from __future__ import annotations

from phalanx.protocol import RankStack
from phalanx.workspace.cells.stopping import LOOK_S, PATIENCE_S, REACT_S, Stopping

STUCK = RankStack(place="solver.py:12 in solve <- cell line 3", is_still=True)
MOVING = RankStack(place="train.py:80 in save")


class Stopped:
    """A `Stopping` whose questions, stops and notices are kept."""

    def __init__(self):
        self.asked, self.sent, self.said = [], [], []
        self.it = Stopping(
            "cell",
            self._order,
            lambda ranks, is_twice: self.asked.append((ranks, is_twice)),
            self.said.append,
            lambda: None,
        )

    def _order(self, ranks, order):
        if order.hold_s:  # the first order, before those of `StopInStep`
            self.sent.append(ranks)


def test_who_reacts_is_not_asked_about():
    stopped = Stopped()
    stopped.it.stop({0, 1}, 5.0)
    stopped.it.stop({0, 1}, 5.1)
    assert stopped.sent == [(0, 1)]
    assert not stopped.it.step({1}, 6.0)
    assert not stopped.it.step((), 99.0)
    assert (stopped.asked, stopped.said) == ([], [])


def test_who_stays_where_it_is_is_named_and_left():
    stopped = Stopped()
    stopped.it.stop({0, 1}, 0.0)
    assert not stopped.it.step({1}, REACT_S - 0.1)
    assert stopped.asked == [((1,), True)]
    stopped.it.take({1: STUCK})
    assert not stopped.it.step({1}, REACT_S - 0.01)
    assert stopped.said == []
    assert stopped.it.step({1}, REACT_S)
    (line,) = stopped.said
    assert line.startswith(
        "rank 1 does not react to the stop: "
        "in C code called from solver.py:12 in solve <- cell line 3; wait, "
    )
    assert "%distributed restart 1 --force" in line


def test_whose_code_swallows_the_stop_is_not_in_c_code():
    stopped = Stopped()
    stopped.it.stop({0, 1}, 0.0)
    stopped.it.step({0, 1}, REACT_S - 0.1)
    stopped.it.swallowed.add(1)
    stopped.it.take({0: STUCK, 1: STUCK})
    assert stopped.it.step({0, 1}, REACT_S)
    assert stopped.said[0].startswith("rank 0 does not react to the stop: in C code ")
    assert stopped.said[1].startswith(
        "rank 1 swallows the stop, a KeyboardInterrupt, and goes on: "
        "at solver.py:12 in solve <- cell line 3; wait, "
    )


def test_whose_own_code_goes_on_gets_more_time():
    stopped = Stopped()
    stopped.it.stop({0, 1, 2}, 0.0)
    stopped.it.step({0, 1, 2}, REACT_S - 0.1)
    stopped.it.take({0: MOVING, 1: STUCK, 2: MOVING})
    assert not stopped.it.step({0, 1, 2}, REACT_S)
    assert len(stopped.said) == 2
    assert stopped.said[0].startswith("ranks 0,2 go on after the stop: at train.py:80 in save; ")
    assert not stopped.it.step({0, 1}, PATIENCE_S - 0.1)
    assert stopped.it.step({0, 1}, PATIENCE_S)
    assert len(stopped.said) == 2


def test_it_ends_as_soon_as_only_the_stuck_are_left():
    stopped = Stopped()
    stopped.it.stop({0, 1}, 0.0)
    stopped.it.step({0, 1}, REACT_S)
    stopped.it.take({0: MOVING, 1: STUCK})
    assert not stopped.it.step({0, 1}, REACT_S + 0.1)
    assert stopped.it.step({1}, REACT_S + 0.2)


def test_without_an_answer_the_stop_ends_as_well():
    stopped = Stopped()
    stopped.it.stop({1}, 0.0)
    stopped.it.step({1}, REACT_S - 0.1)
    assert stopped.it.step({1}, REACT_S + LOOK_S)
    (line,) = stopped.said
    assert line.startswith("rank 1 does not react to the stop; wait, ")


def test_when_time_is_up_ranks_are_looked_at_and_then_stopped():
    stopped = Stopped()
    stopped.it.time_is_up({0, 1}, 0.0)
    assert stopped.it.has_begun
    stopped.it.step({0, 1}, 0.1)
    assert (stopped.asked, stopped.sent) == ([((0, 1), False)], [])
    stopped.it.take({0: MOVING, 1: STUCK})
    stopped.it.step({0, 1}, 0.11)
    assert stopped.sent == [(0, 1)]
    assert stopped.it.before == {0: MOVING, 1: STUCK}


def test_a_root_that_does_not_answer_does_not_hold_up_the_stop():
    stopped = Stopped()
    stopped.it.time_is_up({0}, 0.0)
    stopped.it.step({0}, LOOK_S - 0.01)
    assert stopped.sent == []
    stopped.it.step({0}, LOOK_S)
    assert stopped.sent == [(0,)]
