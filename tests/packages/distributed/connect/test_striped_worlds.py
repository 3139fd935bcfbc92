"""Worlds whose links are of several connections: the contract holds, and a dead one is named."""

from __future__ import annotations

import re

import pytest
from distributed.cells import cells, recover_cells
from distributed.operations import contract
from distributed.operations.contract import Case
from support.hosts.cutting import cut
from support.promise import within

import phalanx as px

HOME = ("127.0.0.1", "127.0.0.2")
LARGE = 300_007  # more than a block, and no multiple of any


@pytest.fixture
def striped(farm):
    """Give a world whose ranks use both addresses at once."""

    def make(size, hosts, transport="any", connections_per_ip=1):
        world = farm.unformed(
            size, hosts, transport, addresses=HOME, connections_per_ip=connections_per_ip
        )
        world.run(cells.join)
        return world

    yield make
    farm._world.is_good = False  # of no use to other tests


def stripes(world, rank):
    return world.run(cells.describe)[rank]["engine"]["stripes"]


@pytest.mark.parametrize(
    ("size", "hosts", "transport", "per_ip"),
    [(2, (0, 1), "any", 1), (3, (0, 0, 0), "tcp", 2), (4, (0, 1, 0, 1), "any", 2)],
)
def test_a_striped_world_keeps_the_contract(striped, size, hosts, transport, per_ip):
    world = striped(size, hosts, transport, per_ip)
    cases = contract.grid(size, large_nbytes=LARGE)[::7] + contract.several_dimensions(size)[::5]
    cases += [Case(op, (LARGE,), "float32") for op in ("all_sum", "all_gather", "broadcast")]
    contract.check_all(world, cases)
    ways = [f"{address} to {address}" for address in HOME] * per_ip
    peers = [1, 2] if transport == "tcp" else [1]
    assert stripes(world, 0) == dict.fromkeys(peers, ways)


def test_without_several_addresses_there_are_no_stripes(farm):
    world = farm.world(2, (0, 1))
    assert stripes(world, 0) == {}


@pytest.mark.promise
@pytest.mark.parametrize("large", [False, True])
def test_a_connection_that_breaks_is_named_by_both_ends(striped, large):
    world = striped(2, (0, 1))
    world.run(cells.call, Case("all_sum", (LARGE,)))
    world.start(cells.endless_sums, LARGE if large else 3)
    world.wait_moved(0)
    assert cut(world.pid(0), world.pid(1), HOME[1]) == 1
    with within():
        errors = world.outcomes()
    for error in errors:
        assert isinstance(error, px.RankFailure), error
        assert re.search(
            r"the link between rank 0 and rank 1 broke \(connection 2 of 2, 127.0.0.2 to 127.0.0.2: "
            r".+\) during all_sum",
            error.reason,
        ), error.reason


def test_recovery_and_splits_have_stripes_again(striped):
    world = striped(3, (0, 0, 0), "tcp")
    world.start(cells.endless_sums, 3)
    world.wait_moved(0)
    assert cut(world.pid(0), world.pid(1), HOME[1]) == 1
    assert all(isinstance(error, px.RankFailure) for error in world.outcomes())
    world.run(recover_cells.recover)
    assert world.run(cells.stripes_of_split) == [[2, 2]] * 3
