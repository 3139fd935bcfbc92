"""`phalanx launch` over real ssh: hosts with a network and a name each."""

from __future__ import annotations

import signal
import subprocess

import pytest
from support.programs.launching import LAUNCH, PATIENT
from support.promise import BOUND_S, PATIENCE_S
from support.runs.tiers import deep

pytestmark = pytest.mark.slow

SUM = """
import socket, sys, phalanx as px
world = px.init(strict=True)
print(socket.gethostname(), world.rank(), px.all_sum(world.rank() + 1), sys.stdin.read().strip())
"""
WAIT = """
import time, phalanx as px
world = px.init(strict=True)
px.all_sum(1)
print("up", flush=True)
time.sleep(600)
"""


def launch(bed, *words, stdin="", cwd):
    return bed.run(0, [*PATIENT, *words], input=stdin, cwd=cwd, check=False)


@pytest.mark.promise
def test_ranks_of_three_hosts_meet(bed, script, tmp_path):
    said = launch(bed, "--hosts", "a,b,c", "-n", "2", script(SUM), stdin="typed\n", cwd=tmp_path)
    assert sorted(said.stdout.splitlines()) == [
        f"[{rank}] {host} {rank} 21 typed" for rank, host in enumerate("aabbcc")
    ], said.stderr
    assert said.returncode == 0
    assert bed.left(BOUND_S) == []


@pytest.mark.promise
def test_the_status_of_a_far_rank(bed, script, tmp_path):
    fail = script(
        "import os, sys, time\nif os.environ['PHALANX_RANK'] == '2': sys.exit(7)\ntime.sleep(600)"
    )
    said = launch(bed, "--hosts", "a,b,c", fail, cwd=tmp_path)
    assert said.returncode == 7
    assert "rank 2 exited with status 7; the others were ended" in said.stderr
    assert bed.left(BOUND_S) == []


@pytest.mark.promise
def test_a_host_that_is_not_there(bed, script, tmp_path):
    said = launch(bed, "--hosts", "a,b,nowhere", script(SUM), cwd=tmp_path)
    assert said.returncode == 1
    assert said.stdout == ""
    failed = [line for line in said.stderr.splitlines() if "could not be started" in line]
    (line,) = failed  # a busy machine may say besides that a host is slow
    assert line.startswith("phalanx launch: the ranks could not be started: nowhere: ")
    assert bed.left(BOUND_S) == []


@pytest.mark.promise
@deep  # of hosts that are reached without ssh in test_launch_hosts
def test_a_folder_that_is_not_there(bed, script, tmp_path):
    folder = tmp_path / "gone"
    said = launch(bed, "--hosts", "b,c", "--cwd", folder, script(SUM), cwd=tmp_path)
    for host in "bc":
        assert f"could not be started: {host}: it has no folder {folder}: " in said.stderr
    assert bed.left(BOUND_S) == []


@pytest.mark.promise
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=deep), signal.SIGKILL])
def test_nothing_is_left_of_a_launcher_that_is_ended(bed, script, tmp_path, number):
    command = [*PATIENT, "--hosts", "b,c", script(WAIT)]
    popen = bed.popen(0, command, cwd=tmp_path, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    with popen:
        assert {popen.stdout.readline() for _ in range(2)} == {b"[0] up\n", b"[1] up\n"}
        popen.send_signal(number)
        popen.stdout.read()
    assert bed.left(BOUND_S + 1) == []


@pytest.mark.promise
@deep
def test_a_host_that_is_cut_off_is_named(bed, script, tmp_path):
    command = [*PATIENT, "--hosts", "a,b,c", "--silence", "1", script(WAIT)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with bed.popen(0, command, cwd=tmp_path, **pipes) as popen:
        assert {popen.stdout.readline() for _ in range(3)} == {
            b"[0] up\n",
            b"[1] up\n",
            b"[2] up\n",
        }
        bed.cut(2)
        try:
            _, said = popen.communicate(timeout=PATIENCE_S)
        finally:
            bed.mend(2)
    assert popen.returncode == 137
    assert b"rank 2 lost its host" in said
    assert bed.left(BOUND_S + 3) == []


@deep
def test_mpirun_gets_the_hosts(bed, mpi, tmp_path):
    show = "echo $(hostname) $OMPI_COMM_WORLD_RANK$PMI_RANK $A"
    words = (
        "--backend",
        "mpi",
        "--hosts",
        "b,c",
        "-n",
        "2",
        "--env",
        "A=set",
        "--",
        "sh",
        "-c",
        show,
    )
    said = bed.run(0, [*LAUNCH, *words], cwd=tmp_path, check=False, env=mpi.environment(), input="")
    assert said.returncode == 0, said.stderr
    lines = [line.partition("] ")[2] or line for line in said.stdout.splitlines()]
    assert sorted(lines) == ["b 0 set", "b 1 set", "c 2 set", "c 3 set"]
