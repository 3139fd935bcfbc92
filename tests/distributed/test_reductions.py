"""The native reductions of every dtype against numpy, on the native group itself."""

from __future__ import annotations

import functools
import platform

import numpy as np
import pytest
from distributed import reduction_cells as cells
from distributed.reduction_cells import DTYPES, Case

WORLDS = {
    "1": (1, (0,), "any"),
    "2 arena": (2, (0, 0), "any"),
    "4 arena": (4, (0,) * 4, "any"),
    "3 tcp": (3, (0,) * 3, "tcp"),
    "2+1 composed": (3, (0, 0, 1), "any"),
    "2+2 interleaved": (4, (0, 1, 0, 1), "any"),
}
REDUCTIONS = ("all_sum", "all_max", "all_min", "sum_scatter")
UFUNCS = {"all_sum": np.add, "sum_scatter": np.add, "all_max": np.maximum, "all_min": np.minimum}


@pytest.fixture(params=[*WORLDS, pytest.param("7 tcp", marks=pytest.mark.slow)])
def world(request, rank_pool):
    size, hosts, transport = WORLDS.get(request.param, (7, (0,) * 7, "tcp"))
    world = rank_pool(size, hosts, transport)
    world.is_in_rank_order = transport == "any" and len(set(hosts)) == 1
    return world


def in_rank_order(case: Case, inputs: list[np.ndarray]) -> np.ndarray:
    """Reduce with numpy's own functions; halves are added in float32 and rounded once."""
    with np.errstate(all="ignore"):
        if case.dtype in {"float16", "bfloat16"} and UFUNCS[case.op] is np.add:
            wide = [x.astype(np.float32) for x in inputs]
            return functools.reduce(np.add, wide).astype(inputs[0].dtype)
        return functools.reduce(UFUNCS[case.op], inputs)


