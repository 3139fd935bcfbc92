"""How `phalanx launch` on several hosts ends: by signals, kills, and hosts that are lost."""

from __future__ import annotations

import signal
import time

import pytest
from launching import wait_gone

pytestmark = pytest.mark.slow

HOSTS = ("--hosts", "x,y", "--launcher", "local")
WAIT = """
import os, sys, time, phalanx as px
world = px.init(strict=True)
px.all_sum(1)
print("up", flush=True) or time.sleep(600)
"""


def both_up(ranks):
    ranks.wait_lines("[0] up", "[1] up")
    return ranks.processes()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_everything_everywhere(script, running, number, status):
    ranks = running(*HOSTS, script(WAIT))
    family = both_up(ranks)
    ranks.popen.send_signal(number)
    code, said = ranks.end()
    assert code == status, said
    assert "[0] KeyboardInterrupt" in said  # asked first
    assert "did not end" not in said
    assert wait_gone(family, 5) == []


@pytest.mark.parametrize("who", ["launcher", "root"])
def test_nothing_is_left_after_a_kill(script, running, who):
    ranks = running(*HOSTS, script(WAIT))
    family = both_up(ranks)
    (ranks.popen if who == "launcher" else ranks.root).kill()
    ranks.end()
    assert wait_gone(family, 5) == []


def supervisors(ranks):
    return [p for p in ranks.root.children() if p.cmdline()[-1:] == ["host"]]


def test_a_host_that_is_lost_is_named(script, running):
    ranks = running(*HOSTS, script(WAIT))
    family = both_up(ranks)
    supervisors(ranks)[0].kill()
    code, said = ranks.end()
    assert code == 137
    assert "lost its host: its supervisor was killed by signal 9 (SIGKILL)" in said
    assert wait_gone(family, 5) == []


def test_where_ranks_of_other_hosts_are(script, running):
    ranks = running(*HOSTS, script(WAIT))
    both_up(ranks)
    ranks.popen.send_signal(signal.SIGQUIT)
    said = [ranks.popen.stderr.readline().decode().strip() for _ in range(2)]
    assert said[0] == "phalanx launch: ranks 0-1: runs"
    assert said[1].endswith("script.py:5")


def test_an_idle_launch_costs_nothing(script, running):
    ranks = running(*HOSTS, script(WAIT))
    family = both_up(ranks)

    def spent():
        times = [process.cpu_times() for process in family if process.is_running()]
        return sum(t.user + t.system for t in times)

    spent()
    before, began = spent(), time.monotonic()
    time.sleep(2)  # that it goes by is what is looked at
    assert (spent() - before) / (time.monotonic() - began) < 0.1
