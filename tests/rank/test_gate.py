"""Stopping exactly the cell that is meant."""

from __future__ import annotations

import signal

import pytest

from phalanx.rank import CellGate


@pytest.fixture
def gate():
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield CellGate()
    signal.signal(signal.SIGINT, previous)


def test_a_running_cell_is_interrupted(gate):
    gate.begin("a")
    with pytest.raises(KeyboardInterrupt):
        gate.interrupt("a")
    gate.end()


def test_a_cell_that_was_stopped_before_it_began_does_not_run(gate):
    gate.interrupt("a")
    with pytest.raises(KeyboardInterrupt):
        gate.begin("a")


def test_another_cell_is_left_alone(gate):
    gate.begin("a")
    gate.interrupt("b")
    gate.end()
    gate.begin("c")
    assert gate.running == "c"
    gate.interrupt("a")
    gate.end()
    assert gate.running is None
