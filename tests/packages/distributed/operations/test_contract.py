"""The contract suite on this engine: any layout of hosts, size, shape and dtype, against numpy."""

from __future__ import annotations

import pytest
from distributed.cells import cells
from distributed.cells.large_cells import large
from distributed.operations import contract
from distributed.operations.any_call import any_calls
from distributed.operations.contract import Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.runs.tiers import deep, deep_but, examples


def test_every_op_and_dtype_at_sizes_around_every_share_and_segment(world):
    contract.check_all(world, contract.grid(world.size))


def test_reductions_of_zeros_infinities_and_nan(world):
    contract.check_all(world, contract.awkward(adds_in_rank_order=world.adds_in_rank_order))


RING = dict.fromkeys((*contract.REDUCTIONS, "all_gather"), "ring") | {"broadcast": "chain"}
SEGMENT_NBYTES = 256 << 10  # HostTuning and the streams of native/collectives
A_FEW = ("bfloat16", "float64")


@pytest.mark.parametrize("size", range(1, 9))
def test_the_grid_has_an_array_of_more_than_a_segment_of_each_width(size):
    most: dict[tuple[str, str], int] = {}
    for case in contract.grid(size):
        count = case.shape[0] * (size if case.op in contract.DIVIDED else 1)
        nbytes = count * contract.dtype_of(case.dtype).itemsize
        most[case.op, case.dtype] = max(nbytes, most.get((case.op, case.dtype), 0))
    for op in contract.OPS:
        for dtype in contract.WIDTHS:
            assert most[op, dtype] > SEGMENT_NBYTES, (op, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("size", deep_but([3], [3, 5, 8]))
def test_a_ring_of_any_size_with_any_count(ring_only, size):
    world = ring_only(size)
    for told in world.run(cells.describe):
        algorithms = told["engine"]["algorithms"]
        for op, way in RING.items():
            assert set(algorithms[op].values()) == {way}, op
    contract.check_all(world, contract.grid(size, tuple(RING), A_FEW))


def test_every_shape_layout_and_way_to_call(few_worlds):
    contract.check_all(few_worlds, contract.several_dimensions(few_worlds.size))


@pytest.mark.slow
def test_arrays_of_many_segments(few_worlds):
    n, count = few_worlds.size, 1_300_003
    cases = [
        Case(op, (count // n if op in contract.DIVIDED else count,), dtype, root=n - 1)
        for op in contract.OPS
        for dtype in (["float32"] if op in contract.REDUCTIONS else ["int64"])
    ]
    # As float32, which halves travel as, this is more than one block of scratch (4 MiB).
    cases += [Case("all_sum", (count,), "bfloat16"), Case("sum_scatter", (count // n,), "float16")]
    for case in [*cases, Case("sum_scatter", (count // n,), "float64")]:
        contract.check_all(few_worlds, [case])


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
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


@deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["any", "tcp"])
@pytest.mark.parametrize("op", ["all_sum", "broadcast", "all_to_all", "send"])
def test_arrays_of_more_than_2_gib(rank_pool, much_memory, op, transport):
    count = 2**31 + 2**20 + 6  # bytes, and not a multiple of a segment
    much_memory(5 * count)
    world = rank_pool(2, transport=transport)
    world.start(large, op, count)
    assert world.outcomes(timeout=240) == [0, 0]


@deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("op", "hosts", "async_op"),
    [
        ("all_gather", (0, 0), False),  # what one gives is less: only the result is more
        ("sum_scatter", (0, 1), False),
        ("all_max", (0, 0, 1), True),
    ],
)
def test_other_ways_to_more_than_2_gib(rank_pool, much_memory, op, hosts, async_op):
    size = len(hosts)
    count = size * (2**31 // size + 2**20 + 1)
    much_memory(2 * size * count)
    world = rank_pool(size, hosts)
    world.start(large, op, count, async_op)
    assert world.outcomes(timeout=240) == [0] * size
