"""How `phalanx launch` on several hosts ends: by signals, kills, and hosts that are lost."""

from __future__ import annotations

import signal

import pytest
from support.programs.idle import assert_idle
from support.programs.launching import Running, wait_gone, write_script
from support.promise import BOUND_S
from support.runs.tiers import deep

pytestmark = pytest.mark.slow

GONE_S = BOUND_S + 3.0  # the root asks the hosts, each of which ends its own ranks

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


@pytest.mark.promise
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        # As for ranks of one host, test_launch_ends.
        pytest.param(signal.SIGTERM, 143, marks=deep),
        pytest.param(signal.SIGHUP, 129, marks=deep),
    ],
)
def test_a_signal_ends_everything_everywhere(script, running, number, status):
    ranks = running(*HOSTS, script(WAIT))
    family = both_up(ranks)
    ranks.popen.send_signal(number)
    code, said = ranks.end()
    assert code == status, said
    if number == signal.SIGINT:
        assert "[0] KeyboardInterrupt" in said  # asked first
    assert "did not end" not in said
    assert wait_gone(family, GONE_S) == []


def supervisors(ranks):
    return [p for p in ranks.children() if p.cmdline()[-1:] == ["host"]]


@pytest.mark.promise
def test_a_host_that_is_lost_is_named(script, running):
    ranks = running(*HOSTS, script(WAIT))
    family = both_up(ranks)
    supervisors(ranks)[0].kill()
    code, said = ranks.end()
    assert code == 137
    assert "lost its host: its supervisor was killed by signal 9 (SIGKILL)" in said
    assert wait_gone(family, GONE_S) == []


# -- ranks that are only looked at ----------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """Start a rank on each of two hosts; both sleep."""
    ranks = Running(*HOSTS, write_script(tmp_path_factory.mktemp("waiting"), WAIT))
    both_up(ranks)
    yield ranks
    ranks.close()


def test_an_idle_launch_costs_nothing(waiting):
    # All processes together; the hosts and the launcher exchange signs of life.
    assert_idle(waiting.processes(), wakeups_per_s=100)


def test_where_ranks_of_other_hosts_are(waiting):
    waiting.popen.send_signal(signal.SIGQUIT)
    said = iter(waiting.popen.stderr.readline, b"")
    # On a busy machine a line before it tells that a host takes long to start.
    assert any(line == b"phalanx launch: ranks 0-1: runs\n" for line in said)
    assert next(said).endswith(b"script.py:5\n")
