"""Worlds by PBS, LSF and HTCondor, whose commands are stood in for: they are in no Debian."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys

import pytest
from support.hosts.fake_scheduler import jobs_of, make_commands
from support.hosts.hosts_bed import check_nothing_left
from support.hosts.job_world import WORLD, hosts_of, wait_empty
from support.promise import PATIENCE_S
from support.waiting import wait_until

from phalanx.hosts import add_host_arguments, job_options

NAMES = {"pbs": "PBS", "lsf": "LSF", "htcondor": "HTCondor"}
pytestmark = pytest.mark.slow


class Cluster:
    """The commands and what they know of jobs, on the hosts of a bed."""

    def __init__(self, bed, folder):
        self.bed, self.folder = bed, folder
        self.keys = folder / "keys"
        programs = make_commands(folder / "fake")
        self.env = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PHALANX_JOB_DIR": str(self.keys),
        }

    def start(self, **options):
        words = [sys.executable, "-c", WORLD, json.dumps(options)]
        done = self.bed.run(0, words, env=self.env, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout), done.stderr

    def jobs(self):
        return jobs_of(self.folder / "fake")


@pytest.fixture
def cluster(bed, tmp_path):
    cluster = Cluster(bed, tmp_path)
    yield cluster
    check_nothing_left(bed, bound_s=PATIENCE_S)  # how soon a job is over is the scheduler's
    assert cluster.jobs() == []
    wait_empty(cluster.keys)


@pytest.mark.parametrize(
    ("launcher", "n", "nodes"), [("pbs", 2, 2), ("lsf", 1, 3), ("htcondor", 2, 2)]
)
def test_a_job_is_submitted(cluster, launcher, n, nodes):
    said, news = cluster.start(launcher=launcher, n=n, job={"nodes": nodes})
    assert hosts_of(said)[1] == {f"{sum(range(n * nodes))})"}
    assert sorted(hosts_of(said)[0]) == sorted("abc"[:nodes] * n)
    name = NAMES[launcher]
    assert f"starting job 11 waits in {name}'s queue" in news


@pytest.mark.parametrize("launcher", ["pbs", "lsf"])
def test_the_hosts_of_a_job(cluster, launcher):
    out = cluster.folder / "out"
    words = [sys.executable, "-c", WORLD, json.dumps({"launcher": launcher})]
    head = {"pbs": "#PBS -l nodes=3:ppn=2", "lsf": "#BSUB -n 6 -R span[ptile=2]"}[launcher]
    keys = f"export PHALANX_JOB_DIR={cluster.keys}"
    script = cluster.folder / "script"
    errors = cluster.folder / "errors"
    script.write_text(
        f"{head}\n{keys}\n{shlex.join(words)} >{out}.part 2>{errors}\nmv {out}.part {out}\n"
    )
    with script.open("rb") as stdin:
        submit = ["qsub", script] if launcher == "pbs" else ["bsub"]
        cluster.bed.run(0, submit, env=cluster.env, stdin=stdin)
    wait_until(out.exists, "the job is over", timeout_s=60.0)
    said = json.loads(out.read_text() or f'"{errors.read_text()}"')
    assert hosts_of(said) == (["a", "a", "b", "b", "c", "c"], {"15)"})


def test_a_supervisor_that_does_not_start_within_a_job(cluster):
    """What is said there comes by way of the keys' folder: pbsdsh hands nothing back."""
    nodes = cluster.folder / "nodes"
    nodes.write_text("b\n")
    cluster.env |= {"PBS_NODEFILE": str(nodes), "PBS_JOBID": "7.server"}
    said, _ = cluster.start(launcher="pbs", cwd="/no/such/folder")
    assert said == (
        "b: it has no folder /no/such/folder: make it there, or name another with --cwd"
    )


def test_what_a_scheduler_refuses(cluster):
    said, _ = cluster.start(launcher="lsf", job={"nodes": 2, "queue": "nope"})
    assert said.startswith(
        "node0: LSF refuses the job: nope: No such queue. Job not submitted. (set what it requires with --queue, --account"
    )
    assert said.endswith("\nnode1: the same job")


def test_a_job_that_is_held_fails_at_once(cluster):
    parser = argparse.ArgumentParser()
    add_host_arguments(parser.add_argument)
    words = ["--launcher", "htcondor", "--nodes", "1", "--launcher-arg", "hold = True"]
    args = job_options(parser.parse_args(words)).args
    said, _ = cluster.start(launcher="htcondor", job={"nodes": 1, "args": args})
    assert said == (
        "node0: HTCondor's job 11 is held and will not start: submitted on hold at user's request"
    )


def test_a_scheduler_that_is_not_there(cluster, monkeypatch):
    cluster.env["PATH"] = "/usr/bin:/bin"
    said, _ = cluster.start(launcher="pbs", job={"nodes": 1})
    assert said.startswith("node0: there is no qsub on this machine: start it on a login node")
