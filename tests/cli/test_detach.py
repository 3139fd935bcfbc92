"""`phalanx launch --detach`, `phalanx list`, `phalanx stop`: ranks that need no launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import wait_gone

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0
SCRIPT = """
import sys, phalanx as px
world = px.init()
print("rank", world.rank(), px.all_sum(1), repr(sys.stdin.read()), flush=True)
if sys.argv[1:] == ["stay"]:
    import threading
    threading.Event().wait()
if sys.argv[1:] == ["fail"] and world.rank() == 1:
    sys.exit(3)
"""


@pytest.fixture
def phalanx(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    # Records of others, which tests that kill a notebook leave for a while, lie in either place.
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "phalanx.cli", *words]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60, check=False
        )

    yield run
    names = [path.stem for path in (tmp_path / "phalanx").glob("*.json")]
    if names:
        run("stop", *names)


def wait_for(path: Path, text: str) -> str:
    deadline_s = time.monotonic() + PATIENCE_S
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline_s, path.read_text() if path.exists() else path
        time.sleep(0.02)
    return path.read_text()


def test_ranks_stay_until_they_are_stopped(phalanx, tmp_path):
    left = phalanx("launch", "-n", "2", "--detach", "train.py", "stay")
    assert (left.returncode, left.stdout) == (0, "train\n")
    folder = tmp_path / "phalanx-train"
    assert f"is in {folder}; phalanx stop train ends it" in left.stderr
    for rank in range(2):
        wait_for(folder / f"rank-{rank}.stdout", f"rank {rank} 2 ''\n")
    listed = phalanx("list").stdout
    assert "train" in listed
    assert str(folder) in listed
    roots = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or [])
        or "train.py" in " ".join(process.info["cmdline"] or [])
    ]
    assert phalanx("stop", "train").returncode == 0
    assert wait_gone(roots, 2.0) == []
    assert phalanx("list").stdout == "no workspaces\n"
    assert wait_for(folder / "phalanx.log", "stopped\n")


@pytest.mark.parametrize(
    ("words", "verdict"),
    [([], "all ranks have ended well"), (["fail"], "failed: rank 1 exited with status 3")],
)
def test_the_end_is_written_down(phalanx, tmp_path, words, verdict):
    folder = tmp_path / "logs"
    left = phalanx("launch", "-n", "2", "--detach", "--log-dir", "logs", "train.py", *words)
    assert left.returncode == 0
    wait_for(folder / "phalanx.log", verdict)
    deadline_s = time.monotonic() + PATIENCE_S
    while phalanx("list").stdout != "no workspaces\n":
        assert time.monotonic() < deadline_s


def test_a_second_one_gets_a_number_and_a_name_that_is_taken_is_refused(phalanx):
    assert phalanx("launch", "--detach", "train.py", "stay").stdout == "train\n"
    assert phalanx("launch", "--detach", "train.py", "stay").stdout == "train-2\n"
    refused = phalanx("launch", "--detach", "--name", "train", "train.py", "stay")
    assert refused.returncode == 1
    assert "a workspace 'train' runs already" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["launch", "--name", "x", "train.py"], "--name is for --detach"),
        (["launch", "--detach", "--timeout", "3", "train.py"], "--timeout needs a launcher"),
        (["launch", "--detach", "--backend", "mpi", "train.py"], "--detach is for --backend ring"),
        (["launch", "--detach", "--name", "a/b", "train.py"], "cannot name a workspace"),
        (["launch", "--detach", "--", "/dev/null"], "dev/null"),
        (["stop", "nothing"], "there is no workspace 'nothing'; none runs"),
        (["stop"], "NAME"),
    ],
)
def test_mistakes_are_one_line(phalanx, words, message):
    said = phalanx(*words)
    assert said.returncode in (1, 2)
    assert message in said.stderr
    assert said.stderr.count("\n") == 1
    assert phalanx("list").stdout == "no workspaces\n"
