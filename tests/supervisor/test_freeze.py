"""Frozen ranks are told of once, after the limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from phalanx.supervisor._freeze import FreezeWatch, is_stopped


def test_a_rank_is_told_of_once_after_the_limit():
    told: list[int] = []
    watch = FreezeWatch(5.0, told.append)
    for now_s in (0.0, 4.9):
        watch.look({0: False, 1: True}, now_s)
    assert told == []
    for now_s in (5.0, 6.0, 60.0):
        watch.look({0: False, 1: True}, now_s)
    assert told == [1]


def test_a_thawed_rank_begins_anew():
    told: list[int] = []
    watch = FreezeWatch(5.0, told.append)
    watch.look({1: True}, 0.0)
    watch.look({1: False}, 4.0)
    watch.look({1: True}, 5.0)
    assert told == []
    watch.look({1: True}, 10.0)
    watch.look({1: False}, 11.0)
    watch.look({1: True}, 12.0)
    watch.look({1: True}, 17.0)
    assert told == [1, 1]


def test_the_kernel_says_who_is_stopped():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert is_stopped(child.pid)
        child.kill()
    assert not is_stopped(child.pid)
