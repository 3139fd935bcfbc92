"""Worlds whose hosts' supervisors are started by mpirun, over real ssh: Open MPI's and MPICH's."""

from __future__ import annotations

import json
import sys

import pytest
from support.hosts.hosts_bed import check_nothing_left
from support.hosts.job_world import WORLD, hosts_of
from support.promise import PATIENCE_S
from support.runs.tiers import deep, deep_but

pytestmark = pytest.mark.slow
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _start(bed, mpi, code=WORLD, **options):
    env = {**mpi.environment(), **AS_ROOT, "PRTE_ALLOW_RUN_AS_ROOT": "1"}
    options = {"launcher": "mpi", **options}
    done = bed.run(0, [sys.executable, "-c", code, json.dumps(options)], env=env, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def there(mpi):
    """What tells an mpirun that is nowhere on a far PATH where it is there."""
    return {"job": {"args": ["--prefix", str(mpi.bin.parent)] if mpi.name == "openmpi" else []}}


@pytest.mark.parametrize("mpi", deep_but(["openmpi"], ["openmpi", "mpich"]), indirect=True)
def test_hosts_by_mpirun(bed, mpi, there):
    """Its own world, which has one process, is none of the ranks'."""
    check = "assert not [name for name in os.environ if name.startswith(('OMPI_COMM', 'PMI'))]"
    code = WORLD.replace("import socket;", f"import os, socket; {check};")
    assert check in code
    said = _start(bed, mpi, code, hosts="a,b,c", n=2, **there)
    assert hosts_of(said) == (["a", "a", "b", "b", "c", "c"], {"15)"})
    check_nothing_left(bed, bound_s=PATIENCE_S)


@deep
def test_a_host_that_mpirun_does_not_reach(bed, mpi, there):
    said = _start(bed, mpi, hosts="a,nowhere", **there)
    assert said.startswith("nowhere: MPI does not start it: ")
    assert "nowhere" in said.partition(": MPI")[2], said
    check_nothing_left(bed, bound_s=PATIENCE_S)


def test_no_mpirun(bed, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = bed.run(
        0, [sys.executable, "-c", WORLD, json.dumps({"launcher": "mpi", "hosts": "b"})], check=False
    )
    assert "b: there is no mpirun on this machine" in done.stdout
