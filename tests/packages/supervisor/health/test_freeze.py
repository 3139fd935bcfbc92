"""Ranks whose hearts do not beat are told of after the limit, and nobody is accused wrongly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from phalanx.supervisor.health.frozen_ranks import LEAST_SILENCE_S, MOST_STEP_S, HeartbeatMonitor
from phalanx.supervisor.processes.system import is_stopped

LOOK_S = 0.2


class Watched:
    """A watch, its clock, and what it told."""

    def __init__(self, limit_s: float, stopped: tuple[int, ...] = ()) -> None:
        self.stopped = set(stopped)
        self.told: list[tuple[int, str]] = []
        self.now_s = 100.0
        self._watch = HeartbeatMonitor(
            limit_s,
            lambda rank: rank in self.stopped,
            lambda rank, reason: self.told.append((rank, reason)),
        )

    def look(self, beats: dict[int, int], after_s: float = LOOK_S) -> list[tuple[int, str]]:
        """Look after so long; what is told at this look."""
        self.now_s += after_s
        before = len(self.told)
        self._watch.look(beats, self.now_s)
        return self.told[before:]

    def look_until_told(self, beats: dict[int, int]) -> float:
        """How long it takes."""
        begin_s = self.now_s
        while not self.look(beats):
            assert self.now_s < begin_s + 60
        return self.now_s - begin_s


def test_a_silent_rank_is_told_of_after_the_limit_and_within_the_promise():
    watched = Watched(5.0)
    watched.look({0: 6, 1: 7})
    for beat in range(7, 7 + 24):
        assert not watched.look({0: beat, 1: 7})
    assert watched.look_until_told({0: 100, 1: 7}) <= 5.5 - 24 * LOOK_S
    assert watched.told == [(1, "has given no sign of life for 5 s (frozen)")]
    # Told again at the next look: the epoch may be a new one.
    assert [rank for rank, _ in watched.look({0: 101, 1: 7})] == [1]


def test_the_kernel_explains_a_stop():
    watched = Watched(5.0, stopped=(1,))
    watched.look({1: 7})
    watched.look_until_told({1: 7})
    assert watched.told == [(1, "has been stopped (frozen) for 5 s")]


def test_below_four_beats_only_the_kernel_can_accuse():
    watched = Watched(0.5)
    watched.look({1: 7})
    assert watched.look_until_told({1: 7}) >= LEAST_SILENCE_S
    assert watched.told == [(1, "has given no sign of life for 1 s (frozen)")]
    stopped = Watched(0.5, stopped=(1,))
    stopped.look({1: 7})
    assert stopped.look_until_told({1: 7}) <= 0.5 + LOOK_S


def test_a_thawed_rank_begins_anew():
    watched = Watched(5.0, stopped=(1,))
    watched.look({1: 7})
    watched.look_until_told({1: 7})
    assert not watched.look({1: 8})
    assert not watched.look({1: 8})
    assert watched.look_until_told({1: 8}) > 4.0


def test_a_rank_without_heartbeats_is_never_accused():
    watched = Watched(5.0, stopped=(0,))
    for _ in range(100):
        assert not watched.look({0: 0})
    watched.look({0: 5})  # it joined
    watched.look({0: 0})  # and left
    for _ in range(100):
        assert not watched.look({0: 0})


def test_a_supervisor_that_did_not_run_accuses_nobody_for_that_time():
    watched = Watched(5.0)
    watched.look({1: 7})
    assert not watched.look({1: 7}, after_s=3600.0)
    assert not watched.look({1: 8})
    assert watched.look_until_told({1: 8}) >= 5.0 - MOST_STEP_S


def test_a_rank_that_is_not_watched_for_a_while_begins_anew():
    watched = Watched(5.0)
    watched.look({1: 7})
    watched.look({1: 7}, after_s=0.5)
    watched.look({})
    assert not watched.look({1: 7})
    assert watched.look_until_told({1: 7}) >= 5.0 - MOST_STEP_S


def test_the_kernel_says_who_is_stopped():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert is_stopped(child.pid)
        child.kill()
    assert not is_stopped(child.pid)
