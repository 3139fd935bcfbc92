"""The ticker of the live widgets: it ticks while somebody looks, and for nobody."""

from __future__ import annotations

import threading
import time

from support.programs.restarting import wait_for
from support.promise import PATIENCE_S

from phalanx.widgets.live.presence import PollTimer


class Clock:
    """Seconds that pass when a tick is waited for."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def _n_threads():
    return sum(thread.name == "phalanx-widget" for thread in threading.enumerate())


def test_nobody_looks_nothing_runs():
    ticks = []
    ticker = PollTimer(lambda: ticks.append(1))
    assert not ticker.is_ticking
    assert ticks == []


def test_ticks_while_a_view_looks_and_no_more():
    before = _n_threads()
    ticked = threading.Event()
    ticker = PollTimer(ticked.set, interval_s=0.01)
    ticker.look("a")
    ticker.look("b")
    assert _n_threads() == before + 1
    ticker.leave("a")
    ticked.clear()
    assert ticked.wait(PATIENCE_S)
    ticker.leave("b")
    wait_for(lambda: not ticker.is_ticking)
    ticker.look("a")
    ticked.clear()
    assert ticked.wait(PATIENCE_S)
    ticker.close()
    wait_for(lambda: not ticker.is_ticking)
    ticker.look("a")
    assert not ticker.is_ticking


def test_a_view_that_is_not_heard_of_is_gone_but_not_while_the_kernel_is_busy():
    clock, is_busy = Clock(), [True]
    n_ticks = [0]

    def tick():
        n_ticks[0] += 1
        clock.now_s += 1.0

    ticker = PollTimer(tick, is_busy=lambda: is_busy[0], interval_s=0.0, lease_s=6.0, clock=clock)
    ticker.look("a", has_sent=False)
    wait_for(lambda: n_ticks[0] > 50)
    is_busy[0] = False
    wait_for(lambda: not ticker.is_ticking)


def test_a_view_that_speaks_during_a_cell_is_gone_when_it_does_not():
    clock, n_ticks = Clock(), [0]

    def tick():
        n_ticks[0] += 1
        clock.now_s += 1.0

    ticker = PollTimer(tick, is_busy=lambda: True, interval_s=0.0, lease_s=6.0, clock=clock)
    ticker.look("a")  # a message that the kernel has read in a cell: so it would read the next one
    wait_for(lambda: not ticker.is_ticking)
    assert n_ticks[0] <= 7
    # Who was only shown has not said a word.
    ticker.look("shown", has_sent=False)
    wait_for(lambda: n_ticks[0] > 50)
    ticker.close()


def test_a_view_is_not_gone_because_the_whole_process_stood_still():
    clock, n_ticks = Clock(), [0]

    def tick():
        n_ticks[0] += 1
        clock.now_s += 20.0 if n_ticks[0] == 3 else 0.5

    ticker = PollTimer(tick, interval_s=0.0, lease_s=6.0, clock=clock)
    ticker.look("a")
    wait_for(lambda: not ticker.is_ticking)
    assert n_ticks[0] > 10  # the lease of 6 s goes on after the 20 s


def test_at_most_five_times_a_second():
    begun_s: list[float] = []
    clock = Clock()

    def read() -> float:
        clock.now_s = time.monotonic()
        return clock.now_s

    # A tick begins right after the timer has looked at its clock, whatever else the machine does.
    ticker = PollTimer(lambda: begun_s.append(clock.now_s), clock=read)
    ticker.look("a")
    wait_for(lambda: len(begun_s) >= 4)
    ticker.close()
    assert begun_s[3] - begun_s[0] >= 3 * 0.2 - 1e-6
