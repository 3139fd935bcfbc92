"""Which views are on a page: those that were heard of, without the time that a cell took."""

from __future__ import annotations

from phalanx.widgets.live.presence import LEASE_S, ViewLeases


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_before_the_first_word_a_page_may_be_there():
    clock = Clock()
    views = ViewLeases(clock=clock)
    clock.now_s = 10 * LEASE_S
    assert views.are_there
    views.note("a")
    views.note("b")
    views.leave("a")
    assert views.are_there
    views.leave("b")
    assert not views.are_there
    views.note("c")
    assert views.are_there


def test_one_that_was_reloaded_without_a_word_is_forgotten():
    clock = Clock()
    views = ViewLeases(clock=clock)
    views.note("a")
    clock.now_s = LEASE_S - 1
    views.note("b")
    clock.now_s = 2 * LEASE_S - 2
    assert views.are_there
    clock.now_s += 2
    assert not views.are_there


def test_a_long_cell_in_which_nothing_is_heard_is_not_counted():
    clock = Clock()
    views = ViewLeases(clock=clock)
    views.note("a")
    clock.now_s = 100.0
    views.cell_begins()
    clock.now_s += 3600
    assert views.are_there
    views.note("b")  # it was heard all the same
    views.cell_ends()
    assert views.are_there
    clock.now_s += LEASE_S - 99
    assert views.are_there
    views.leave("b")
    assert not views.are_there
    views.cell_ends()  # of a cell that began before the widget was there
