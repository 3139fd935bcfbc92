"""Worlds that Slurm starts: the nodes of a job, by srun, in a real cluster of three nodes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
from support.hosts.hosts_bed import check_nothing_left, own_bed
from support.hosts.job_world import WORLD, hosts_of, run_world, wait_line
from support.hosts.slurm_cluster import SlurmCluster, why_no_slurm
from support.inside import root_pid_code
from support.promise import PATIENCE_S, ROOM_S
from support.runs.tiers import deep
from support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bed():
    """Three hosts of this file's own: Slurm's daemons stay there."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with own_bed() as bed:
        yield bed


@pytest.fixture(scope="module")
def slurm(bed):
    return SlurmCluster(bed)


def _check_nothing_left(bed):
    """How soon Slurm ends what has run in a job is Slurm's."""
    check_nothing_left(bed, bound_s=PATIENCE_S, but="slurmscriptd")


def _world(slurm, *job, **options):
    said, _ = run_world(slurm, *job, launcher="slurm", **options)
    return said


def test_the_nodes_and_tasks_of_a_job(bed, slurm):
    said = _world(slurm, "salloc", "-N3", "--ntasks-per-node=2")
    assert hosts_of(said) == (["a", "a", "b", "b", "c", "c"], {"15)"})
    _check_nothing_left(bed)


@deep
def test_another_number_of_ranks(bed, slurm):
    said = _world(slurm, "salloc", "--nodelist=b,c", n=2)
    assert hosts_of(said) == (["b", "b", "c", "c"], {"6)"})
    _check_nothing_left(bed)


@deep
def test_nodes_outside_of_a_job(bed, slurm):
    assert hosts_of(_world(slurm, hosts="b,c", n=1)) == (["b", "c"], {"1)"})
    _check_nothing_left(bed)
    assert slurm.run("squeue", "-h").stdout == ""


@deep
def test_nothing_is_left_of_a_killed_root(bed, slurm):
    killing = WORLD.replace(
        "code = ", f"import os, signal; os.kill({root_pid_code('workspace')}, 9); code = "
    )
    slurm.run(
        "salloc", "-N3", sys.executable, "-c", killing, json.dumps({"n": 1, "launcher": "slurm"})
    )
    _check_nothing_left(bed)


def test_a_node_that_is_none_of_the_job(bed, slurm):
    said = _world(slurm, "salloc", "-N1", "--nodelist=a", hosts="a,c", n=1)
    assert "c: Slurm does not start it: " in said
    _check_nothing_left(bed)


# -- jobs that are submitted ----------------------------------------------------------------------


@pytest.fixture
def jobs(bed, slurm):
    """No job is left when a test is over."""
    yield
    _check_nothing_left(bed)
    assert slurm.run("squeue", "-h", "-t", "all", "-o", "%T").stdout.split().count("PENDING") == 0


@deep
def test_a_job_is_submitted(bed, slurm, jobs):
    job = {"nodes": 3, "queue": "all", "time": "10"}
    said, news = run_world(slurm, launcher="slurm", n=2, job=job)
    assert hosts_of(said) == (["a", "a", "b", "b", "c", "c"], {"15)"})
    assert "c: up" in news


@deep
def test_a_job_that_is_refused(slurm, jobs):
    said = _world(slurm, job={"nodes": 2, "queue": "nope"})
    assert said.startswith(
        "node0: Slurm refuses the job: invalid partition specified: nope (set what it requires with --queue"
    )


@deep
def test_a_job_that_waits_too_long(slurm, jobs):
    said = _world(slurm, job={"nodes": 2, "args": ["--hold"]}, boot_timeout=ROOM_S)
    waits = (
        rf"job \d+ waits in Slurm's queue \(PENDING: JobHeldUser\) after {ROOM_S:g} s, and was canc"
    )
    assert re.match(f"node0: {waits}elled: wait longer.*\nnode1: the same job$", said)


@deep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_start_that_is_stopped_in_the_queue(bed, slurm, jobs, number):
    options = json.dumps({"launcher": "slurm", "job": {"nodes": 1, "args": ["--hold"]}})
    command = [sys.executable, "-c", WORLD, options]
    starting = bed.popen(0, command, env=slurm.env, stderr=subprocess.PIPE, text=True)
    with starting:
        wait_line(starting.stderr, "JobHeldUser")
        starting.send_signal(number)
        starting.communicate()


RESTARTED = """
import json, sys
from phalanx.errors import DistributedError
from phalanx.workspace import Workspace
options = {"launcher": "slurm", "job": {"nodes": 2}, "linger": 0}
with Workspace.start(**options) as workspace:
    try:
        workspace.run("import os, time\\nif rank == 1: os.kill(os.getppid(), 9); time.sleep(60)\\npx.all_sum(1)")
    except DistributedError as error:
        print(error)
    workspace.restart()
    print([result.value for result in workspace.run("int(px.all_sum(1))")])
"""


