"""The flight recorder of ranks that are processes: what it says of operations, and when."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.farm.formations import THREE, worlds
from distributed.recorder import trace_cells as cells

import phalanx as px
from phalanx.distributed.recorder import RECORD

OPS = [
    "all_sum", "all_max", "all_gather", "broadcast", "sum_scatter", "all_to_all", "barrier",
    "split", "split", "all_sum", "all_min",
]  # fmt: skip
SHAPES = {"all_sum": 1000, "all_max": 200_000}
ALGORITHMS = {
    "3 arena": ["inline", "staged"],
    "3 tcp": ["mesh", "direct"],
    "2+1 composed": ["inline+mesh", "staged+ring"],
}


world = worlds(["3 arena"])


def test_a_world_of_one_has_an_empty_one():
    assert len(px.trace()) == 0
    assert px.trace().dtype == np.dtype((np.record, RECORD))


@pytest.mark.parametrize(("world", "which"), [(w, w) for w in THREE], indirect=["world"])
def test_each_operation_is_recorded_in_order(world, which):
    by_rank = world.run(cells.every_kind)
    for rank, (records, begun, over) in enumerate(by_rank):
        splits = int((records["op"] == "split").sum())
        expected = [op for op in OPS if op != "split"]
        expected[7:7] = ["split"] * splits
        if rank == 1:
            expected = expected[: 7 + splits] + expected[8 + splits :]  # alone in its half
        expected += [["send"], ["recv"], []][rank]
        assert records["op"].tolist() == [*expected, "barrier"]
        assert set(records["state"]) == {"done"}
        assert set(records["failure"]) == {""}
        assert (np.diff(records["number"]) == 1).all()
        assert records[:2]["algorithm"].tolist() == ALGORITHMS[which]
        assert records[:2]["element"].tolist() == ["float32", "int64"]
        assert records[:2]["bytes"].tolist() == [4000, 1_600_000]
        assert records[3]["peer"] == 2
        assert records[0]["peer"] == -1
        assert (records["entered_ns"] >= begun).all()
        assert (records["done_ns"] <= over).all()
        known = records[records["op"] != "send"]
        assert (known["arrived_ns"] >= known["entered_ns"]).all()
        assert (known["done_ns"] >= known["arrived_ns"]).all()
        in_split = records[records["group"] != 0]
        assert in_split["op"].tolist() == ([] if rank == 1 else ["all_sum"])
        messages = records[np.isin(records["op"], ["send", "recv"])]
        if rank < 2:
            assert messages["peer"].tolist() == [1 - rank]
            assert messages["algorithm"].tolist() == ["wire" if which == "3 tcp" else "queue"]
    # One clock: nobody is through with a collective before the last one has begun it.
    for row in zip(*(records[:7] for records, _, _ in by_rank), strict=True):
        assert min(r["done_ns"] for r in row) >= max(r["entered_ns"] for r in row)
        assert min(r["arrived_ns"] for r in row) >= max(r["entered_ns"] for r in row)
        assert len({r["seq"] for r in row}) == 1


def test_the_oldest_are_dropped_and_can_be_counted(rank_pool):
    for records in rank_pool(2).run(cells.many, 4200):
        assert len(records) == 4096
        assert (np.diff(records["number"]) == 1).all()
        assert records["number"][0] > 0
        assert set(records["op"]) == {"all_sum"}


def test_an_operation_that_runs_is_seen_from_another_thread_and_who_came_last(world):
    (seen, before), (_, after), released = world.run(cells.late, 2)
    (running,) = seen[0][seen[0]["op"] == "all_sum"]
    assert (running["state"], running["done_ns"], running["arrived_ns"]) == ("running", 0, 0)
    first, second, last = (r[r["op"] == "all_sum"][-1] for r in (before, after, released))
    for early in (first, second):
        assert early["state"] == "done"
        assert early["entered_ns"] < last["entered_ns"] <= early["arrived_ns"]
    assert last["entered_ns"] <= last["arrived_ns"]


@pytest.mark.parametrize("world", THREE, indirect=True)
def test_after_a_mismatch_all_have_failed_with_it(world):
    world.is_good = False
    for records in world.run(cells.fail, "mismatch"):
        (last,) = records
        assert (last["op"], last["state"], last["failure"]) == ("all_sum", "failed", "mismatch")
        assert last["done_ns"] > last["entered_ns"]


def test_after_a_timeout_each_rank_has_what_it_was_in(world):
    world.is_good = False
    world.start(cells.fail, "timeout", ranks=[0, 2])
    world.wait_in("recv", [0])
    world.wait_in("all_sum", [2])
    world.start(cells.fail, "timeout", ranks=[1])  # whose time alone is limited
    first, *others = world.outcomes()
    assert (first[-1]["op"], first[-1]["failure"]) == ("recv", "timeout")
    for records in others:
        last = records[-1]
        assert (last["op"], last["failure"], last["arrived_ns"]) == ("all_sum", "timeout", 0)


def test_counters_of_shared_memory(world):
    for before, after in world.run(cells.counters, 10, 100_000):
        for was, now in zip(before, after, strict=True):
            assert now[0] - was[0] >= 11
            assert now[1] - was[1] == 1_000_000
            assert now[2] - was[2] >= now[3] - was[3] > 0
            assert now[4] == was[4]


@pytest.mark.parametrize("world", ["3 tcp"], indirect=True)
def test_counters_of_wires_by_peer(world):
    for before, after in world.run(cells.counters, 10, 3000):
        for rank, (was, now) in enumerate(zip(before, after, strict=True)):
            assert now[1] == was[1]
            # A process that was in a larger world has counted more peers; they do not move now.
            moved = {peer: both for peer, both in now[4].items() if both != was[4].get(peer)}
            assert sorted(moved) == [peer for peer in range(3) if peer != rank]
            for peer, (sent, received) in moved.items():
                before_it = was[4].get(peer, (0, 0))
                assert 30_000 < sent - before_it[0] < 36_000
                assert 30_000 < received - before_it[1] < 36_000
