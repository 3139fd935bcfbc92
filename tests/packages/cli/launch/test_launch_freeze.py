"""Scripts' ranks that give no sign of life, and those that are only done with it."""

from __future__ import annotations

import signal
import sys
import time

import pytest
from support.programs.launching import launch
from support.promise import SILENCE_S, after_silence_s, check
from support.runs.tiers import deep

FROZEN = """
import os, signal, sys, time
import phalanx as px
world = px.init()
px.all_sum(1)
if world.rank() == 1:
    print("stopped", time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    px.all_sum(1)
except px.RankFailure as error:
    print("freed", time.time(), error.rank, error.reason, flush=True)
    sys.exit(3)
"""

# A thread that is in the engine to the last keeps the page mapped.
DONE = """
import os, pathlib, sys, threading, time
import numpy as np
import phalanx as px
world = px.init()
pids = px.all_gather(np.array([os.getpid()]))
part = world.split(world.rank())
if world.rank() == 1:
    threading.Thread(target=px.recv, args=((3,), "float32", 0), daemon=True).start()
else:
    while os.path.exists(f"/proc/{pids[1]}"): time.sleep(0.005)
    end_s = time.monotonic() + 1.5 * float(sys.argv[2])
    while time.monotonic() < end_s:
        px.all_sum(1, group=part)
        time.sleep(0.02)
    pathlib.Path(sys.argv[1]).touch()
"""


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("transport", ["any", pytest.param("tcp", marks=deep)])
def test_a_frozen_script_is_named_and_all_is_ended(transport, tmp_path):
    script = tmp_path / "frozen.py"
    script.write_text(FROZEN)
    options = ("-n", "2", "--silence", str(SILENCE_S), "--grace", "0.2", "--transport", transport)
    ended = launch(*options, str(script))
    said = dict(line[4:].split(" ", 1) for line in ended.stdout.decode().splitlines())
    stopped_s = float(said["stopped"])
    at_s, culprit_rank, reason = said["freed"].split(" ", 2)
    assert culprit_rank == "1"
    assert reason.startswith(f"has been stopped (frozen) for {SILENCE_S:g} s")
    check(float(at_s) - stopped_s, after_silence_s(SILENCE_S))
    assert ended.returncode == 3


@pytest.mark.slow
def test_a_python_that_has_ended_in_a_shell_that_goes_on_is_not_frozen(tmp_path):
    script = tmp_path / "done.py"
    script.write_text(DONE)
    done = tmp_path / "done"
    shell = f"{sys.executable} {script} {done} {SILENCE_S} && while [ ! -e {done} ]; do sleep 0.05; done"
    ended = launch("-n", "2", "--silence", str(SILENCE_S), "--", "sh", "-c", shell)
    assert (ended.returncode, ended.stderr) == (0, b"")


# More than this a launcher that goes on would take for the end of a rank.
@pytest.mark.slow
def test_a_launcher_that_is_stopped_for_long_goes_on(running, tmp_path):
    done = tmp_path / "done"
    wait = f"echo ready; while [ ! -e {done} ]; do sleep 0.05; done; echo done"
    launcher = running("-n", "2", "--silence", str(SILENCE_S), "--", "sh", "-c", wait)
    launcher.wait_lines("[0] ready", "[1] ready")
    launcher.popen.send_signal(signal.SIGSTOP)
    time.sleep(2 * SILENCE_S)
    done.touch()
    launcher.popen.send_signal(signal.SIGCONT)
    launcher.wait_lines("[0] done", "[1] done")
    assert launcher.end() == (0, "")
