"""`phalanx launch --backend mpi`: labels, statuses, input, and that nothing outlives it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from support.programs.launching import PATIENT, launch
from support.programs.processes import wait_gone
from support.promise import PATIENCE_S
from support.ranks.mpis import CELLS, marked
from support.runs.sections import SAY, by_section, on_all
from support.runs.tiers import deep

pytestmark = pytest.mark.slow


def run(mpi, *words, stdin=b"", **env):
    with marked() as mark:
        return launch(
            "--backend", "mpi", *words, stdin=stdin, env={**mpi.environment(), **mark, **env}
        )


@pytest.fixture
def held(mpi, tmp_path):
    """A launcher whose ranks wait in recv for ever, and all its processes."""
    with marked() as mark:
        popen = subprocess.Popen(
            [*PATIENT, "--backend", "mpi", "-n", "2", CELLS, f"hold:{tmp_path}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**mpi.environment(), **mark},
        )  # fmt: skip
        assert popen.stdout.readline() == b"[0] holding\n"  # all have written who they are
        family = psutil.Process(popen.pid).children(recursive=True)
        assert {int(path.read_text()) for path in tmp_path.iterdir()} <= {p.pid for p in family}
        yield popen, family
        popen.kill()
        popen.communicate()


EVERYTHING = """
import hashlib, phalanx as px
world = px.init(strict=True)
say("sum", px.all_sum(world.rank() + 1))
say("objects", px.all_gather_object({"rank": world.rank()}))
say("long", "é" * 40_000)
say("input", hashlib.sha256(sys.stdin.buffer.read()).hexdigest())
print("apart", file=sys.stderr)
"""
RANKS = "012"
INPUT = os.urandom(3_000_000)


def test_what_every_rank_says_comes_whole(mpi):
    said = run(mpi, "-n", "3", "--", sys.executable, "-c", SAY + EVERYTHING, stdin=INPUT)
    objects = str([{"rank": rank} for rank in range(3)])
    assert by_section(said.stdout.decode()) == {
        "sum": on_all(RANKS, "6"),
        "objects": on_all(RANKS, objects),  # sealed with a key of the launcher's
        "long": on_all(RANKS, "é" * 40_000),
        "input": on_all(RANKS, hashlib.sha256(INPUT).hexdigest()),
    }
    assert sorted(said.stderr.decode().splitlines()) == [f"[{rank}] apart" for rank in RANKS]
    assert said.returncode == 0


def test_arguments_reach_mpirun_and_a_rank_that_does_not_read_holds_up_nobody(mpi):
    option = {"openmpi": "--report-bindings --bind-to none", "mpich": "-genv HELLO there"}[mpi.name]
    command = "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 ] || echo $(wc -c) $HELLO."
    words = ["-n", "2", "--mpi-arg", option, "--", "sh", "-c", command]
    said = run(mpi, *words, stdin=INPUT)
    assert said.returncode == 0, said.stderr
    told = {"openmpi": b".", "mpich": b"there."}[mpi.name]
    assert said.stdout == b"[1] 3000000 " + told + b"\n"
    # Open MPI says where it has bound ranks, if it was asked.
    assert (mpi.name == "mpich") or b"not bound" in said.stderr.lower()


def test_the_exit_status_is_mpirun_s(mpi):
    said = run(mpi, "-n", "2", CELLS, "exit_status:3")
    assert said.returncode == 3
    assert b"phalanx launch: mpirun exited with status 3" in said.stderr.splitlines()


LIMITED = ["sh", "-c", 'ulimit $0; exec "$@"']


def test_a_soft_limit_of_open_files_is_raised(mpi):
    words = [*LIMITED, "-Sn 72", *PATIENT]
    with marked() as mark:
        said = launch(
            "--backend", "mpi", "-n", "2", "--", "sh", "-c", "ulimit -n",
            env={**mpi.environment(), **mark}, launcher=words,
        )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, b"")
    assert sorted(said.stdout.splitlines()) == [b"[0] 148", b"[1] 148"]


def test_a_hard_limit_of_open_files_is_told_with_what_is_needed(mpi):
    words = [*LIMITED, "-n 72", *PATIENT]
    said = launch("--backend", "mpi", "-n", "2", "true", env=mpi.environment(), launcher=words)
    assert said.returncode == 1
    assert said.stderr == (
        b"phalanx launch: 2 ranks need 148 open files in a process, and only 72 are allowed here; "
        b"raise the limit (ulimit -n 148), or start fewer ranks\n"
    )


@deep  # what is asked for is only that it is no success
def test_a_killed_rank_is_no_success(mpi):
    assert run(mpi, "-n", "2", CELLS, "killed").returncode != 0


def test_ctrl_c_ends_all(held):
    popen, family = held
    popen.send_signal(signal.SIGINT)
    assert not wait_gone(family, PATIENCE_S)
    popen.communicate(timeout=PATIENCE_S)
    assert popen.returncode == 130


def test_a_killed_launcher_takes_all_along(held):
    popen, family = held
    popen.kill()
    assert not wait_gone(family, PATIENCE_S)


def test_a_killed_mpirun_takes_all_along(held):
    popen, family = held
    psutil.Process(popen.pid).children()[0].kill()
    assert not wait_gone(family, PATIENCE_S)
    _, said = popen.communicate(timeout=PATIENCE_S)
    assert popen.returncode == 137
    assert b"phalanx launch: mpirun killed by signal 9 (SIGKILL)" in said
