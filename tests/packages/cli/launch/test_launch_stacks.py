"""`phalanx launch` says where ranks are: when asked (SIGQUIT), and when one is waited for long."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.programs.launching import launcher_with
from support.promise import SLOW_OPERATION_S

from phalanx.cli.launch.console import Launch
from phalanx.cli.launch.script_root import boot_options
from phalanx.cli.main import _parser
from phalanx.workspace import Placement

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
def test_ctrl_backslash_shows_where_ranks_are_also_those_that_a_shell_has_started(running, script):
    program = f"{sys.executable} {script(TRAIN, 'train.py')} /no/such/file; true"
    job = running("-n", "2", "--", "sh", "-c", program)
    job.wait_lines("[1] loading")
    before = line = b""
    while b"train.py:7 in load\n" not in line:
        if not line or b"train.py" in line:  # the first time it may not be back from its print
            job.popen.send_signal(signal.SIGQUIT)
        before, line = line, job.popen.stderr.readline()
        assert line
    assert before == b"phalanx launch: rank 1: runs\n"
    assert job.popen.stderr.readline().endswith(b"train.py:12\n")


LINE = (
    f"ranks 0,2 have waited {SLOW_OPERATION_S} s in all_sum #2; "
    "missing: rank 1, at train.py:7 in load, last completed #1"
)


SOONER = f"""
import msgspec
import phalanx.cli.launch.script_root as launcher
later = launcher.boot_options
def sooner(*args): return msgspec.structs.replace(later(*args), slow_operation_s={SLOW_OPERATION_S})
launcher.boot_options = sooner
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", [["-n", "3"], ["--hosts", "x,y,z", "--launcher", "local"]], ids=["one", "hosts"]
)
def test_a_long_wait_is_told_of_once(script, tmp_path, where):
    done = tmp_path / "done"
    words = [*launcher_with(SOONER), *where, script(TRAIN, "train.py"), str(done)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as popen:
        lines = iter(popen.stderr.readline, b"")
        # On a busy machine a line before it tells that a host takes long to start.
        assert any(line.decode() == f"phalanx launch: {LINE}\n" for line in lines)
        done.touch()
        assert popen.stderr.read() == b""
    assert popen.returncode == 0


def test_the_line_comes_after_ten_seconds():
    options = _parser().parse_args(["launch"])
    launch = Launch(options, (), (), {}, Placement(1), "/")
    assert boot_options(launch).slow_operation_s == 10.0


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
