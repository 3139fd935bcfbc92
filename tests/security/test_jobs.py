"""Several jobs at once: each adds up its own arrays, or says why not; a scanner changes nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest
from launching import LAUNCH
from security.strangers import scanner
from support.promise import PATIENCE_S, within
from support.tiers import deep, deep_but

# What each rank of a job runs: its job's number is in every sum, so that a stranger's would show.
# A folder and a number may follow: so many ranks meet there, so that their time limits begin together.
JOB = textwrap.dedent(
    """
    import os, pathlib, sys, time, numpy as np, phalanx as px
    job, n_operations = int(sys.argv[1]), int(sys.argv[2])
    for folder, n in [sys.argv[4:]] if sys.argv[4:] else []:
        (pathlib.Path(folder) / str(os.getpid())).touch()
        while len(os.listdir(folder)) < int(n):
            time.sleep(0.01)
    world = px.init(timeout=float(sys.argv[3]))
    rank, size = world.rank(), world.size()
    for i in range(n_operations):
        x = np.full(1 + 37 * i % 5000, 1000.0 * job + rank + i)
        assert (px.all_sum(x) == sum(1000.0 * job + r + i for r in range(size))).all(), i
    assert [int(j) for j in px.all_gather(np.array([job]))] == [job] * size
    sys.stdout.write(f"job {job} rank {rank} of {size}\\n")  # whole, also where unbuffered
    """
)

# A launcher as mlx.launch is one: it sets the variables, and is the parent of all ranks.
RING = textwrap.dedent(
    """
    import os, subprocess, sys
    hostfile, size, *command = sys.argv[1:]
    ranks = [
        subprocess.Popen(command, env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": hostfile})
        for rank in range(int(size))
    ]
    sys.exit(max(abs(rank.wait()) for rank in ranks))
    """
)


def start(command, **env):
    return subprocess.Popen(
        command, env={**os.environ, **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ends(popens):
    return [(*popen.communicate(timeout=100), popen.returncode) for popen in popens]


def hostfile(path, n):
    """Write a ring of ports that nobody uses: all held at once, so that they differ."""
    socks = [socket.socket() for _ in range(n)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    path.write_text(json.dumps([[f"127.0.0.1:{sock.getsockname()[1]}"] for sock in socks]))
    for sock in socks:
        sock.close()
    return path


def ring(path, size, job, *words, n=200, timeout=60, **env):
    rank = [sys.executable, "-c", JOB, str(job), str(n), str(timeout), *words]
    return start([sys.executable, "-c", RING, str(path), str(size), *rank], **env)


@pytest.mark.slow
@pytest.mark.parametrize("transport", deep_but(["tcp"], ["any", "tcp"]))
def test_three_launches_at_once_while_ports_are_scanned(tmp_path, transport):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with scanner() as found:
        jobs = [
            start([*LAUNCH, "-n", str(n), "--transport", transport, "--label", "none",
                   str(script), str(job), "200", "60"])
            for job, n in enumerate([2, 3, 2])
        ]  # fmt: skip
        said = ends(jobs)
    for job, (n, (out, err, code)) in enumerate(zip([2, 3, 2], said, strict=True)):
        assert (code, err) == (0, "")
        assert sorted(out.splitlines()) == [f"job {job} rank {r} of {n}" for r in range(n)]
    assert found[0] > 0  # it has been at our ports as well


@deep
@pytest.mark.slow
def test_three_rings_at_once_while_ports_are_scanned(tmp_path):
    with scanner():
        jobs = [ring(hostfile(tmp_path / f"{job}.json", 2), 2, job) for job in range(3)]
        said = ends(jobs)
    for job, (out, err, code) in enumerate(said):
        assert (code, err) == (0, "")
        assert sorted(out.splitlines()) == [f"job {job} rank {r} of 2" for r in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("with_key", "n_attempts"),
    [(False, 1), pytest.param(False, 3, marks=deep), pytest.param(True, 3, marks=deep)],
)
def test_two_rings_on_the_same_ports_never_add_up_each_other_s_arrays(
    tmp_path, with_key, n_attempts
):
    path = hostfile(tmp_path / "hosts.json", 2)
    env = {}
    if with_key:
        key = tmp_path / "key"
        key.write_text("correct horse battery staple")
        key.chmod(0o600)
        env["PHALANX_KEY_FILE"] = str(key)
    for attempt in range(n_attempts):
        meet_in = tmp_path / f"attempt {attempt}"
        meet_in.mkdir()
        jobs = [ring(path, 2, job, str(meet_in), "4", timeout=4, **env) for job in (1, 2)]
        for job, (out, err, code) in zip((1, 2), ends(jobs), strict=True):
            assert "AssertionError" not in err, err
            lines = sorted(out.splitlines())
            seen = f"attempt {attempt}, job {job}: {code}\n{out}{err}"
            if code == 0:
                assert lines == [f"job {job} rank {r} of 2" for r in range(2)], seen
            else:
                assert "does another job use the same ports?" in err or "two jobs" in err, seen
                assert lines == [], seen


@pytest.mark.slow
def test_a_ring_with_a_key_file_meets_and_another_key_is_named(tmp_path):
    path = hostfile(tmp_path / "hosts.json", 2)
    keys = []
    for name in ("one", "two"):
        key = tmp_path / name
        key.write_text(f"correct horse battery staple {name}")
        key.chmod(0o600)
        keys.append(str(key))
    out, err, code = ends([ring(path, 2, 7, PHALANX_KEY_FILE=keys[0])])[0]
    assert (sorted(out.splitlines()), err, code) == (
        ["job 7 rank 0 of 2", "job 7 rank 1 of 2"], "", 0,
    )  # fmt: skip
    meet_in = tmp_path / "here"
    meet_in.mkdir()
    command = [sys.executable, "-c", JOB, "7", "1", "2", str(meet_in), "2"]
    with within(2.0 + PATIENCE_S):
        said = ends([
            start(command, MLX_RANK=str(r), MLX_HOSTFILE=str(path), PHALANX_KEY_FILE=keys[r])
            for r in range(2)
        ])  # fmt: skip
    assert [code for *_, code in said] == [1, 1]
    zero, one = (err.splitlines()[-1] for _, err, _ in said)
    assert "CollectiveTimeout: rank 1 did not come within 2 s (a claim to be rank 1 with an" in zero
    assert "is PHALANX_KEY_FILE the same for all ranks?" in zero
    assert "CollectiveTimeout: rank 0 was not met" in one
    for _, err, _ in said:
        assert "battery" not in err
