"""A machine that refuses descriptors, memory or threads to a start: a line, and nothing left."""

from __future__ import annotations

import resource

import pytest
from support.programs.launching import LAUNCH
from support.programs.leftovers import Family
from support.promise import BOUND_S, within
from support.runs.tiers import deep, deep_but

from phalanx.supervisor.processes import system

pytestmark = pytest.mark.slow

CLIENT = """
import resource, sys
from phalanx.workspace import Workspace
for name, soft, hard in zip(*[iter(sys.argv[1:])] * 3):
    resource.setrlimit(getattr(resource, name), (int(soft), int(hard)))
try:
    with Workspace.start(n=2) as ws:
        print("ran", [r.value for r in ws.run("px.all_sum(1)")])
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0], len(str(error).splitlines()))
"""


def said_by(family, status):
    """Return what a program says until it has ended, and hold what it started to its end."""
    said = family.popen.communicate(timeout=60)[0].decode()
    assert family.popen.returncode == status
    with within():
        assert family.left(BOUND_S) == []
    return said


def said_with(folder, *limits):
    """Start a workspace under limits: for each its name, the soft and the hard one."""
    with Family(folder, *map(str, limits), python=CLIENT) as family:
        return said_by(family, 0)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("name", "limit", "words"),
    [
        ("RLIMIT_NOFILE", 8, "cannot be started from here: Too many open files"),
        pytest.param("RLIMIT_NOFILE", 14, "open files", marks=deep),
        ("RLIMIT_NOFILE", 30, "2 ranks need 148 open files in a process, and only 30 are allowed"),
        # As where there is no memfd: no shared memory of any size.
        ("RLIMIT_FSIZE", 1 << 16, "cannot size a shared memory file"),
    ],
)
def test_what_a_start_is_refused_is_one_line(tmp_path, name, limit, words):
    said = said_with(tmp_path, name, limit, limit)
    assert said.startswith("DistributedError")
    assert words in said
    assert said.endswith(" 1\n")


@pytest.mark.promise
@pytest.mark.parametrize("mib", deep_but([600], [600, 800]))
def test_address_space_that_a_rank_is_refused_is_named(tmp_path, mib):
    said = said_with(tmp_path, "RLIMIT_AS", mib << 20, mib << 20)
    assert "cannot map the 528 MiB of address space that the ranks of a host share" in said
    assert f"a process may have {mib} MiB here; raise that limit (ulimit -v)" in said
    assert said.endswith(" 1\n")


@pytest.mark.promise
def test_two_ranks_run_in_a_gib_of_address_space_each_and_raise_a_soft_limit(tmp_path):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ("RLIMIT_AS", 1 << 30, 1 << 30, "RLIMIT_NOFILE", 30, hard)
    assert said_with(tmp_path, *limits) == "ran ['2', '2']\n"


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(100, 4096, [648]), (300, 500, [500]), (1024, 4096, []), (100, resource.RLIM_INFINITY, [648])],
)
def test_links_to_other_hosts_get_what_the_hard_limit_leaves(monkeypatch, soft, hard, raised):
    new = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: new.append(both))
    system.allow_descriptors(2, 500)
    assert new == [(limit, hard) for limit in raised]


@pytest.mark.promise
@pytest.mark.parametrize("limit", deep_but([14], [14, 20, 30]))
def test_what_a_launch_is_refused_is_one_line(tmp_path, limit):
    words = ["-c", f'ulimit -n {limit}; exec "$@" 2>&1', "sh", *LAUNCH, "-n", "2", "--", "true"]
    with Family(tmp_path, "sh", *words) as family:
        said = said_by(family, 1)
    assert said.startswith("phalanx launch: ")
    assert said.count("\n") == 1
    assert "open files" in said
