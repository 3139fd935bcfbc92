"""Stopping exactly the cell that is meant."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from phalanx.rank.cell import InterruptGate, uninterrupted


@pytest.fixture
def gate():
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    previous_urgent = signal.getsignal(signal.SIGURG)
    yield InterruptGate()
    signal.signal(signal.SIGINT, previous)
    signal.signal(signal.SIGURG, previous_urgent)


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


def test_an_interrupt_just_before_a_wait_ends_it(gate, monkeypatch):
    real = signal.pthread_kill

    def unseen(thread, number):
        """Noted by the interpreter, but not by the thread that is about to wait."""
        if number == signal.SIGINT:
            signal.raise_signal(number)
        else:
            real(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", unseen)
    nudges = []

    def stop():
        is_waiting.acquire()
        gate.interrupt("a")
        while gate.nudge("a"):
            nudges.append(1)
            time.sleep(0.05)

    def wait():
        is_waiting.release()
        threading.Event().wait()

    is_waiting = threading.Semaphore(0)
    stopper = threading.Thread(target=stop)
    stopper.start()
    gate.begin("a")
    with pytest.raises(KeyboardInterrupt):
        wait()
    stopper.join()
    assert nudges
    assert not gate.nudge("a")
    gate.end()


def test_a_nudge_harms_no_one_that_was_not_stopped(gate):
    gate.begin("a")
    assert not gate.nudge("a")
    with pytest.raises(KeyboardInterrupt):
        gate.interrupt("a")
    assert gate.nudge("a")  # who took the interrupt and went on
    assert not gate.nudge("a")
    gate.end()
    assert not gate.nudge("a")


def test_an_interrupt_that_was_swallowed_before_the_code_comes_again(gate):
    gate.begin("a")
    with pytest.raises(KeyboardInterrupt):
        gate.interrupt("a")
    with pytest.raises(KeyboardInterrupt):
        gate.begin_code()
    gate.begin_code()
    gate.end()
    gate.begin("b")
    gate.begin_code()
    with pytest.raises(KeyboardInterrupt):
        gate.interrupt("b")
    gate.begin_code()  # code within the cell that has dealt with it
    gate.end()


def test_what_is_shown_of_an_error_is_not_interrupted():
    def press():
        signal.raise_signal(signal.SIGINT)

    with uninterrupted():
        press()
    with pytest.raises(KeyboardInterrupt):
        press()


@pytest.mark.parametrize("is_debugged", [False, True])
def test_a_stop_while_an_error_is_shown_reaches_only_a_debugger(gate, is_debugged):
    """IPython would swallow the stop, and print a bare KeyboardInterrupt beside the error."""
    from phalanx.rank.output.cell_errors import show_error

    class Shell:
        call_pdb = is_debugged
        is_stopped = False
        _last_traceback = None

        def showtraceback(self, error, tb_offset):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                self.is_stopped = True
            self._last_traceback = ("shown",)

    shell = Shell()
    assert show_error(shell, ValueError, ValueError("x"), None) == ("shown",)
    assert shell.is_stopped is is_debugged
