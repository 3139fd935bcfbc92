"""`phalanx launch` over real ssh: hosts with a network and a name each."""

from __future__ import annotations

import signal
import subprocess

import pytest
from support.programs.launching import LAUNCH, PATIENT
from support.promise import BOUND_S
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
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=deep), signal.SIGKILL])
def test_nothing_is_left_of_a_launcher_that_is_ended(bed, script, tmp_path, number):
    command = [*PATIENT, "--hosts", "b,c", script(WAIT)]
    popen = bed.popen(0, command, cwd=tmp_path, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    with popen:
        assert {popen.stdout.readline() for _ in range(2)} == {b"[0] up\n", b"[1] up\n"}
        popen.send_signal(number)
        popen.stdout.read()
    assert bed.left(BOUND_S + 1) == []


@deep
def test_mpirun_gets_the_hosts(bed, mpi, tmp_path):
    show = "echo $(hostname) $OMPI_COMM_WORLD_RANK$PMI_RANK $A"
    words = ["--backend", "mpi", "--hosts", "b,c", "-n", "2", "--env", "A=set", "--", "sh", "-c"]
    said = bed.run(
        0, [*LAUNCH, *words, show], cwd=tmp_path, check=False, env=mpi.environment(), input=""
    )
    assert said.returncode == 0, said.stderr
    lines = [line.partition("] ")[2] or line for line in said.stdout.splitlines()]
    assert sorted(lines) == ["b 0 set", "b 1 set", "c 2 set", "c 3 set"]
