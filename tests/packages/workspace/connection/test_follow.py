"""`Workspace.follow`: each change is told, and not too often."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from support.inside import root_pid
from support.waiting import wait_until

from phalanx.errors import DistributedError
from phalanx.workspace.connection.root_client import ChangeWatch


class FakeTimer:
    """A timer that the test lets run out."""

    daemon = False

    def __init__(self, seconds: float, run_out: Callable[[], None]) -> None:
        assert seconds > 0
        self.run_out = run_out
        self.is_started = False

    def start(self) -> None:
        self.is_started = True


def test_changes_are_asked_for_one_at_a_time_and_the_last_is_never_left_out():
    asked: list[None] = []
    timers: list[FakeTimer] = []

    def make(seconds: float, run_out: Callable[[], None]) -> FakeTimer:
        timers.append(FakeTimer(seconds, run_out))
        return timers[-1]

    watch = ChangeWatch(lambda: asked.append(None), make_timer=make)
    watch.changed()
    assert len(asked) == 1
    for _ in range(100):
        watch.changed()
    assert (len(asked), len(timers)) == (1, 1)
    timers[0].run_out()
    assert (len(asked), len(timers)) == (2, 2)
    timers[1].run_out()  # nothing has changed since
    assert (len(asked), len(timers)) == (2, 2)
    watch.changed()
    assert (len(asked), len(timers)) == (3, 3)
    assert all(timer.daemon and timer.is_started for timer in timers)


@pytest.mark.slow
def test_cells_deaths_and_the_end_are_told(own, gate):
    told: list[tuple[str, ...] | None] = []
    own.follow(lambda t: told.append(t and tuple(rank.state for rank in t.ranks)))
    wait_until(lambda: told[-1:] == [("idle", "idle")], "the first state")
    cell = threading.Thread(target=own.run, args=(gate.wait,), kwargs={"ranks": 1})
    cell.start()
    wait_until(lambda: told[-1] == ("idle", "busy"), "rank 1 is busy")
    gate.open()
    cell.join()
    wait_until(lambda: told[-1] == ("idle", "idle"), "rank 1 is idle again")
    os.kill(own.topology().ranks[0].pid, signal.SIGKILL)
    wait_until(lambda: told[-1] == ("dead", "idle"), "rank 0 is dead")
    os.kill(root_pid(own), signal.SIGKILL)
    wait_until(lambda: told[-1] is None, "the supervisor is gone")
    with pytest.raises(DistributedError, match="is gone"):
        own.run("1")
    assert repr(own).endswith(", gone)")
