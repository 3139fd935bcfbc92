"""Worlds that Grid Engine starts, in a real cluster of three hosts: within a job, and by an array."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest
from grid_engine import GridEngine, why_no_grid_engine
from job_world import WORLD, hosts_of, run_world, wait_empty

BOUND_S = 6.0  # its daemons look every second
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sge(bed):
    if reason := why_no_grid_engine():
        pytest.skip(reason)
    return GridEngine(bed)


@pytest.fixture
def jobs(bed, sge, monkeypatch):
    """The folder of keys; no job and no file is left in it when a test is over."""
    folder = bed.folder / "jobs"
    monkeypatch.setitem(sge.env, "PHALANX_JOB_DIR", str(folder))
    yield folder
    assert bed.left(BOUND_S) == []
    assert sge.run("qstat", "-s", "p").stdout == ""
    wait_empty(folder)


def _start(sge, **options):
    return run_world(sge, launcher="sge", **options)


def test_the_hosts_of_a_job(bed, sge, tmp_path):
    script = tmp_path / "job.sh"
    words = [sys.executable, "-c", WORLD, json.dumps({"launcher": "sge", "n": 2})]
    variables = f"LD_LIBRARY_PATH={sge.env['LD_LIBRARY_PATH']}"  # its programs are unpacked only
    script.write_text(f"exec {shlex.join(words)} 2>{tmp_path}/errors\n")
    asked = [
        "-sync",
        "y",
        "-S",
        "/bin/sh",
        "-pe",
        "mpi",
        "3",
        "-v",
        variables,
        "-o",
        tmp_path / "out",
    ]
    done = sge.run("qsub", *asked, script)
    said = (tmp_path / "out").read_text()
    assert said, f"{done}{(tmp_path / 'errors').read_text()}"
    hosts, sums = hosts_of(json.loads(said))
    assert (sorted(hosts), sums) == (["a", "a", "b", "b", "c", "c"], {"15)"})
    assert bed.left(BOUND_S) == []


def test_jobs_are_submitted(sge, jobs):
    said, news = _start(sge, n=2, job={"nodes": 3, "queue": "all.q", "time": "0:10:0"})
    hosts, sums = hosts_of(said)
    assert (len(hosts), sums) == (6, {"15)"})
    assert re.search(r"node0: starting job \d+ waits in Grid Engine's queue", news)


def test_a_job_that_is_refused(sge, jobs):
    said, _ = _start(sge, job={"nodes": 2, "queue": "nope"})
    assert said.startswith(
        "node0: Grid Engine refuses the job: Unable to run job: Job was rejected"
    )


def test_a_job_that_waits_too_long(sge, jobs):
    said, _ = _start(sge, job={"nodes": 1, "args": ["-h"]}, boot_timeout=2.0)  # held
    assert "waits in Grid Engine's queue (hqw) after 2 s, and was cancelled: wait longer" in said
