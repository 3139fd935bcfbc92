"""`phalanx list` and `phalanx stop`: workspaces of this user, by name."""

from __future__ import annotations

import os
import signal
import tempfile

import pytest

from phalanx.cli import main
from phalanx.workspace import Workspace


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys):
    """Return what `phalanx list` prints; records of workspaces are nobody else's."""
    # Records of others, which tests that kill a notebook leave for a while, lie in either place.
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # of this process, which has read TMPDIR

    def look() -> str:
        capsys.readouterr()
        assert main(["list"]) == 0
        return capsys.readouterr().out

    return look


@pytest.mark.slow
def test_workspaces_are_listed_until_they_are_stopped(listed, capsys):
    with Workspace.start(n=2, name="one"), Workspace.start(n=1, name="two"):
        rows = [line.split() for line in listed().splitlines()]
        assert [row[:2] for row in rows] == [["name", "ranks"], ["one", "2"], ["two", "1"]]
        assert main(["stop", "one", "two"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "stopped the 2 ranks of 'one'",
            "stopped the rank of 'two'",
        ]
        assert listed() == "no workspaces\n"


@pytest.mark.slow
def test_who_does_not_end_in_time_is_named(listed, capsys):
    with Workspace.start(n=2, name="one", grace=0.5) as workspace:
        pid = workspace.topology().ranks[1].pid
        workspace.run("import atexit, time; atexit.register(time.sleep, 1000); None", ranks=0)
        os.kill(pid, signal.SIGSTOP)
        assert main(["stop", "one"]) == 0
        said = capsys.readouterr()
    assert said.out == "stopped the 2 ranks of 'one'\n"
    (line,) = said.err.splitlines()
    assert line.startswith("phalanx: ranks 0-1 did not end within 0.5 s of the stop (")
    assert line.endswith(") and were killed")