def is_nan(x: np.ndarray) -> np.ndarray:
    return x != x  # noqa: PLR0124  # numpy.isnan does not take bfloat16 everywhere


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Tell where two arrays have the same bytes, or NaN in the same parts."""
    if a.dtype.kind == "c":
        return same_bits(a.real, b.real) & same_bits(a.imag, b.imag)
    raw = [np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in (a, b)]
    return (raw[0] == raw[1]) | (is_nan(a) & is_nan(b))


def check(world, case: Case, by_rank: list[bytes]) -> None:
    size = world.size
    inputs = [case.input(rank) for rank in range(size)]
    dtype = inputs[0].dtype
    if case.op == "all_to_all":
        n = case.count // size
        for rank, data in enumerate(by_rank):
            parts = [x[rank * n : (rank + 1) * n] for x in inputs]
            assert data == np.concatenate(parts).tobytes(), case
        return
    if case.op != "sum_scatter":
        assert len(set(by_rank)) == 1, f"ranks have different bits: {case}"
        by_rank = by_rank[:1]
    result = np.frombuffer(b"".join(by_rank), dtype)
    expected = in_rank_order(case, inputs)
    if dtype.kind in "biu" or (world.is_in_rank_order and platform.machine() == "x86_64"):
        assert same_bits(result, expected).all(), case
    elif UFUNCS[case.op] is not np.add:
        # Around a ring another one of two equals (the zeros), or of two NaNs, is the first.
        assert ((result == expected) | (is_nan(result) & is_nan(expected))).all(), case
    else:
        # (n - 1) roundings of partial sums, see test_collectives.check, and one of the result.
        wide = np.clongdouble if dtype.kind == "c" else np.longdouble
        exact = np.sum([x.astype(wide) for x in inputs], axis=0)
        magnitude = np.sum([np.abs(x.astype(wide)) for x in inputs], axis=0)
        is_half = case.dtype in {"float16", "bfloat16"}
        steps = np.finfo(np.float32 if is_half else dtype).eps * 1.01 * size * magnitude
        unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(case.dtype, 0.0)
        last = unit * np.abs(exact) * 1.01 + (2.0**-25 if is_half else 0.0)
        assert (np.abs(result.astype(wide) - exact) <= steps + last).all(), case


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operation_gives_what_numpy_gives(world, dtype):
    n = world.size
    cases = [
        Case(op, dtype, count * n, is_awkward)
        for op in (*REDUCTIONS, "all_to_all")
        for count in (0, 1, n, 37, 5003)
        for is_awkward in (False, True)
        if not is_awkward or op in {"all_max", "all_min"} or world.is_in_rank_order
    ]
    by_rank = world.run(cells.results, cases)
    for number, case in enumerate(cases):
        check(world, case, [found[number] for found in by_rank])


def test_arrays_beyond_a_block_of_scratch(rank_pool):
    """More than 4 MiB on every path that walks in blocks."""
    for size, hosts in ((4, (0, 1, 0, 1)), (2, (0, 1))):
        world = rank_pool(size, hosts, "any")
        world.is_in_rank_order = False
        cases = [
            Case(op, dtype, 400_009 * size)
            for op, dtype in [
                *(("all_sum", "bfloat16"), ("sum_scatter", "float16"), ("sum_scatter", "float64")),
                ("all_to_all", "float32"),
            ]
        ]
        for case in cases:
            check(world, case, [found[0] for found in world.run(cells.results, [case])])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_bytes_that_numpy_has_no_name_for_are_read_as_said(rank_pool, dtype):
    world = rank_pool(2)
    world.is_in_rank_order = True
    cases = [Case(op, dtype, 74, as_bits=True) for op in (*REDUCTIONS, "all_to_all")]
    by_rank = world.run(cells.results, cases)
    for number, case in enumerate(cases):
        check(world, case, [found[number] for found in by_rank])


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1), (0, 0, 1)])
def test_true_is_any_byte_but_zero(rank_pool, hosts):
    for data in rank_pool(len(hosts), hosts).run(cells.true_bytes):
        assert data == bytes([0, 1, 1, 1, 1])


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
def test_wrong_calls_are_refused_and_the_group_stays_good(rank_pool, hosts):
    parts = (
        "ValueError: sum_scatter of 5 elements: they must be divisible by the size of the group, 2",
        "ValueError: all_to_all of 5 elements: they must be divisible by the size of the group, 2",
        "ValueError: out has 1 elements; 2 are needed",
        "ValueError: x and out of sum_scatter overlap",
        "ValueError: x and out of all_to_all overlap",
        "ValueError: x has elements of 2 bytes; float32 has 4",
        "ValueError: dtype float8 is not supported; supported: bool, int8, ",
        "TypeError: x has dtype timedelta64[s]; only native numbers or raw bytes",
        "TypeError: x has dtype float128; supported, in native byte order: bool, ",
        "TypeError: x has dtype complex256; supported",
        "TypeError: x has dtype object; supported",
        "TypeError: x has dtype <U3; supported",
        "TypeError: x has dtype >f4; supported",
        "TypeError: x has dtype float8_e5m2; supported",
        "ValueError: out must be C-contiguous",
    )
    for said in rank_pool(2, hosts).run(cells.refusals):
        assert len(said) == len(parts), said
        for text, part in zip(said, parts, strict=True):
            assert text.startswith(part)


def test_describe_names_the_algorithm_of_every_operation(rank_pool):
    algorithms = rank_pool(2).run(cells.described)[0]
    assert set(algorithms) == {*REDUCTIONS, "all_to_all", "all_gather", "broadcast", "barrier"}
    assert algorithms["sum_scatter"][8] == "inline"
    assert algorithms["sum_scatter"][1 << 26] == "staged"
    tcp = rank_pool(2, transport="tcp").run(cells.described)[0]
    assert tcp["all_to_all"][8] == "pairwise"
    assert tcp["sum_scatter"][1 << 26] == "ring"


def test_describe_names_the_same_algorithms_on_every_rank(rank_pool):
    said = rank_pool(3, (0, 0, 1)).run(cells.described)
    assert said[0] == said[1] == said[2]
    assert said[2]["all_gather"][8] == "inline+ring"
    direct = rank_pool(3, transport="tcp").run(cells.described)[0]
    assert direct["all_sum"][1 << 20] == "direct"


def test_describe_tells_halves_apart(rank_pool):
    """What is widened for the way between hosts does not come with the header."""
    for told in rank_pool(3, (0, 0, 1)).run(cells.described_engine):
        assert told["algorithms"]["all_sum"][1024] == "inline+mesh"
        assert told["algorithms_of_halves"]["all_sum"][1024] == "staged+mesh"
        assert set(told["algorithms_of_halves"]) == {"all_sum", "sum_scatter"}
    for told in rank_pool(2).run(cells.described_engine):
        assert told["algorithms_of_halves"]["sum_scatter"][1024] == "inline"
