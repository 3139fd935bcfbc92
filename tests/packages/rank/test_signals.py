"""A user's signal handler raises in the code of a cell only."""

from __future__ import annotations

import signal

import pytest

from phalanx.rank.signals import SignalHandlers


@pytest.fixture
def told():
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield []
    for number, handler in before.items():
        signal.signal(number, handler)


def raises(number, frame):
    raise SystemExit(3)


def test_what_a_handler_raises_is_told_between_cells_and_raised_in_a_cell(told):
    handlers = SignalHandlers(told.append)
    signal.signal(signal.SIGUSR1, raises)
    handlers.close()
    handlers.close()
    for _ in range(3):
        signal.raise_signal(signal.SIGUSR1)
    (text,) = told
    assert text.startswith("SIGUSR1: its handler raised between cells\nTraceback ")
    assert text.endswith("SystemExit: 3")
    handlers.open()
    assert told[1:] == ["SIGUSR1: its handler raised 3 times between cells"]
    assert signal.getsignal(signal.SIGUSR1) is raises
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGUSR1)


def test_a_handler_that_raises_nothing_is_called(told):
    handlers = SignalHandlers(told.append)
    signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
    handlers.close()
    signal.raise_signal(signal.SIGUSR1)
    handlers.open()
    assert told == [signal.SIGUSR1]


def test_a_handler_that_leaves_ends_a_rank_that_is_told_to_end(told):
    ended = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    handlers = SignalHandlers(told.append)
    signal.signal(signal.SIGTERM, raises)
    handlers.close()
    signal.raise_signal(signal.SIGTERM)
    assert ended == [signal.SIGTERM]
