"""Objects between ranks: that they come as they were given, and that nothing else is unpickled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from distributed.cells import object_cells

from phalanx.distributed.group.epoch import group_of_one
from phalanx.distributed.operations.sealed import SEAL_NBYTES, Seals

# Also run by test_mpi_contract.


def test_objects_of_all_ranks_and_of_each(world):
    everyone = list(range(world.size))
    assert world.run(object_cells.give_and_get) == [everyone] * world.size


def test_objects_in_splits(world):
    for rank, said in enumerate(world.run(object_cells.give_and_get, True)):
        assert said == [one for one in reversed(range(world.size)) if one % 2 == rank % 2]


def test_what_cannot_be_pickled_or_loaded_leaves_nobody_waiting(trio):
    lock = "TypeError: cannot pickle '_thread.lock' object"
    by_rank = trio.run(object_cells.refusals)
    of = [list(said) for said in zip(*by_rank, strict=True)]
    heard = "DistributedError: {}: the object of rank 1 cannot be pickled: " + lock
    gathered, broadcast = heard.format("all_gather_object"), heard.format("broadcast_object")
    assert of[0] == [gathered, lock, gathered]
    assert of[1] == [gathered, lock, lock]
    assert of[2] == [broadcast, lock, broadcast]
    assert of[3] == ["'x'"] * 3  # what others than the root have is not looked at
    unloaded = (
        "DistributedError: {}: what rank {} gave cannot be loaded here: LookupError: no such thing"
    )
    assert of[4][0] == unloaded.format("all_gather_object", 0)
    assert of[4][1:] == ["['loaded', 'loaded', 'loaded']"] * 2
    assert of[5][0] == unloaded.format("broadcast_object", 1)
    assert of[5][2] == "'loaded'"
    assert of[6] == ["ValueError: Invalid root=3 for a group of size 3"] * 3
    assert of[7] == ["TypeError: group must be a phalanx.Group or None, not str"] * 3
    assert of[8] == ["ValueError: timeout must be None or at least 0 seconds, not -1"] * 3


def test_ranks_without_a_key_refuse_objects_all_alike(keyed_pair):
    for said in keyed_pair.run(object_cells.without_key):
        for op, line in zip(("all_gather", "broadcast"), said, strict=False):
            assert line.startswith(f"NotSupported: {op}_object: these ranks have no key")
        assert said[2] == "['x', 'x']"


# On this engine


@pytest.fixture
def trio(rank_pool):
    return rank_pool(3, (0, 0, 1))


@pytest.fixture
def keyed_pair(rank_pool):
    return rank_pool(2, transport="tcp")


@pytest.mark.parametrize("transport", ["any", "tcp"])
@pytest.mark.parametrize("calls", ["array", "objects", "roots"])
def test_ranks_that_make_different_calls_are_told(rank_pool, calls, transport):
    world = rank_pool(2, transport=transport)
    said = world.run(object_cells.differ, calls)
    world.is_good = False
    ops = {"array": "all_gather", "objects": "all_gather", "roots": "broadcast"}
    for line in said:
        assert line.startswith("CollectiveMismatch: "), line
        assert ops[calls] in line


def test_a_rank_that_does_not_come_is_named(rank_pool):
    world = rank_pool(2)
    world.start(object_cells.late, 0.2, ranks=[0])
    (said,) = world.outcomes([0])
    world.is_good = False
    assert said.startswith("CollectiveTimeout: ")
    assert "rank 1" in said


@pytest.mark.parametrize(
    ("op", "what"),
    [
        ("all_gather_object", "first"),
        ("all_gather_object", "last"),
        ("broadcast_object", "first"),
        ("broadcast_object", "last"),
        ("broadcast_object", "number"),
    ],
)
def test_what_was_altered_on_the_way_is_not_unpickled(rank_pool, op, what):
    world = rank_pool(2, transport="tcp")
    (_, _, later), (said, n_loaded, _) = world.run(object_cells.altered, op, what)
    world.is_good = False
    assert said.startswith(f"DistributedError: rank 1: {op}: what came from rank 0 was altered")
    assert n_loaded == 0
    assert "was altered on the way" in later  # the epoch is over for all


def test_what_was_sent_before_is_not_taken_again(rank_pool):
    world = rank_pool(2, transport="tcp")
    _, (first, second) = world.run(object_cells.replayed)
    world.is_good = False
    assert first == "'a'"
    assert "what came from rank 0 was altered" in second


def test_a_seal_is_of_one_message_of_one_exchange():
    spec = group_of_one()._current.spec
    key, fresh = bytes(range(32)), b"of each rank"
    seal = Seals(key, spec, fresh).make(1, 2, b"data")
    assert len(seal) == SEAL_NBYTES
    assert Seals(key, spec, fresh).is_right(1, 2, np.frombuffer(b"data", np.uint8), seal)
    others = [
        Seals(key[::-1], spec, fresh).make(1, 2, b"data"),
        Seals(key, replace(spec, epoch=2), fresh).make(1, 2, b"data"),
        Seals(key, replace(spec, number=1), fresh).make(1, 2, b"data"),
        Seals(key, spec, b"of each Rank").make(1, 2, b"data"),
        Seals(key, spec, fresh).make(0, 2, b"data"),
        Seals(key, spec, fresh).make(1, 3, b"data"),
        Seals(key, spec, fresh).make(1, 2, b"Data"),
        Seals(key, spec, fresh).make(1, 2, b"data\0"),
    ]
    assert len({seal, *others}) == 1 + len(others)
