"""Scripts whose ranks wait for each other: all are freed, and told who waits in what, and where."""

from __future__ import annotations

import json
import re

import pytest
from support.programs.launching import launch
from support.promise import check

# Each case ends in a deadlock; after it the ranks form the group anew. ``large`` is more than the buffers
# of two sockets may hold (here 36 MiB), so that its send waits for the receiver.
SCRIPT = """
import json, time
import numpy as np
import phalanx as px

world = px.init()
rank = world.rank()
part = world.split(0)
ones, large = np.ones(3), np.zeros(64 << 20, np.uint8)

def group():
    px.all_sum(ones, group=part if rank == 0 else world)

def order():
    for its in (part, world) if rank == 0 else (world, part):
        px.all_sum(ones, group=its)

def message():
    px.recv((3,), float, 1) if rank == 0 else px.all_sum(ones)

def receives():
    px.recv((3,), float, 1 - rank)

def sends():
    px.send(large, 1 - rank)

def works():
    works = [px.all_sum(ones, group=part, async_op=True) for _ in range(2 - rank)]
    if rank == 0:
        works[0].wait()
        works[1].wait()
    px.all_sum(ones)

for case in (group, order, message, receives, sends, works):
    world.barrier()
    begin_s = time.monotonic()
    try:
        case()
    except px.CollectiveMismatch as error:
        print(json.dumps([case.__name__, time.monotonic() - begin_s, str(error)]))
    px.recover(20)
"""
PART = "all_sum # in the split of ranks 0-1"
# What ranks 0 and 1 wait in.
WAITS = {
    "group": (PART, "all_sum #"),
    "order": (PART, "all_sum #"),
    "message": ("recv # from rank 1", "all_sum #"),
    "receives": ("recv # from rank 1", "recv # from rank 0"),
    "sends": ("send # to rank 1", "send # to rank 0"),
    "works": (PART, "all_sum #"),
}


@pytest.mark.promise
@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_ranks_that_wait_for_each_other_are_told_so(script, transport):
    ended = launch("-n", "2", "--transport", transport, script(SCRIPT))
    assert (ended.returncode, ended.stderr) == (0, b"")
    lines = [line.split(" ", 1) for line in ended.stdout.decode().splitlines()]
    said = {}
    for rank, line in lines:
        case, seconds, error = json.loads(line)
        check(seconds)
        said.setdefault(case, {})[rank] = error
    assert list(said) == list(WAITS)
    for case, (first, second) in WAITS.items():
        assert said[case].keys() == {"[0]", "[1]"}
        (error,) = set(said[case].values())
        assert re.fullmatch(
            rf"ranks 0-1 wait for each other: rank 0 in {first} at script.py:\d+, "
            rf"rank 1 in {second} at script.py:\d+; .*",
            re.sub(r"#\d+", "#", error),
        ), error
