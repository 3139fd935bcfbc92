"""Scripts' ranks that give no sign of life, and those that are only done with it."""

from __future__ import annotations

import re
import signal
import sys

import pytest
from support.programs.launching import launch, launcher_with, wait_gone
from support.promise import SILENCE_S, after_silence_s, check
from support.runs.tiers import deep

from phalanx.cli import main

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


def test_a_silence_of_none_is_refused(capsys):
    assert main(["launch", "-n", "1", "--silence", "0", "true"]) == 2
    assert "heartbeat_timeout is 0.0" in capsys.readouterr().err


# Frozen right after its first word, as one that the machine has no time or memory for.
STOP_ROOT = """
import os, signal
from phalanx.workspace import script
launch_root = script.launch_root
def stop(options):
    root = launch_root(options)
    root.signal(signal.SIGSTOP)
    return root
script.launch_root = stop
"""
QUICK = "from phalanx.workspace import script; script.ASK_EVERY_S = {}; script.ENDING_S = {}"


COUNT = """
import os, pathlib
receive, left = script.Script._receive, [None] * 5
def count(self, message):
    receive(self, message)
    is_answer = isinstance(message, script.RootAnswered) and self._n_unanswered == 0
    if is_answer and not left[1:]: pathlib.Path(os.environ["DONE"]).touch()
    elif is_answer: left.pop()
script.Script._receive = count
"""


@pytest.mark.slow
def test_a_frozen_root_ends_the_launch_in_one_line():
    words = launcher_with(STOP_ROOT + QUICK.format(0.2, 60))
    ended = launch("-n", "2", "--", "sleep", "1000", launcher=words)
    assert ended.returncode == 1
    assert re.fullmatch(
        r"phalanx launch: the supervisor \(process \d+\) has not answered for 0.6 s, so it is killed, "
        r"and its ranks with it; was it stopped\?\n",
        ended.stderr.decode(),
    )


@pytest.mark.slow
def test_sigterm_ends_a_launch_whose_root_is_frozen(running):
    words = launcher_with(QUICK.format(600, 0.3))
    launcher = running(
        "-n", "2", "--grace", "0.3", "--", "sh", "-c", "echo ready; sleep 1000", launcher=words
    )
    launcher.wait_lines("[0] ready", "[1] ready")
    family = launcher.processes()
    launcher.root.suspend()
    launcher.popen.send_signal(signal.SIGTERM)
    code, said = launcher.end()
    assert code == 143
    assert "has not answered for 0.6 s, so it is killed" in said
    assert said.count("\n") == 1
    assert wait_gone(family) == []


@pytest.mark.slow
def test_a_root_that_answers_is_asked_again_and_again(tmp_path):
    done = tmp_path / "done"
    words = launcher_with(f"{QUICK.format(0.01, 60)}; script.ASKS = 10_000\n{COUNT}")
    wait = f"while [ ! -e {done} ]; do sleep 0.05; done; echo done"
    ended = launch("-n", "1", "--", "sh", "-c", wait, launcher=words, env={"DONE": str(done)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"[0] done\n", b"")
