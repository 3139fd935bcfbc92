"""Ranks of a real workspace that run out of something: descriptors, memory, sockets to listen on."""

from __future__ import annotations

import time

import pytest
from faults import phases
from support.promise import HOLDS, check
from support.runs.tiers import deep_but

from phalanx.errors import CellError
from phalanx.workspace import Workspace

LIMIT = """
import os, resource
def limited(what, value, body):
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value, hard))
    try:
        return body()
    finally:
        resource.setrlimit(what, (soft, hard))
"""


@pytest.fixture(scope="module", params=deep_but(["any"], ["any", "tcp"]))
def ws(request):
    with Workspace.start(n=3, transport=request.param) as workspace:
        workspace.run(LIMIT)
        yield workspace


def values(ws, code):
    return [result.value for result in ws.run(code)]


def failures(ws, code):
    with pytest.raises(CellError) as caught:
        ws.run(code)
    return caught.value.failures


def check_refused_split(ename, evalue):
    assert ename == "DistributedError"
    assert "rank 1" in evalue
    assert "Too many open files" in evalue
    assert "\n" not in evalue


@pytest.mark.slow
def test_no_descriptors_left_for_the_sockets_of_a_split(fault_farm):
    """The same among processes that have no kernel and no workspace, over tcp."""
    world = fault_farm.world(3, transport="tcp")
    for said in world.run(phases.split_without_descriptors, 1):
        check_refused_split(*said)
    assert world.run(phases.sum_in_split) == [3] * 3


@pytest.mark.slow
@pytest.mark.promise
def test_no_descriptors_left_for_a_split(ws):
    """One rank cannot make its part of a split: all hear of it, and the group is good."""
    code = """
n_open = max(map(int, os.listdir('/proc/self/fd')))
part = limited(resource.RLIMIT_NOFILE, n_open if rank == 1 else 512, lambda: world.split(0))
px.all_sum(1, group=part)
"""
    begin_s = time.monotonic()
    failed = failures(ws, code)
    # A line that no descriptor is left for takes 10 s.
    check(time.monotonic() - begin_s, 5.0 if HOLDS else 9.0)
    assert len(failed) == 3
    for ename, evalue, _ in failed.values():
        check_refused_split(ename, evalue)
    assert values(ws, "px.all_sum(rank)") == ["3"] * 3
    assert values(ws, "px.all_sum(1, group=world.split(0))") == ["3"] * 3


@pytest.mark.slow
def test_memory_that_is_refused_for_a_result(ws):
    """One rank cannot have its result's memory: it says so, the others hear that it never comes."""
    code = """
x = np.ones(1 << 24, np.float32)  # more than malloc ever keeps
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
if rank == 1:
    limited(resource.RLIMIT_AS, used + (1 << 20), lambda: px.all_sum(x))
else:
    px.all_sum(x)
"""
    failed = failures(ws, code)
    assert failed[1][0] in {"MemoryError", "_ArrayMemoryError"}
    for rank in (0, 2):
        ename, evalue, _ = failed[rank]
        assert ename == "RankFailure"
        assert "rank 1" in evalue
        assert "ended its cell with an error" in evalue
    assert values(ws, "float(px.all_sum(x)[-1])") == ["3.0"] * 3
