"""What the machine refuses to a command itself: one line that names the place and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.programs.launching import LAUNCH, launch, launcher_with

pytestmark = pytest.mark.slow
CLI = LAUNCH[:-1]


def test_a_full_standard_output_is_named():
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*LAUNCH, "--", "echo", "words"], stdin=subprocess.DEVNULL, stdout=full,
            stderr=subprocess.PIPE, timeout=100, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == (
        b"phalanx launch: standard output: No space left on device; make room there, or name "
        b"another place\n"
    )


def test_a_log_that_takes_no_more_is_named_and_the_ranks_go_on(tmp_path):
    (tmp_path / "rank-0.stdout").symlink_to("/dev/full")
    ended = launch("-n", "2", "--log-dir", str(tmp_path), "--", "sh", "-c", "echo one; echo two")
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == [b"[0] one", b"[0] two", b"[1] one", b"[1] two"]
    assert ended.stderr.decode() == (
        f"phalanx launch: {tmp_path}/rank-0.stdout: No space left on device; "
        "it ends here, and the ranks go on\n"
    )
    assert (tmp_path / "rank-1.stdout").read_text() == "one\ntwo\n"


def test_a_log_folder_that_is_a_file_is_named(tmp_path):
    path = tmp_path / "logs"
    path.touch()
    ended = launch("--log-dir", str(path), "true")
    assert (ended.returncode, ended.stderr.decode()) == (
        1,
        f"phalanx launch: {path}: File exists; name another place\n",
    )


def test_a_folder_that_has_been_removed_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$0"; rmdir "$0"; exec "$@"'
    ended = launch("true", launcher=["sh", "-c", script, str(gone), *LAUNCH])
    gone_folder = b"the folder that you are in has been removed; cd to one that is there\n"
    assert (ended.returncode, ended.stderr) == (1, b"phalanx launch: " + gone_folder)
    gone.mkdir()
    ended = launch("-n", "1", "-e", "8", launcher=["sh", "-c", script, str(gone), *CLI, "bench"])
    assert (ended.returncode, ended.stderr) == (1, b"phalanx bench: " + gone_folder)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["list"], ["config"], ["config", "--output", "/dev/full"]])
def test_a_full_disk_is_named_by_every_command(words, unbuffered):
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*CLI, *words], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, timeout=100, check=False,
        )  # fmt: skip
    place = words[-1] if words[-1] == "/dev/full" else "standard output"
    assert ended.returncode == 1
    assert ended.stderr.decode() == (
        f"phalanx {words[0]}: {place}: No space left on device; "
        "make room there, or name another place\n"
    )


REFUSE = """
import threading
start = threading.Thread.start
def refuse(self):
    if self.name == {!r}: raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = refuse
"""


@pytest.mark.parametrize("name", ["phalanx-stdin", "phalanx-screen"])
def test_a_thread_that_cannot_be_started_is_one_line(name):
    words = launcher_with(REFUSE.format(name))
    ended = launch("-n", "1", "--", "sleep", "1000", launcher=words)
    assert ended.returncode == 1
    assert ended.stderr.count(b"\n") == 1
    assert b"can't start new thread; raise a limit (ulimit -v, ulimit -u), or end" in ended.stderr


UNSHARED = ["unshare", "-n"]  # a network of its own, in which nothing is up
SAID = "the loopback interface of this machine does not work (127.0.0.1: Network is unreachable)"


def test_a_machine_whose_loopback_interface_is_down(tmp_path):
    try:
        if subprocess.run([*UNSHARED, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no network namespace may be made here")
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}

    def ended(*words):
        done = launch(launcher=[*UNSHARED, sys.executable, *words], env=env)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    said = f"phalanx launch: {SAID}; bring it up (ip link set lo up)\n"
    assert ended("-m", "phalanx", "launch", "-n", "2", "--", "true") == (1, "", said)
    code = "import phalanx as px\ntry: px.Workspace.start(2)\nexcept Exception as e: print(repr(e))"
    status, out, err = ended("-c", code)
    assert (status, out.count("\n"), err) == (0, 1, "")
    assert f"the supervisor did not start: it cannot run here: {SAID}; bring it up" in out
    status, out, err = ended("-m", "phalanx", "doctor")
    assert status == 1
    (line,) = [line for line in out.splitlines() if "loopback" in line]
    assert "Network is unreachable" in line
    assert "ip link set lo up" in line
