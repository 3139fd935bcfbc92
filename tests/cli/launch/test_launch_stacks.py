"""`phalanx launch` says where ranks are: when asked (SIGQUIT), and when one is waited for long."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys

import pytest
from support.programs.launching import launcher_with
from support.promise import PATIENCE_S, SLOW_OPERATION_S

from phalanx.protocol import HostPlan, Notice, RemoteOptions, StacksAre
from phalanx.protocol.host import CommandOutput
from phalanx.protocol.scripts import AllEnded
from phalanx.workspace import Job, Placement, Script

# Rank 1 waits for a file, the others for rank 1.
TRAIN = """
import os, sys, time
import phalanx as px

def load():
    print("loading", flush=True)
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)

world = px.init()
px.all_sum(1)
if world.rank() == 1:
    load()
px.all_sum(1)
"""


@pytest.mark.slow
def test_ctrl_backslash_shows_where_the_ranks_are(running, script):
    job = running("-n", "3", script(TRAIN, "train.py"), "/no/such/file")
    job.wait_lines("[1] loading")
    said = b""
    while b"train.py:7 in load\n" not in said:  # the first time it may not be back from its print
        job.popen.send_signal(signal.SIGQUIT)
        said = b""
        while b"train.py:12\n" not in said:
            line = job.popen.stderr.readline()
            assert line
            said += line
    job.popen.send_signal(signal.SIGINT)
    status, rest = job.end()
    assert b"phalanx launch: rank 1: runs\n" in said
    assert status == 130, rest


@pytest.mark.slow
def test_a_program_without_phalanx_is_left_alone(running, tmp_path):
    done = tmp_path / "done"
    code = "import os, sys, time; print('up', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)"
    job = running("-n", "2", "--", sys.executable, "-c", code, str(done))
    job.wait_lines("[0] up", "[1] up")
    job.popen.send_signal(signal.SIGQUIT)
    told = job.popen.stderr.readline().decode()
    done.touch()
    status, said = job.end()
    assert told + said == "phalanx launch: ranks 0-1: in a program that has not called px.init()\n"
    assert status == 0


@pytest.mark.slow
def test_a_program_that_a_shell_has_started_is_found(script, tmp_path):
    command = ["sh", "-c", f"{sys.executable} {script(TRAIN, 'train.py')} /no/such/file; true"]
    with Script(Job(command, command, Placement(2), str(tmp_path)), slow_operation_s=60) as ranks:
        stacks = {}
        while not stacks:
            event = ranks.next(PATIENCE_S)
            assert event is not None
            if isinstance(event, CommandOutput):
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


LINE = (
    f"ranks 0,2 have waited {SLOW_OPERATION_S} s in all_sum #2; "
    "missing: rank 1, at train.py:7 in load, last completed #1"
)


@pytest.mark.slow
def test_a_long_wait_is_told_of_once(script, tmp_path):
    done = tmp_path / "done"
    sooner = f"Script.__init__.__kwdefaults__['slow_operation_s'] = {SLOW_OPERATION_S}"
    launcher = launcher_with(f"from phalanx.workspace import Script; {sooner}")
    words = [*launcher, "-n", "3", script(TRAIN, "train.py"), str(done)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as popen:
        said = popen.stderr.readline().decode()
        done.touch()
        rest = popen.stderr.read()
    assert popen.returncode == 0
    assert (said, rest) == (f"phalanx launch: {LINE}\n", b"")


@pytest.mark.slow
def test_a_long_wait_on_two_hosts_is_told_of_once(script, tmp_path):
    done, said = tmp_path / "done", []
    hosts = Placement(3, (HostPlan("x", 2), HostPlan("y", 1)), RemoteOptions(launcher="local"))
    command = [sys.executable, script(TRAIN, "train.py"), str(done)]
    with Script(
        Job(command, command, hosts, str(tmp_path)), slow_operation_s=SLOW_OPERATION_S
    ) as ranks:
        while not isinstance(event := ranks.next(PATIENCE_S), AllEnded):
            assert event is not None
            if isinstance(event, CommandOutput):
                ranks.taken(event)
            elif isinstance(event, Notice):
                said.append(event.text)
                done.touch()
    assert event.statuses == (0, 0, 0)
    assert said == [LINE]


def test_the_line_comes_after_ten_seconds():
    assert inspect.signature(Script).parameters["slow_operation_s"].default == 10.0


@pytest.mark.slow
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
    job = running("-n", "2", "--grace", "1", script(code, "train.py"))
    job.wait_lines("[1] deaf")
    job.popen.send_signal(signal.SIGINT)
    status, said = job.end()
    late = "rank 1 did not end within 1 s of the stop (at train.py:7 in deaf)"
    assert f"phalanx launch: {late}\n" in said
    assert status == 130
