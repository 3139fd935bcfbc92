"""Worlds that Grid Engine starts, in a real cluster of three hosts: within a job, and by an array."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest
from support.hosts.grid_engine import GridEngine, why_no_grid_engine
from support.hosts.hosts_bed import check_nothing_left, own_bed
from support.hosts.job_world import WORLD, hosts_of, run_world, wait_empty
from support.promise import PATIENCE_S, ROOM_S
from support.tiers import deep

pytestmark = [pytest.mark.slow, deep]


@pytest.fixture(scope="module")
def bed():
    """Three hosts of this file's own: Grid Engine's daemons stay there."""
    if reason := why_no_grid_engine():
        pytest.skip(reason)
    with own_bed() as bed:
        yield bed


@pytest.fixture(scope="module")
def sge(bed):
    return GridEngine(bed)


@pytest.fixture
def jobs(bed, sge, monkeypatch):
    """The folder of keys; no job and no file is left in it when a test is over."""
    folder = bed.folder / "jobs"
    monkeypatch.setitem(sge.env, "PHALANX_JOB_DIR", str(folder))
    yield folder
    check_nothing_left(bed, bound_s=PATIENCE_S)
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
    check_nothing_left(bed, bound_s=PATIENCE_S)


@pytest.mark.parametrize(("n", "nodes"), [(1, 2), (2, 3)])
def test_jobs_are_submitted(sge, jobs, n, nodes):
    said, news = _start(sge, n=n, job={"nodes": nodes, "queue": "all.q", "time": "0:10:0"})
    hosts, sums = hosts_of(said)
    assert (len(hosts), sums) == (n * nodes, {f"{sum(range(n * nodes))})"})
    assert re.search(r"node0: starting job \d+ waits in Grid Engine's queue", news)


def test_a_job_that_is_refused(sge, jobs):
    said, _ = _start(sge, job={"nodes": 2, "queue": "nope"})
    assert said.startswith(
        "node0: Grid Engine refuses the job: Unable to run job: Job was rejected"
    )


def test_a_job_that_waits_too_long(sge, jobs):
    said, _ = _start(sge, job={"nodes": 1, "args": ["-h"]}, boot_timeout=ROOM_S)  # held
    assert (
        f"waits in Grid Engine's queue (hqw) after {ROOM_S:g} s, and was cancelled: wait longer"
        in said
    )
