"""The ticker of the live widgets: it ticks while somebody looks, and for nobody."""

from __future__ import annotations

import threading
import time

import pytest
from support.programs.restarting import wait_for
from support.promise import PATIENCE_S

from phalanx.widgets.live.presence import PollTimer


class Ticks:
    """Ticks without pauses, on a clock of which each takes a second."""

    def __init__(self) -> None:
        self.now_s, self.n = 0.0, 0
        self.is_busy = False
        self.long_s: dict[int, float] = {}  # ticks that take longer
        self.ticker = PollTimer(
            self.tick, is_busy=lambda: self.is_busy, interval_s=0.0, lease_s=6.0,
            clock=lambda: self.now_s,
        )  # fmt: skip

    def tick(self) -> None:
        self.n += 1
        self.now_s += self.long_s.get(self.n, 1.0)

    def end(self) -> int:
        """Wait until nothing ticks any more; how often it did."""
        wait_for(lambda: not self.ticker.is_ticking)
        return self.n


@pytest.fixture
def ticks():
    made = Ticks()
    yield made
    made.ticker.close()


def _n_threads():
    return sum(thread.name == "phalanx-widget" for thread in threading.enumerate())


def test_ticks_while_a_view_looks_and_no_more():
    wait_for(lambda: _n_threads() == 0)  # those of tests before may be about to end
    ticked = threading.Event()
    ticker = PollTimer(ticked.set, interval_s=0.01)
    assert not ticker.is_ticking
    ticker.look("a")
    ticker.look("b")
    assert _n_threads() == 1
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


def test_a_view_that_is_not_heard_of_is_gone_but_not_while_the_kernel_is_busy(ticks):
    ticks.is_busy = True
    ticks.ticker.look("a", has_sent=False)
    wait_for(lambda: ticks.n > 50)
    ticks.is_busy = False
    ticks.end()


def test_a_view_that_speaks_during_a_cell_is_gone_when_it_does_not(ticks):
    ticks.is_busy = True
    ticks.ticker.look("a")  # a message that the kernel has read in a cell, as it would the next one
    assert ticks.end() <= 7


def test_a_view_is_not_gone_because_the_whole_process_stood_still(ticks):
    ticks.long_s[3] = 20.0
    ticks.ticker.look("a")
    assert 5 < ticks.end() < 20  # the lease of 6 s goes on after the 20 s


def test_where_no_thread_can_begin_the_next_look_begins_one(ticks, monkeypatch):
    def refuse(_):
        raise RuntimeError

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            ticks.ticker.look("a")
    assert not ticks.ticker.is_ticking
    ticks.ticker.look("a")
    assert ticks.end() > 0


def test_at_most_five_times_a_second():
    begun_s: list[float] = []
    read_s = [0.0]

    def read() -> float:
        read_s[0] = time.monotonic()
        return read_s[0]

    # A tick begins right after the timer has looked at its clock, whatever else the machine does.
    ticker = PollTimer(lambda: begun_s.append(read_s[0]), clock=read)
    ticker.look("a")
    wait_for(lambda: len(begun_s) >= 4)
    ticker.close()
    assert begun_s[3] - begun_s[0] >= 3 * 0.2 - 1e-6
