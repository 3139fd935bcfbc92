"""Stopping ranks at the same operation: the rule, with ranks that are made up."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from phalanx.protocol import Step, StopReport
from phalanx.workspace.cells.stopping import STEP_S, StopInStep


def step(number, group=0, source=-1, target=-1):
    return Step(1, group, source, target, number)


def runs(number, *more, is_open=False):
    return StopReport("runs", (step(number), *more), is_open=is_open, has_called=True)


def held(number, *more, before=None, is_open=False):
    upcoming = before or step(number + 1)
    return StopReport("held", (step(number), *more), upcoming, is_open, has_called=True)


def stopped(number, place, *, has_called=True):
    return StopReport("stopped", (step(number),), has_called=has_called, place=place)


class Stop:
    """An `StopInStep` whose orders are kept; it has begun at 0 s."""

    def __init__(self, *reports):
        self.let_in, self.interrupted = [], []
        self.it = StopInStep(
            lambda ranks, steps: self.let_in.append((ranks, steps)), self.interrupted.append
        )
        self.running = range(len(reports))
        self.take(*reports)

    def take(self, *reports, now_s=0.0):
        for rank, report in enumerate(reports):
            if report is not None:
                self.it.take(rank, report)
        self.it.step(self.running, now_s)
        return self

    def line(self, **ends):
        return self.it.line(self.running, {int(rank[1:]): end for rank, end in ends.items()})


def test_ranks_that_are_held_before_the_same_operation_are_interrupted_there():
    stop = Stop(held(5), held(5), None)
    assert stop.interrupted == []
    stop.take(None, None, held(5))
    assert stop.interrupted == [(0, 1, 2)]
    assert stop.let_in == []
    stop.take(*(stopped(5, "before all_sum #6") for _ in range(3)))
    assert stop.it.is_in_step
    assert stop.line() == ""
    assert stop.interrupted == [(0, 1, 2)]


def test_a_held_rank_is_let_into_what_another_one_has_begun():
    stop = Stop(held(5), runs(6, is_open=True), held(5))
    assert stop.let_in == [((0, 2), (step(6),))]
    stop.take(held(6), None, None)
    stop.take(None, held(6), None)
    assert stop.interrupted == []  # the last word of rank 2 is of before
    stop.take(None, None, held(6))
    assert stop.interrupted == [(0, 1, 2)]
    assert stop.it.is_in_step
    assert len(stop.let_in) == 1


def test_what_is_queued_is_waited_for():
    stop = Stop(held(8, is_open=True), held(5))
    assert stop.let_in == [((1,), (step(8),))]
    stop.take(held(8, is_open=True), held(8))
    assert stop.interrupted == []
    stop.take(held(8))
    assert stop.it.is_in_step


def test_a_rank_whose_operation_was_ended_by_the_stop_of_another_was_in_it():
    waits = StopReport("runs", (step(6),), is_open=True, has_called=True, place="in all_sum #6")
    stop = Stop(waits, runs(5), waits)
    stop.take(now_s=STEP_S)
    stop.take(stopped(6, "in all_sum #6"), stopped(5, "at cell line 3 after all_sum #5"), None)
    where = "ranks 0,2 stopped in all_sum #6, rank 1 at cell line 3 after all_sum #5: "
    assert stop.line(r0="KeyboardInterrupt", r2="DistributedError").startswith(where)
    assert ", rank 2 with ValueError: " in stop.line(r2="ValueError")
    assert ", rank 2 at the end of the cell: " in stop.line(r2="")


def test_an_operation_of_a_split_does_not_concern_other_ranks():
    stop = Stop(held(5, step(9, group=7)), held(5, step(9, group=7)), held(5, step(2, group=8)))
    assert stop.it.is_in_step


def test_who_comes_to_no_operation_is_interrupted_where_it_is():
    stop = Stop(held(5), runs(5), held(5))
    stop.take(now_s=STEP_S - 0.01)
    assert stop.interrupted == []
    assert stop.it.due_s == STEP_S
    stop.take(now_s=STEP_S)
    assert stop.interrupted == [(0, 1, 2)]
    assert stop.line() == ""  # nobody has said where it stopped
    before = stopped(5, "before all_sum #6")
    stop.take(before, stopped(5, "at cell line 7 after all_sum #5"), before)
    assert stop.line() == (
        "ranks 0,2 stopped before all_sum #6, rank 1 at cell line 7 after all_sum #5: "
        "variables may differ; px.broadcast them before you go on"
    )


def test_ranks_that_stand_alike_but_not_before_an_operation_may_differ():
    stop = Stop(runs(5), runs(5))
    stop.take(now_s=STEP_S)
    stop.take(*(stopped(5, "at cell line 7 after all_sum #5") for _ in range(2)))
    assert stop.line().startswith("ranks 0-1 stopped at cell line 7 after all_sum #5: ")


def test_a_second_stop_interrupts_at_once():
    stop = Stop(held(5), runs(5))
    stop.it.hurry()
    stop.take()
    assert stop.interrupted == [(0, 1)]
    assert not stop.it.is_in_step


def test_who_was_stopped_at_once_is_not_interrupted_again():
    # Rank 0 reads a line.
    stop = Stop(stopped(5, "at cell line 2 after all_sum #5"), held(5))
    assert stop.interrupted == [(1,)]
    stop.take(None, stopped(5, "before all_sum #6"))
    assert stop.line().startswith("rank 0 stopped at cell line 2 after all_sum #5, rank 1 before ")


def test_nobody_waits_for_a_rank_that_was_stopped_elsewhere():
    stop = Stop(stopped(5, "at cell line 2 after all_sum #5"), runs(6, is_open=True))
    assert stop.interrupted == [(1,)]


def test_ranks_that_all_read_a_line_are_in_step():
    stop = Stop(*(stopped(5, "at cell line 2 after all_sum #5") for _ in range(2)))
    assert stop.interrupted == []
    assert stop.line() == ""
    uneven = Stop(stopped(5, "at cell line 2 after all_sum #5"), stopped(6, "at cell line 2"))
    assert uneven.line().startswith(
        "rank 0 stopped at cell line 2 after all_sum #5, rank 1 at cell line 2: "
    )


def test_of_a_cell_without_operations_nothing_is_said():
    stop = Stop(*(stopped(5, "at cell line 1", has_called=False) for _ in range(2)))
    assert stop.line() == ""


def test_ranks_that_have_ended_are_not_waited_for():
    stop = Stop(held(5), None)
    stop.running = [0]
    stop.take()
    assert stop.interrupted == [(0,)]
    assert stop.it.is_in_step
    late = Stop(runs(5), None)
    late.running = [0]
    late.take(now_s=STEP_S)
    late.take(stopped(5, "in all_sum #5"))
    assert late.it.line((0, 1), {1: ""}).startswith(
        "rank 0 stopped in all_sum #5, rank 1 at the end of the cell: "
    )
    assert ", rank 1 with ValueError: " in late.it.line((0, 1), {1: "ValueError"})


@dataclass
class Rank:
    """A rank that runs a program of operations, as the engine does when it is held.

    Collectives complete when all have begun them, messages are taken by the queue.
    """

    rank: int
    program: list[tuple[int, int]]  # (-1, -1): a collective; else a message from, to
    at: int = 0
    begun: dict[tuple[int, int], int] = field(default_factory=lambda: {(-1, -1): 0})
    until: dict[tuple[int, int], int] = field(default_factory=dict)
    is_held = is_inside = has_hold = is_stopped = False

    def move(self, world):
        """Do one thing, if it can."""
        what = self.program[self.at]
        if self.is_stopped:
            return
        if self.is_inside:
            others = world if what == (-1, -1) else [world[max(what[0], 0)]]
            if all(other.begun.get(what, 0) >= self.begun[what] for other in others):
                self.is_inside = False
                self.at += 1
            return
        number = self.begun.get(what, 0) + 1
        self.is_held = self.has_hold and number > self.until.get(what, 0)
        if not self.is_held:
            self.begun[what] = number
            self.is_inside = True

    def report(self):
        lanes = [Step(1, 0, *what, number) for what, number in sorted(self.begun.items())]
        if not self.is_held:
            return StopReport("runs", tuple(lanes), is_open=self.is_inside, has_called=True)
        what = self.program[self.at]
        upcoming = Step(1, 0, *what, self.begun.get(what, 0) + 1)
        return StopReport("held", tuple(lanes), upcoming, has_called=True)


def programs(chance, n_ranks):
    """The same steps for all, as a rank takes part in them: sums, and messages along pairs."""
    own = [[] for _ in range(n_ranks)]
    for _ in range(400):
        if chance.random() < 0.5:
            for its in own:
                its.append((-1, -1))
        else:
            source, target = chance.sample(range(n_ranks), 2)
            own[source].append((source, target))
            own[target].append((source, target))
    for its in own:
        its.extend([(-1, -1)] * 400)
    return own


@pytest.mark.parametrize("seed", range(100))
def test_ranks_that_go_at_any_pace_stop_in_step(seed):
    """What ranks say and are told comes late; in the end all have begun the same."""
    chance = random.Random(seed)
    n_ranks = chance.randint(2, 5)
    world = [Rank(rank, its) for rank, its in enumerate(programs(chance, n_ranks))]
    paces = [0.05 + chance.random() for _ in world]
    said: list[deque] = [deque() for _ in world]  # on the way from each rank, and to it
    told: list[deque] = [deque() for _ in world]
    stop = StopInStep(
        lambda ranks, steps: [told[rank].append(steps) for rank in ranks],
        lambda ranks: [told[rank].append("stop") for rank in ranks],
    )
    last: list[StopReport | None] = [None for _ in world]
    hold_at = [chance.randint(20, 60) for _ in world]
    for turn in range(20_000):
        rank = chance.choices(range(n_ranks), paces)[0]
        world[rank].move(world)
        which = chance.randrange(n_ranks)
        its = world[which]
        its.has_hold = its.has_hold or turn >= hold_at[which]
        if its.has_hold and chance.random() < 0.5 and its.report() != last[which]:
            last[which] = its.report()
            said[which].append(last[which])
        if told[which] and chance.random() < 0.3:
            order = told[which].popleft()
            if order == "stop":
                assert its.is_held
                its.is_stopped = True
            else:
                its.until |= {(one.source, one.target): one.number for one in order}
        if said[which] and chance.random() < 0.3:
            stop.take(which, said[which].popleft())
            stop.step(range(n_ranks), 0.0)
        if all(one.is_stopped for one in world):
            break
    assert stop.is_in_step
    for what in {what for one in world for what in one.begun}:
        members = world if what == (-1, -1) else [world[rank] for rank in what]
        assert len({one.begun.get(what, 0) for one in members}) == 1
