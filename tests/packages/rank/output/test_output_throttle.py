"""Output waits for the notebook that draws it: not for ever, and never in threads that send."""

from __future__ import annotations

import threading

import pytest
from support.waiting import PATIENCE_S, wait_until

from phalanx.rank.output.record import WINDOW_NBYTES, OutputThrottle


@pytest.fixture
def window():
    """Give one in a cell, with all of its room used and one byte more."""
    window = OutputThrottle()
    window.begin()
    assert window.add(WINDOW_NBYTES) == WINDOW_NBYTES
    assert not window.is_full
    window.add(1)
    assert window.is_full
    return window


@pytest.fixture
def printing(window):
    """Give a thread that waits for room."""
    thread = threading.Thread(target=window.wait, daemon=True)
    thread.start()
    wait_until(lambda: len(window._news._waiters) == 1, "it waits")
    yield thread
    window.end()
    thread.join(PATIENCE_S)


def test_who_prints_waits_until_the_client_has_drawn(window, printing):
    window.on_drawn(1)
    printing.join(PATIENCE_S)
    assert not printing.is_alive()
    assert not window.is_full


def test_the_end_of_the_cell_lets_it_go_on(window, printing):
    window.end()
    printing.join(PATIENCE_S)
    assert not printing.is_alive()


def test_an_earlier_word_and_a_wrong_one_change_nothing(window):
    window.on_drawn(2)
    window.on_drawn(1)
    window.add(1)
    assert not window.is_full
    window.on_drawn(1 << 60)  # of the engine before
    window.add(WINDOW_NBYTES)
    assert not window.is_full


def test_threads_that_send_never_wait(window):
    window.never_in(None, threading.get_ident())
    window.wait()
    assert window.is_full


def test_a_client_that_says_nothing_is_not_waited_for_until_it_speaks():
    times = iter([0.0, 100.0])
    window = OutputThrottle(lambda: next(times))
    window.begin()
    window.add(WINDOW_NBYTES + 1)
    window.wait()
    window.add(WINDOW_NBYTES)
    assert not window.is_full
    window.on_drawn(1)
    assert window.is_full


def test_a_cell_begins_with_all_of_its_room(window):
    window.end()
    window.add(WINDOW_NBYTES)
    window.begin()
    assert not window.is_full
