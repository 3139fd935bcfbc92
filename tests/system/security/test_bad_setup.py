"""Worlds that cannot be: a clear line on each rank, soon, and nothing is lost by it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.own_frames import own_frames
from support.programs.launching import launch, write_script
from support.promise import PATIENCE_S, within
from support.runs.tiers import deep

from phalanx.errors import RankFailure
from phalanx.workspace import Workspace

LIMIT_S = 1.5  # until the ranks must have met


def last_lines(text: str) -> list[str]:
    """The ends of all tracebacks in a text."""
    return [line for line in text.splitlines() if "phalanx.errors." in line or "ValueError" in line]


def ranks(code, env_of_rank):
    """Run code with the variables of each rank; (stdout, stderr, status) by rank."""
    with within(LIMIT_S + PATIENCE_S):
        popens = [
            subprocess.Popen(
                [sys.executable, "-c", code], env={**os.environ, **env},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for env in env_of_rank
        ]  # fmt: skip
        return [(*popen.communicate(timeout=60), popen.returncode) for popen in popens]


@pytest.fixture
def script(tmp_path):
    return lambda code: write_script(tmp_path, code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "version"),
    [
        ("init", "9.9.9"),
        ("recover", ""),
        pytest.param("init", "", marks=deep),
        pytest.param("recover", "9.9.9", marks=deep),
    ],
)
def test_another_version_on_one_rank_is_told_to_all(script, version, call, tmp_path):
    path = script(f"""
        import os, pathlib, time, phalanx as px
        here, until = pathlib.Path({str(tmp_path)!r}), time.monotonic() + 20
        def wait_for(names):
            while not all((here / name).exists() for name in names) and time.monotonic() < until:
                time.sleep(0.01)
        if os.environ["PHALANX_RANK"] == "1":
            px.__version__ = {version!r}
        elif os.environ["PHALANX_RANK"] == "0":
            wait_for("1")  # it has been refused
        try:
            px.{call}(timeout=10)
        except px.DistributedError as error:
            print(error)
        # Nobody leaves before all know: a rank that has ended is another story.
        (here / os.environ["PHALANX_RANK"]).touch()
        wait_for("012")
    """)
    done = launch("-n", "3", path)
    said = sorted(done.stdout.decode().splitlines())
    assert len(said) == 3
    for rank, line in enumerate(said):
        assert line.startswith(f"[{rank}] ")
        assert f"rank 1 has phalanx {version or 'of another version'}, its supervisor has" in line
        assert line.endswith(": all need the same version")


@pytest.mark.slow
def test_a_rank_that_speaks_otherwise_is_named():
    with Workspace.start(n=2) as ws:
        with pytest.raises(RankFailure) as caught:
            ws.run(
                "if rank:\n"
                "    import threading\n"
                "    from phalanx.distributed.bootstrap.supervised import supervisor_channel\n"
                "    supervisor_channel()._sock.sendall(b'\\4\\0\\0\\0\\xc1\\xc1\\xc1\\xc1')\n"
                "    threading.Event().wait(60)  # until its supervisor has read that\n"
                "px.all_sum(1)"
            )
        said = str(caught.value)
        assert "said what its supervisor cannot understand (another phalanx?)" in said


WRONG_CHANNELS = ["", "x", "-1", "0", "999999", "0.5", "٣"]
ASK_EACH = f"""
import os, phalanx as px
for value in {WRONG_CHANNELS}:
    os.environ["PHALANX_CHANNEL"] = value
    try:
        px.init(timeout={LIMIT_S})
    except px.DistributedError as error:
        print(error)
os.environ["PHALANX_CHANNEL"] = "999999"
px.init(timeout={LIMIT_S})
"""


def test_a_wrong_channel_is_said_in_one_line():
    ((out, err, status),) = ranks(ASK_EACH, [{}])
    assert status == 1
    lines = [*out.splitlines(), last_lines(err)[-1]]
    assert len(lines) == len(WRONG_CHANNELS) + 1
    assert all("was this process started by a Phalanx supervisor?" in line for line in lines)
    assert not own_frames(err)  # no frame of ours, nor the error of the socket below it
    assert err.count("Traceback") == 1
