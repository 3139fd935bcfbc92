"""Wires that delay, drop, cut or change what passes between ranks that are all well."""

from __future__ import annotations

import time

import pytest
from distributed.cells import cells
from distributed.operations.contract import Case
from faults import phases
from faults.bad_wire import BadWire
from support.promise import BOUND_S, check
from support.runs.tiers import pairwise
from support.waiting import wait_until

WORLDS = {
    "2 tcp": (2, (0, 0), "tcp"),
    "3 tcp": (3, (0, 0, 0), "tcp"),
    "2+2": (4, (0, 0, 1, 1), "any"),
}


@pytest.fixture(params=WORLDS)
def wired(request, fault_farm):
    """A world whose links all go through a proxy, and the proxy."""
    size, hosts, transport = WORLDS[request.param]
    with BadWire() as wire:
        world = fault_farm.unformed(size, hosts, transport, reroute=wire.reroute)
        world.run(phases.connect)
        n_handshakes = wire.n_bytes
        assert world.run(cells.stream_of_sums, 5, 1000) == [5] * size
        assert wire.n_bytes > n_handshakes > 0
        yield world, wire
        world.is_good = False


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize(
    ("wired", "hard", "phase"),
    pairwise(
        {"wired": list(WORLDS), "hard": [False, True], "phase": ["small", "large", "async_op"]}
    ),
    indirect=["wired"],
)
def test_a_cut_wire_frees_everyone(wired, phase, hard):
    world, wire = wired
    world.start(phases.run, phase, -1)
    n_bytes = wire.n_bytes + 20_000
    wait_until(lambda: wire.n_bytes >= n_bytes, "ranks speak with each other", poll_s=0.001)
    begin_s = time.monotonic()
    wire.cut(hard=hard)
    endings = world.outcomes()
    for ending in endings:
        assert ending.error == "RankFailure", ending
        assert "rank" in ending.text
    check(max(ending.when_s for ending in endings) - begin_s)


@pytest.mark.slow
@pytest.mark.promise
def test_a_wire_that_is_slow_or_stalls_is_well_and_one_that_swallows_is_a_timeout(wired):
    world, wire = wired
    wire.delay(0.02)
    assert world.run(cells.stream_of_sums, 4, 30_000) == [4] * world.size
    wire.delay(0)
    wire.hold()
    world.start(cells.call, Case("all_sum", (50_000,)))
    world.wait_in("all_sum")
    wait_until(lambda: wire.n_held, "something is held")
    with pytest.raises(TimeoutError):
        world.outcomes([0], timeout=0)
    wire.release()
    world.outcomes()
    wire.drop()
    begin_s = time.monotonic()
    world.start(phases.run, "small", -1, 0.5)
    endings = world.outcomes()
    assert {ending.error for ending in endings} <= {"CollectiveTimeout"}, endings
    check(max(ending.when_s for ending in endings) - begin_s, 0.5 + BOUND_S)


# Of an operation's first message over a wire: `Op` of native/collectives/operation/op.hpp has 144 bytes. Where
# the array is small, its 64 bytes and the mark with the checksum come next; a large one streams.
HEADER_NBYTES, SHORT, LONG = 144, 8, 300_000
PLACES = {
    "shape": (50, "CollectiveMismatch"),
    "end of header": (HEADER_NBYTES - 4, "something that is no header"),
    "first number": (HEADER_NBYTES + 6, "its data was damaged"),
    "mark": (HEADER_NBYTES + 8 * SHORT + 4, "its data was damaged"),
    "in the middle": (1_000_000, "its data was damaged"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wired", "length", "place"),
    pairwise(
        {"wired": list(WORLDS), "length": [SHORT, LONG], "place": list(PLACES)},
        lambda _, length, place: length == LONG or place != "in the middle",
    ),
    indirect=["wired"],
)
def test_a_changed_bit_is_never_a_wrong_number(wired, length, place):
    """`stream_of_sums` counts right sums: here every rank hears that one was not."""
    world, wire = wired
    byte, text = PLACES[place]
    wire.change_at(byte)
    world.start(cells.stream_of_sums, 20, length)
    outcomes = world.outcomes()
    assert wire.n_changed == 1
    assert all(isinstance(outcome, Exception) for outcome in outcomes), outcomes
    assert any(text in repr(outcome) for outcome in outcomes), outcomes
