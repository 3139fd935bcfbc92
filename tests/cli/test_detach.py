"""`phalanx launch --detach`, `phalanx list`, `phalanx stop`: ranks that need no launcher."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from support.launching import wait_gone
from support.promise import BOUND_S
from support.waiting import wait_until

from phalanx.cli import main
from phalanx.errors import DistributedError
from phalanx.workspace import script

pytestmark = pytest.mark.slow

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
def folder(tmp_path, monkeypatch):
    """Go to a folder with the script, whose records of workspaces are nobody else's."""
    (tmp_path / "train.py").write_text(SCRIPT)
    # Records of others, which tests that kill a notebook leave for a while, lie in either place.
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # of this process, which has read TMPDIR
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    names = [path.stem for path in (tmp_path / "phalanx").glob("*.json")]
    if names:
        launch("stop", *names)


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "phalanx.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def wait_for(path: Path, text: str) -> str:
    """Wait until a file has this text; return all of it."""
    return wait_until(
        lambda: path.exists() and text in (found := path.read_text()) and found, f"{text} in {path}"
    )


@pytest.fixture
def listed(capsys):
    """Return what `phalanx list` prints."""

    def look() -> str:
        capsys.readouterr()
        assert main(["list"]) == 0
        return capsys.readouterr().out

    return look


def test_a_detached_rank_is_started_again(folder):
    (folder / "train.py").write_text(
        """
import os, sys, phalanx as px
again = os.environ["PHALANX_RESTART_COUNT"]
print("start", again, repr(sys.stdin.read()), flush=True)
world = px.init()
if again == "0":
    try:
        world.barrier()
        if world.rank() == 1: os._exit(7)
        world.barrier()
    except px.RankFailure:
        px.recover()
print(px.all_sum(1), flush=True)
"""
    )
    ended = launch("launch", "--detach", "-n", "2", "--max-restarts", "1", "train.py")
    assert ended.returncode == 0, ended.stderr
    logs = folder / "phalanx-train"
    journal = wait_for(logs / "phalanx.log", "all ranks have ended well")
    assert "rank 1 exited with status 7; it is started again (1 of 1)" in journal
    assert (logs / "rank-0.stdout").read_text() == "start 0 ''\n2\n"
    assert (logs / "rank-1.stdout").read_text() == "start 0 ''\nstart 1 ''\n2\n"


def family_of(words: str) -> list[psutil.Process]:
    """Return the processes that have this in their command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if words in " ".join(process.info["cmdline"] or [])
    ]


@pytest.mark.promise
def test_ranks_stay_until_they_are_stopped(folder, listed):
    left = launch("launch", "-n", "2", "--detach", "train.py", "stay")
    assert (left.returncode, left.stdout) == (0, "train\n")
    logs = folder / "phalanx-train"
    assert f"is in {logs}; phalanx stop train ends it" in left.stderr
    for rank in range(2):
        wait_for(logs / f"rank-{rank}.stdout", f"rank {rank} 2 ''\n")
    # A second one gets a number; a name that is taken is refused.
    assert launch("launch", "--detach", "train.py", "stay").stdout == "train-2\n"
    refused = launch("launch", "--detach", "--name", "train", "train.py", "stay")
    assert refused.returncode == 1
    assert "a workspace 'train' runs already" in refused.stderr
    assert refused.stderr.count("\n") == 1
    table = listed()
    assert "train-2" in table
    assert str(logs) in table
    started = family_of(str(folder)) + family_of("train.py stay")
    assert len(started) >= 5  # two supervisors, three ranks
    stopped = launch("stop", "train", "train-2")
    assert stopped.returncode == 0
    assert stopped.stdout.splitlines() == [
        f"stopped the {size} of {name!r}"
        for size, name in (("2 ranks", "train"), ("rank", "train-2"))
    ]
    assert wait_gone(started, BOUND_S) == []
    assert listed() == "no workspaces\n"
    assert wait_for(logs / "phalanx.log", "stopped\n")


@pytest.mark.parametrize(
    ("words", "verdict"),
    [([], "all ranks have ended well"), (["fail"], "failed: rank 1 exited with status 3")],
)
def test_the_end_is_written_down(folder, listed, words, verdict):
    left = launch("launch", "-n", "2", "--detach", "--log-dir", "logs", "train.py", *words)
    assert left.returncode == 0
    wait_for(folder / "logs" / "phalanx.log", verdict)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder / "logs").iterdir()}
    assert (stat.S_IMODE((folder / "logs").stat().st_mode), modes) == (0o700, {0o600})
    wait_until(lambda: listed() == "no workspaces\n", "the workspace is no longer listed")


def test_the_silence_limit_is_kept(folder, monkeypatch):
    found = []

    def launch_root(options, **_):
        found.append(options.boot.world.heartbeat_timeout_s)
        msg = "it is only looked at"
        raise DistributedError(msg)

    monkeypatch.setattr(script, "launch_root", launch_root)
    assert main(["launch", "--detach", "--silence", "2.5", "train.py"]) == 1
    assert found == [2.5]


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
def test_mistakes_are_one_line(folder, listed, capsys, words, message):
    try:
        code = main(words)
    except SystemExit as leaving:
        code = leaving.code
    said = capsys.readouterr().err
    assert code in (1, 2)
    assert message in said
    assert said.count("\n") == 1
    assert listed() == "no workspaces\n"
