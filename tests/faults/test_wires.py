"""Wires that delay, drop, cut or change what passes between ranks that are all well."""

from __future__ import annotations

import time

import pytest
from distributed import cells
from distributed.contract import Case
from faults import phases
from faults.proxy import BadWire

BOUND_S = 2.0
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
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("phase", ["small", "large", "async_op"])
def test_a_cut_wire_frees_everyone(wired, phase, hard):
    world, wire = wired
    world.start(phases.run, phase, -1)
    n_bytes = wire.n_bytes
    while wire.n_bytes < n_bytes + 20_000:
        time.sleep(0.001)
    begin_s = time.monotonic()
    wire.cut(hard=hard)
    for ending in world.outcomes(timeout=10):
        assert ending.error == "RankFailure", ending
        assert "rank" in ending.text
        assert ending.when_s - begin_s < BOUND_S


@pytest.mark.slow
def test_a_slow_wire_is_only_slow(wired):
    world, wire = wired
    wire.delay(0.02)
    assert world.run(cells.stream_of_sums, 4, 30_000) == [4] * world.size


@pytest.mark.slow
def test_a_wire_that_stalls_is_a_timeout_and_one_that_goes_on_is_well(wired):
    world, wire = wired
    wire.hold()
    world.start(cells.call, Case("all_sum", (50_000,)))
    with pytest.raises(TimeoutError):
        world.outcomes([0], timeout=0.5)
    wire.release()
    world.outcomes()
    wire.drop()
    begin_s = time.monotonic()
    world.start(phases.run, "small", -1, 0.5)
    endings = world.outcomes(timeout=10)
    assert {ending.error for ending in endings} <= {"CollectiveTimeout"}, endings
    assert all(ending.when_s - begin_s < 0.5 + BOUND_S for ending in endings)


def flip(at: float):
    """Change one bit of a piece, at a fraction of its length."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[int(at * (len(data) - 1))] ^= 0x10
        return bytes(changed)

    return change


@pytest.mark.slow
@pytest.mark.parametrize("length", [8, 300_000])
@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_a_changed_bit_is_never_a_wrong_number(wired, at, length):
    """`stream_of_sums` counts right sums: either all are, or every rank hears of it."""
    world, wire = wired
    world.start(cells.stream_of_sums, 400 if length < 1000 else 20, length)
    n_bytes = wire.n_bytes
    while wire.n_bytes < n_bytes + 2000:
        time.sleep(0.0005)
    wire.change_once(flip(at))
    outcomes = world.outcomes(timeout=20)
    assert all(isinstance(outcome, Exception) for outcome in outcomes), outcomes
