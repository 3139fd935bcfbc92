"""Collectives of real processes against numpy: any layout of hosts, size, shape and dtype."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import cells
from distributed.cells import Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WORLDS = {
    "1": (1, (0,), "any"),
    "2 arena": (2, (0, 0), "any"),
    "3 arena": (3, (0, 0, 0), "any"),
    "4 arena": (4, (0,) * 4, "any"),
    "7 arena": (7, (0,) * 7, "any"),
    "8 arena": (8, (0,) * 8, "any"),
    "2 tcp": (2, (0, 0), "tcp"),
    "3 tcp": (3, (0,) * 3, "tcp"),
    "4 tcp": (4, (0,) * 4, "tcp"),
    "7 tcp": (7, (0,) * 7, "tcp"),
    "8 tcp": (8, (0,) * 8, "tcp"),
    "1+1 composed": (2, (0, 1), "any"),
    "2+1 composed": (3, (0, 0, 1), "any"),
    "2+2 composed": (4, (0, 0, 1, 1), "any"),
    "2+2 interleaved": (4, (0, 1, 0, 1), "any"),
    "3+1+1 composed": (5, (0, 0, 0, 1, 2), "any"),
    "4+4 composed": (8, (0,) * 4 + (1,) * 4, "any"),
}
FEW = ["1", "2 arena", "4 arena", "2 tcp", "3 tcp", "2+1 composed", "2+2 interleaved"]
OPS = ("all_sum", "all_gather", "broadcast")
LAYOUTS = ("C", "F", "strided", "reversed", "unaligned", "readonly")
DTYPES = ("float32", "float64", "int64")


def marked(name: str) -> object:
    """Eight processes on two cores take their time."""
    return pytest.param(name, marks=pytest.mark.slow) if WORLDS[name][0] > 4 else name


@pytest.fixture(params=map(marked, WORLDS))
def world(request, rank_pool):
    size, hosts, transport = WORLDS[request.param]
    return rank_pool(size, hosts, transport)


@pytest.fixture(params=FEW)
def few_worlds(request, rank_pool):
    size, hosts, transport = WORLDS[request.param]
    return rank_pool(size, hosts, transport)


def check(case: Case, size: int, results: list[bytes]) -> None:
    """Compare the bytes that the ranks got with what numpy makes of the same inputs."""
    inputs = [case.input(rank) for rank in range(size)]
    assert len(set(results)) == 1, "ranks have different bits"
    if case.op == "broadcast":
        assert results[0] == inputs[case.root].tobytes()
        return
    if case.op == "all_gather":
        assert results[0] == b"".join(x.tobytes() for x in inputs)
        return
    result = np.frombuffer(results[0], case.dtype).reshape(case.shape)
    if result.dtype.kind == "i":
        expected = np.zeros(case.shape, case.dtype)
        for x in inputs:
            expected = expected + x  # wraps, as the engine's sum does
        assert np.array_equal(result, expected)
        return
    # Any order of n - 1 additions is within (n - 1) eps sum|x| of the true sum, to first order
    # (Higham 2002, section 4.2, doi:10.1137/1.9780898718027); 1% covers the higher orders.
    exact = np.sum([x.astype(np.longdouble) for x in inputs], axis=0)
    magnitude = np.sum([np.abs(x).astype(np.longdouble) for x in inputs], axis=0)
    bound = 1.01 * (size - 1) * np.finfo(case.dtype).eps * magnitude
    assert (np.abs(result - exact) <= bound).all()


def run(world, cases: list[Case]) -> None:
    by_rank = world.run(cells.calls, cases)
    for number, case in enumerate(cases):
        check(case, world.size, [results[number] for results in by_rank])


def test_sizes_around_every_share_and_segment(world):
    """Counts 0, 1, size - 1, size, size + 1, a prime and larger than any segment."""
    n = world.size
    counts = [0, 1, n - 1, n, n + 1, 31, 1009, 70_001]
    calls = [(op, count, DTYPES[count % 3]) for count in counts for op in OPS]
    calls += [(op, 2 * n + 1, dtype) for op in OPS for dtype in DTYPES]
    cases = [Case(op, (c,), dtype, c, root=(n - 1) if c % 2 else 0) for op, c, dtype in calls]
    run(world, cases)


@pytest.mark.slow
def test_arrays_larger_than_any_segment(few_worlds):
    n = few_worlds.size
    cases = [Case(op, (1_300_003,), dtype, root=n - 1) for op in OPS for dtype in DTYPES]
    for case in cases:
        run(few_worlds, [case])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_call_gives_what_numpy_gives(few_worlds, data):
    n = few_worlds.size
    op = data.draw(st.sampled_from(OPS))
    case = Case(
        op,
        shape=tuple(data.draw(st.lists(st.integers(0, 7), max_size=3))),
        dtype=data.draw(st.sampled_from(DTYPES)),
        seed=data.draw(st.integers(0, 2**32)),
        root=data.draw(st.integers(0, n - 1)),
        layout=data.draw(st.sampled_from(LAYOUTS)),
        use_out=data.draw(st.sampled_from(["none", "new"])),
    )
    if case.layout == "C" and op != "all_gather" and data.draw(st.booleans()):
        case = Case(**{**case.__dict__, "use_out": "x"})
    run(few_worlds, [case])


def test_the_same_call_gives_the_same_bits_again(few_worlds):
    case = Case("all_sum", (5003,), "float32", seed=4)
    first = few_worlds.run(cells.calls, [case] * 5)
    assert len({result for results in first for result in results}) == 1


def test_many_small_sums_in_a_row_and_a_barrier(few_worlds):
    assert few_worlds.run(cells.stream_of_sums, 300, 5) == [300] * few_worlds.size
    n = few_worlds.size
    assert few_worlds.run(cells.barrier) == [f"<phalanx.Group rank {r} of {n}>" for r in range(n)]


@pytest.mark.parametrize("transport", ["any", "tcp"])
def test_scalars_keep_their_kind(rank_pool, transport):
    for result in rank_pool(3, transport=transport).run(cells.scalars):
        whole, real, narrow, wide, root, gathered, rows, flat = result
        assert [type(x) for x in (whole, real, root)] == [int, float, int]
        assert [type(x) for x in (narrow, wide)] == [np.float32, np.int64]
        assert (whole, real, narrow, wide, root) == (6, 4.5, 3, 3, 7)
        assert (gathered.tolist(), gathered.dtype) == ([1, 2, 3], np.int64)
        assert (rows.tolist(), rows.shape) == ([0.5, 1.5, 2.5], (3,))
        assert (flat.shape, float(flat)) == ((), 3.0)


def test_links_without_shared_memory_and_page(rank_pool):
    world = rank_pool(3, with_memory=False)
    run(world, [Case(op, (1009,), dtype) for op in OPS for dtype in DTYPES])


def test_the_group_says_what_it_is(rank_pool):
    described = rank_pool(3, (0, 0, 1)).run(cells.describe)
    assert [d["transports"] for d in described] == [
        ["self", "arena", "tcp"],
        ["arena", "self", "tcp"],
        ["tcp", "tcp", "self"],
    ]
    assert described[0]["hosts"] == ["host0", "host0", "host1"]
    tcp = rank_pool(2, transport="tcp").run(cells.describe)
    assert tcp[0]["transports"] == ["self", "tcp"]


def test_a_new_epoch_arms_the_same_group_again(rank_pool):
    first = rank_pool(2).run(cells.identity_across_epochs)
    second = rank_pool(2, transport="tcp").run(cells.identity_across_epochs)
    assert first == second
    assert all(same for _, same in first)


def test_children_of_a_rank_inherit_nothing_of_the_world(rank_pool):
    assert rank_pool(2).run(cells.inheritable) == [[], []]


@pytest.mark.slow
def test_processes_that_a_rank_starts_are_no_ranks(rank_pool):
    world = rank_pool(2)
    for by_exec, by_fork in world.run(cells.child_worlds):
        assert by_exec == "<phalanx.Group rank 0 of 1>"
        assert by_fork.count("is a fork of process") == 2
    assert world.run(cells.stream_of_sums, 3, 5) == [3, 3]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dtype", "transport"), [("float32", "any"), ("int64", "tcp")])
def test_more_than_2_gib(rank_pool, dtype, transport):
    """Ranks sum in place: two arrays of 2.1 GiB, no more."""
    count = (2**31 + 2**26) // np.dtype(dtype).itemsize
    world = rank_pool(2, transport=transport)
    world.start(cells.large_sum, count, dtype)
    assert world.outcomes(timeout=200) == [0, 0]