@deep
def test_a_host_that_is_lost_gets_a_job_of_its_own(slurm, jobs):
    done = slurm.run(sys.executable, "-c", RESTARTED)
    assert "rank 1 on b: lost its host: " in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "['2', '2']", done.stdout + done.stderr


@deep
def test_the_end_of_a_job_is_the_reason_of_a_loss(slurm, jobs):
    code = RESTARTED.replace("os.kill(os.getppid(), 9)", "os.system('scancel $SLURM_JOB_ID')")
    code = code.replace('px.all_sum(1)")\n    except', 'while True: px.all_sum(1)")\n    except')
    assert "scancel" in code
    assert "while" in code
    done = slurm.run(sys.executable, "-c", code.partition("    workspace.restart")[0])
    assert re.search(r": lost its host: Slurm's job \d+ has ended", done.stdout), done


@deep
def test_a_killed_root_leaves_no_job(slurm, jobs):
    killing = WORLD.replace(
        "code = ", f"import os, signal; os.kill({root_pid_code('workspace')}, 9); code = "
    )
    options = json.dumps({"launcher": "slurm", "job": {"nodes": 1}})
    slurm.run(sys.executable, "-c", killing, options)
    wait_until(lambda: not slurm.run("squeue", "-h").stdout, "the job is gone", poll_s=0.1)


def test_a_script_in_a_job_that_is_submitted(slurm, jobs, tmp_path):
    launch = [sys.executable, "-m", "phalanx", "launch", "--launcher", "slurm", "--nodes", "2"]
    said = slurm.run(*launch, "-n", "2", "--label", "host", "--", "hostname")
    lines = [f"[{host} {rank}] {host}" for rank, host in enumerate("aabb")]
    assert sorted(said.stdout.splitlines()) == lines, said.stderr
    assert said.returncode == 0


@deep
def test_a_job_of_several_hosts_is_recognised(bed, slurm, tmp_path):
    launch = [sys.executable, "-m", "phalanx", "launch", "--label", "none"]
    said = slurm.run("salloc", "-N2", *launch, "--", "hostname")
    assert sorted(said.stdout.split()) == ["a", "b"], said.stderr
    assert "ranks start on its hosts, a, b (--hosts localhost: only here)" in said.stderr
    said = slurm.run("salloc", "-N2", *launch, "-n", "1", "--", "hostname")
    assert said.stdout.split() == ["a"]
    assert "-n 1 alone starts ranks on this one: --launcher slurm starts 1 on each" in said.stderr


@deep
def test_a_supervisor_that_cannot_start_in_the_job(slurm, jobs):
    said = _world(slurm, python="/no/python3", job={"nodes": 1})
    assert "there is no /no/python3 there: say with --python" in said


@deep
def test_a_script_on_the_nodes_of_a_job(bed, slurm, tmp_path):
    script = tmp_path / "sum.py"
    script.write_text(
        "import socket, phalanx as px\n"
        "world = px.init(strict=True)\n"
        "print(socket.gethostname(), px.all_sum(world.rank()))\n"
    )
    launch = [sys.executable, "-m", "phalanx", "launch", "--launcher", "slurm"]
    said = slurm.run("salloc", "-N3", "--ntasks-per-node=2", *launch, script)
    lines = [f"[{rank}] {host} 15" for rank, host in enumerate("aabbcc")]
    assert sorted(said.stdout.splitlines()) == lines, said.stderr
    assert said.returncode == 0
    _check_nothing_left(bed)


@deep
def test_the_doctor_asks_the_nodes_of_the_job_it_is_in(bed, slurm):
    doctor = [sys.executable, "-m", "phalanx", "doctor"]
    said = slurm.run("salloc", "-Q", "-N3", "--ntasks-per-node=2", *doctor)
    assert said.returncode == 0, said
    for line in (
        "ok    launcher   /usr/bin/srun is Slurm's (slurm",
        "ok    scheduler  Slurm answers sinfo",
        "its hosts and slots: a 2, b 2, c 2",
        "ok    slurm      Slurm starts processes on b, c",
        "each host reaches each other (6 ways)",
        "for 6 ranks",
    ):
        assert line in said.stdout
    said = slurm.run(*doctor, "--launcher", "slurm", "--hosts", "b,nope", "--timeout", "10")
    assert said.returncode == 1
    assert "fail  slurm      nope: Slurm does not start a process there: " in said.stdout
    assert "Slurm starts processes on b\n" in said.stdout
