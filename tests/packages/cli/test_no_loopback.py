"""A machine whose loopback interface is down: one line from each command, in bounded time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.programs.launching import launch

PHALANX = [sys.executable, "-m", "phalanx"]
UNSHARED = ["unshare", "-n"]  # a network of its own, in which nothing is up
SAID = "the loopback interface of this machine does not work (127.0.0.1: Network is unreachable)"


@pytest.fixture(scope="module", autouse=True)
def _may_unshare():
    try:
        if subprocess.run([*UNSHARED, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no network namespace may be made here")
    except FileNotFoundError:
        pytest.skip("there is no unshare here")


@pytest.mark.slow
def test_a_launch_is_refused(tmp_path):
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [*UNSHARED, *PHALANX, "launch"]
    ended = launch("-n", "2", "--", "true", launcher=command, env=env)
    assert ended.returncode == 1
    assert ended.stderr.decode() == (f"phalanx launch: {SAID}; bring it up (ip link set lo up)\n")


@pytest.mark.slow
def test_a_workspace_is_refused(tmp_path):
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    code = "import phalanx as px\ntry: px.Workspace.start(2)\nexcept Exception as e: print(repr(e))"
    ended = subprocess.run(
        [*UNSHARED, sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=False, env=env,
    )  # fmt: skip
    assert ended.stderr == ""
    (line,) = ended.stdout.splitlines()
    assert f"the supervisor did not start: it cannot run here: {SAID}; bring it up" in line


def test_the_doctor_tells():
    ended = subprocess.run(
        [*UNSHARED, *PHALANX, "doctor"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    (line,) = [line for line in ended.stdout.splitlines() if "loopback" in line]
    assert "Network is unreachable" in line
    assert "ip link set lo up" in line
