"""The contract suite on this engine: any layout of hosts, size, shape and dtype, against numpy."""

from __future__ import annotations

import os

import pytest
from distributed import contract
from distributed.any_call import any_calls
from distributed.contract import Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def test_every_op_and_dtype_at_sizes_around_every_share_and_segment(world):
    contract.check_all(world, contract.grid(world.size))


def test_every_shape_layout_and_way_to_call(world):
    contract.check_all(world, contract.several_dimensions(world.size))


@pytest.mark.slow
def test_arrays_of_many_segments(few_worlds):
    n = few_worlds.size
    for op in contract.OPS:
        dtype = "float32" if op in contract.REDUCTIONS else "int64"
        count = 1_300_003 // (n if op in contract.DIVIDED else 1)
        contract.check_all(few_worlds, [Case(op, (count,), dtype, root=n - 1)])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_call_gives_what_numpy_gives(few_worlds, data):
    contract.check_all(few_worlds, [data.draw(any_calls(few_worlds.size))])


@pytest.mark.parametrize("op", contract.REDUCTIONS)
def test_the_same_call_gives_the_same_bits_again(few_worlds, op):
    for dtype in ("float16", "float32", "complex64"):
        for count in (5, 5003, 70_001):
            calls = [Case(op, (count,), dtype, seed=4, async_op=again == 2) for again in range(4)]
            for results in few_worlds.run(contract.perform_all, calls):
                assert len(set(results)) == 1


def _has_memory(nbytes: int) -> bool:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > nbytes


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["any", "tcp"])
@pytest.mark.parametrize("op", ["all_sum", "broadcast", "all_to_all", "send"])
def test_arrays_of_more_than_2_gib(rank_pool, op, transport):
    count = 2**31 + 2**20 + 6  # bytes, and not a multiple of a segment
    if not _has_memory(5 * count):
        pytest.skip("needs more memory than this machine has to spare")
    world = rank_pool(2, transport=transport)
    world.start(contract.large, op, count)
    assert world.outcomes(timeout=240) == [0, 0]
