"""`phalanx launch` says where ranks are: when asked (SIGQUIT), and when one is waited for long."""

from __future__ import annotations

import signal
import sys

import pytest
from launching import launch

from phalanx.protocol import HostPlan, Notice, RemoteOptions, StacksAre
from phalanx.protocol.scripts import AllEnded, Output
from phalanx.workspace import Job, Script, Where

TRAIN = """
import sys, time
import phalanx as px

def load():
    print("loading", flush=True)
    time.sleep(float(sys.argv[1]))

world = px.init()
px.all_sum(1)
if world.rank() == 1:
    load()
px.all_sum(1)
"""


@pytest.mark.slow
def test_ctrl_backslash_shows_where_the_ranks_are(running, script):
    job = running("-n", "3", script(TRAIN, "train.py"), "60")
    job.wait_lines("[1] loading")
    job.popen.send_signal(signal.SIGQUIT)
    said = b""
    while b"train.py:12\n" not in said:
        line = job.popen.stderr.readline()
        assert line
        said += line
    job.popen.send_signal(signal.SIGINT)
    status, rest = job.end()
    said = said.decode() + rest
    assert "phalanx launch: rank 1: runs\n" in said
    assert "train.py:7 in load\n" in said
    assert status == 130


def test_a_program_without_phalanx_is_left_alone(running):
    code = "import time; print('up', flush=True); time.sleep(0.7)"
    job = running("-n", "2", "--", sys.executable, "-c", code)
    job.wait_lines("[0] up", "[1] up")
    job.popen.send_signal(signal.SIGQUIT)
    status, said = job.end()
    assert said == "phalanx launch: ranks 0-1: in a program that has not called px.init()\n"
    assert status == 0


@pytest.mark.slow
def test_a_program_that_a_shell_has_started_is_found(script, tmp_path):
    command = ["sh", "-c", f"{sys.executable} {script(TRAIN, 'train.py')} 60; true"]
    with Script(Job(command, command, Where(2), str(tmp_path)), quiet_s=60) as ranks:
        stacks = {}
        while not stacks:
            event = ranks.next(60)
            assert event is not None
            if isinstance(event, Output):
                ranks.taken(event)
                if b"loading" in event.data:
                    ranks.ask_stacks()
            elif isinstance(event, StacksAre):
                if event.stacks[1].place == "train.py:6 in load":  # not back from its print yet
                    ranks.ask_stacks()
                else:
                    stacks = event.stacks
    assert stacks[1].place == "train.py:7 in load"
    assert stacks[1].frames == ("train.py:7 in load", "train.py:12")


ELSEWHERE = Where(3, (HostPlan("x", 2), HostPlan("y", 1)), RemoteOptions(launcher="local"))


@pytest.mark.slow
@pytest.mark.parametrize("where", [Where(3), ELSEWHERE], ids=["here", "two hosts"])
def test_a_long_wait_is_told_of_once(script, tmp_path, where):
    said = []
    command = [sys.executable, script(TRAIN, "train.py"), "1.5"]
    with Script(Job(command, command, where, str(tmp_path)), quiet_s=0.4) as ranks:
        while not isinstance(event := ranks.next(20), AllEnded):
            assert event is not None
            if isinstance(event, Output):
                ranks.taken(event)
            elif isinstance(event, Notice):
                said.append(event.text)
    assert event.statuses == (0, 0, 0)
    assert said[-1] == (
        "ranks 0,2 have waited 0.4 s in all_sum #2; "
        "missing: rank 1, at train.py:7 in load, last completed #1"
    )
    assert len(said) == 1


@pytest.mark.slow
def test_the_line_comes_after_ten_seconds(script):
    done = launch("-n", "2", script(TRAIN, "train.py"), "11.5")
    assert done.returncode == 0
    (line,) = done.stderr.decode().splitlines()
    assert line == (
        "phalanx launch: rank 0 has waited 10 s in all_sum #2; "
        "missing: rank 1, at train.py:7 in load, last completed #1"
    )


def test_a_rank_that_a_stop_does_not_end_is_named_before_it_is_killed(running, script):
    code = """
import signal, sys, time
import phalanx as px

def deaf():
    print("deaf", flush=True)
    time.sleep(60)

if px.init().rank() == 1:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deaf()
px.all_sum(1)
"""
    job = running("-n", "2", "--grace", "0.4", script(code, "train.py"))
    job.wait_lines("[1] deaf")
    job.popen.send_signal(signal.SIGINT)
    status, said = job.end()
    late = "rank 1 did not end within 0.4 s of the stop (at train.py:7 in deaf)"
    assert f"phalanx launch: {late}\n" in said
    assert status == 130
