"""What every engine must do: the calls of the contract suite, made by ranks, judged by the parent.

A rank makes its own input from (seed, rank); the parent makes the same inputs and asks numpy. It
knows the public functions only. A world is anything with ``size`` and ``run(cell, *args)``, which
returns what each rank returned, so that any backend can be held to it.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

import phalanx as px

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
REDUCTIONS = ("all_sum", "all_max", "all_min", "sum_scatter")
MOVES = ("all_gather", "broadcast", "all_to_all", "send")
OPS = REDUCTIONS + MOVES
DIVIDED = ("sum_scatter", "all_to_all")  # their first axis is divided among the ranks
IN_PLACE = ("all_sum", "all_max", "all_min", "broadcast")  # x may be its own out
SAME_ON_ALL = ("all_sum", "all_max", "all_min", "all_gather", "broadcast")
WIDTHS = ("uint8", "bfloat16", "float32", "float64", "complex128")  # a dtype of each width
# More than a segment or a chunk (256 KiB), than what goes into shared memory with the header, and
# than what everyone sends to everyone (96 KiB). Between more than two single ranks a reduction of
# as much is no ring yet: for that there is a table that says so (test_contract).
LARGE_NBYTES = 300_007
# What a reduction may treat otherwise than numpy: zeros of both signs, infinities, NaN, the largest
# halves, whose sum is too large for one, and numbers below the smallest normal one.
SPECIALS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, -65504.0, 6e-8, 1e-40)
LAYOUTS = ("C", "F", "strided", "reversed", "unaligned", "readonly")


class World(Protocol):
    """Ranks that run a function of this module, or another that they can import.

    ``adds_in_rank_order``: sums have the bits of numpy's own, from rank 0 on.
    """

    size: int
    adds_in_rank_order: bool  # where it is missing: False

    def run(self, cell: Any, *args: Any) -> list[Any]: ...


def dtype_of(name: str) -> np.dtype:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


@dataclass(frozen=True)
class Case:
    """One call. Of an operation that divides its first axis, ``shape`` is one rank's share.

    ``send`` is a round: each rank sends to the next one and receives from the one before.
    """

    op: str
    shape: tuple[int, ...] = (3,)
    dtype: str = "float32"
    seed: int = 0
    root: int = 0
    layout: str = "C"
    use_out: str = "none"  # or "new", or "x"
    with_nan: bool = False
    is_awkward: bool = False  # two of five numbers are `SPECIALS`, and parts of them are equal
    async_op: bool = False

    def input(self, rank: int, size: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, rank])
        dtype, shape = dtype_of(self.dtype), self.shape
        if self.op in DIVIDED and shape:
            shape = (shape[0] * size, *shape[1:])
        if self.dtype == "bool":
            x = rng.integers(0, 2, shape).astype(bool)
        elif self.dtype in INTEGERS:
            bounds = np.iinfo(dtype)
            x = rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
        else:
            x = self._real(rng, shape)
            if self.dtype in COMPLEX:
                real, x = x, np.empty(shape, np.complex128)
                x.real, x.imag = real, self._real(rng, shape)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                x = np.asarray(x).astype(dtype)
        return lay_out(x, self.layout)

    def _real(self, rng, shape):
        most = 2 if self.dtype == "float16" else 6  # powers of ten, so that no sum overflows
        x = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-most, most + 1, shape))
        if self.with_nan and x.size:
            x.flat[rng.integers(0, x.size, 1 + x.size // 10)] = np.nan
        if self.is_awkward:
            draws = rng.random(shape)
            x = np.where(draws < 0.3, np.sign(x), x)  # so the imaginary parts are looked at, too
            x = np.where(draws > 0.6, rng.choice(SPECIALS, shape), x)
        return x


def lay_out(x: np.ndarray, layout: str) -> np.ndarray:
    """Return the same values with other strides, or flags."""
    if layout == "F":
        return np.asfortranarray(x) if x.ndim else x
    if layout == "strided" and x.ndim:
        holder = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        holder[..., ::2] = x
        return holder[..., ::2]
    if layout == "reversed" and x.ndim:
        return np.ascontiguousarray(x[::-1])[::-1]
    if layout == "unaligned":
        raw = np.zeros(x.nbytes + 1, np.uint8)
        shifted = raw[1:].view(x.dtype).reshape(x.shape)
        shifted[...] = x
        return shifted
    if layout == "readonly":
        x = x.copy()
        x.flags.writeable = False
    return x


# On the ranks


def perform(case: Case, group: px.Group | None = None, timeout: float | None = None) -> np.ndarray:
    """Make the call on this rank, and check what can only be seen here."""
    group = group or px.init()
    x = case.input(group.rank(), group.size())
    before = x.tobytes()
    if case.op == "send":
        return _pass_on(case, x, group, timeout)
    options: dict[str, Any] = {"timeout": timeout, "group": group}
    if case.use_out == "new":
        options["out"] = np.full(shape_of_result(case, group.size()), 1, x.dtype)
    elif case.use_out == "x":
        options["out"] = x
    if case.op == "broadcast":
        options["root"] = case.root
    result = getattr(px, case.op)(x, async_op=case.async_op, **options)
    if case.async_op:
        result = result.wait()
    if "out" in options:
        assert result is options["out"]
    else:
        assert type(result) is np.ndarray
        assert result.flags.carray
        assert not np.may_share_memory(result, x)
    assert (result.shape, result.dtype) == (shape_of_result(case, group.size()), x.dtype)
    if case.use_out != "x":
        assert x.tobytes() == before
    return result


def _pass_on(case: Case, x: np.ndarray, group: px.Group, timeout: float | None) -> np.ndarray:
    rank, size = group.rank(), group.size()
    if size == 1:
        return x
    options: dict[str, Any] = {"timeout": timeout, "group": group}
    right, left = (rank + 1) % size, (rank - 1) % size
    if rank % 2 == 0:
        assert px.send(x, right, **options) is x
        return px.recv_like(x, left, **options)
    received = px.recv(x.shape, x.dtype, left, **options)
    px.send(x, right, **options)
    return received


def perform_all(cases: list[Case]) -> list[bytes]:
    """Make many calls; what rank 0 can show for all ranks the others only give a digest of."""
    rank = px.init().rank()
    results = []
    for case in cases:
        result = perform(case).tobytes()
        results.append(digest(result) if rank and case.op in SAME_ON_ALL else result)
    return results


def check_here(cases: list[Case], group: px.Group | None = None) -> list[np.ndarray]:
    """Make calls on this rank and judge what it gets itself; return that."""
    group = group or px.init()
    rank, size = group.rank(), group.size()
    results = []
    for case in cases:
        results.append(perform(case, group))
        inputs = [case.input(peer, size) for peer in range(size)]
        check_one(case, inputs, rank, results[-1].tobytes())
    return results


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


# In the parent


def shape_of_result(case: Case, size: int) -> tuple[int, ...]:
    shape = case.shape
    if case.op == "all_gather" and size > 1:
        return (size * shape[0], *shape[1:]) if shape else (size,)
    if case.op == "all_to_all" and shape:
        return (size * shape[0], *shape[1:])
    return shape


def check(case: Case, size: int, by_rank: list[bytes], *, adds_in_rank_order: bool = False) -> None:
    """Compare what the ranks got with what numpy makes of the same inputs."""
    inputs = [case.input(rank, size) for rank in range(size)]
    if case.op in SAME_ON_ALL:
        first, *others = by_rank
        assert set(others) <= {digest(first)}, f"ranks have different bits: {case}"
        by_rank = [first]
    for rank, got in enumerate(by_rank):
        check_one(case, inputs, rank, got, adds_in_rank_order=adds_in_rank_order)


def check_one(
    case: Case, inputs: list[np.ndarray], rank: int, got: bytes, *, adds_in_rank_order: bool = False
) -> None:
    """Compare what one rank got with what numpy makes of the inputs of all."""
    shape = shape_of_result(case, len(inputs))
    result = np.frombuffer(got, dtype_of(case.dtype)).reshape(shape)
    if case.op in MOVES:
        assert got == _moved(case, inputs, rank).tobytes(), f"rank {rank}: {case}"
    elif adds_in_rank_order:
        expected = _in_rank_order(case, _parts(case, inputs, rank))
        assert _same_bits(result, expected).all(), f"rank {rank}: {case}"
    else:
        _check_reduction(case, result, _parts(case, inputs, rank), rank)


def _in_rank_order(case: Case, parts: list[np.ndarray]) -> np.ndarray:
    """Reduce with numpy's own functions; halves are added in float32 and rounded once."""
    choose = {"all_max": np.maximum, "all_min": np.minimum}.get(case.op, np.add)
    with np.errstate(all="ignore"):
        if choose is np.add and case.dtype in ("float16", "bfloat16"):
            wide = [part.astype(np.float32) for part in parts]
            return np.asarray(functools.reduce(np.add, wide)).astype(parts[0].dtype)
        return np.asarray(functools.reduce(choose, parts))


def _same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Tell where two arrays have the same bytes, or NaN in the same parts."""
    if a.dtype.kind == "c":
        return _same_bits(a.real, b.real) & _same_bits(a.imag, b.imag)
    raw = [np.ascontiguousarray(x).view(f"u{x.itemsize}").reshape(x.shape) for x in (a, b)]
    return (raw[0] == raw[1]) | ((a != a) & (b != b))  # noqa: PLR0124  # no isnan of bfloat16


def _moved(case: Case, inputs: list[np.ndarray], rank: int) -> np.ndarray:
    size = len(inputs)
    if case.op == "broadcast":
        return inputs[case.root]
    if case.op == "send":
        return inputs[(rank - 1) % size]
    if case.op == "all_gather":
        return np.concatenate([np.atleast_1d(x) for x in inputs])
    return np.concatenate([np.split(x, size)[rank] for x in inputs]) if case.shape else inputs[0]


def _parts(case: Case, inputs: list[np.ndarray], rank: int) -> list[np.ndarray]:
    """What comes together in this rank's result."""
    if case.op == "sum_scatter" and case.shape:
        return [np.split(x, len(inputs))[rank] for x in inputs]
    return inputs


def _check_reduction(case: Case, result: np.ndarray, parts: list[np.ndarray], rank: int) -> None:
    who = f"rank {rank}: {case}"
    if case.op in ("all_max", "all_min"):
        choose = np.maximum if case.op == "all_max" else np.minimum
        expected = parts[0]
        with np.errstate(invalid="ignore"):
            for part in parts[1:]:
                expected = choose(expected, part)
        is_nan = np.isnan(expected)
        assert np.array_equal(np.isnan(result), is_nan), who
        if case.is_awkward:  # around a ring another one of two zeros is the first
            assert np.array_equal(result[~is_nan], np.asarray(expected)[~is_nan]), who
        else:
            assert result[~is_nan].tobytes() == np.asarray(expected)[~is_nan].tobytes(), who
    elif case.dtype == "bool":
        assert np.array_equal(result, np.logical_or.reduce(parts)), who
    elif case.dtype in INTEGERS:
        expected = np.zeros_like(parts[0])
        for part in parts:
            expected = expected + part  # wraps, as the engine's sum does
        assert np.array_equal(result, expected), who
    elif case.dtype in COMPLEX:
        for of in (np.real, np.imag):
            _check_sum(case.dtype, of(result), [of(part) for part in parts], who)
    else:
        _check_sum(case.dtype, result, parts, who)


def _check_sum(name: str, result: np.ndarray, parts: list[np.ndarray], who: str) -> None:
    """Any order of n - 1 additions is within (n - 1) eps sum|x| of the true sum, to first order.

    Higham 2002, section 4.2, doi:10.1137/1.9780898718027; 1% covers the higher orders. Halves are
    summed in float32 and rounded once: to that comes half a unit in the last place of the result.
    """
    is_half, is_double = name in ("float16", "bfloat16"), name in ("float64", "complex128")
    wide = np.longdouble if is_double else np.float64  # whose own errors do not count
    exact = np.sum([part.astype(wide) for part in parts], axis=0)
    magnitude = np.sum([np.abs(part).astype(wide) for part in parts], axis=0)
    eps = np.finfo(np.float64 if is_double else np.float32).eps
    bound = 1.01 * (len(parts) - 1) * wide(eps) * magnitude
    if is_half:
        limits = ml_dtypes.finfo(dtype_of(name))
        bound += 1.01 * float(limits.eps) / 2 * np.abs(exact) + float(limits.smallest_subnormal)
    is_nan = np.isnan(exact)
    assert np.array_equal(np.isnan(result.astype(wide)), is_nan), who
    off = np.abs(result.astype(wide) - exact)
    assert (off <= bound)[~is_nan].all(), who


def check_all(world: World, cases: list[Case]) -> None:
    """Have a world make the calls, and compare all results with numpy's."""
    by_rank = world.run(perform_all, cases)
    is_ordered = getattr(world, "adds_in_rank_order", False)
    for number, case in enumerate(cases):
        results = [its[number] for its in by_rank]
        check(case, world.size, results, adds_in_rank_order=is_ordered)


def grid(
    size: int,
    ops: tuple[str, ...] = OPS,
    dtypes: tuple[str, ...] = DTYPES,
    large_nbytes: int = LARGE_NBYTES,
) -> list[Case]:
    """Make every op at counts around what is inline, a share, and a segment: one dtype of each width.

    The other dtypes take the same way; of them there are an array of few elements, and one of many.
    """
    counts = sorted({0, 1, size - 1, size, 31, 1009})
    cases = [
        Case(op, (count,), dtype, seed=count, root=(size - 1) if count % 2 else 0)
        for op in ops
        for dtype in dtypes
        for count in (counts if dtype in WIDTHS else (size, 1009))
    ]
    for op in ops:
        for dtype in (one for one in WIDTHS if one in dtypes):
            count = large_nbytes // dtype_of(dtype).itemsize
            count = (count // size if op in DIVIDED else count) | 1  # odd: slices of it differ
            cases.append(Case(op, (count,), dtype, seed=size, root=size - 1))
        if op in IN_PLACE:
            cases += [Case(op, (n,), dtypes[-1], use_out="x") for n in (5, 1009, 70_001)]
    return cases


def several_dimensions(size: int) -> list[Case]:
    """Shapes of no, some and empty dimensions; NaN; every layout; another out; and results later."""
    cases = []
    for op in OPS:
        shapes = [(2, 3), (0, 3), (1, 0), (2, 1, 4), (1,) * 8 + (2, 3)]  # a header shows 8 lengths
        shapes += [] if op in DIVIDED else [()]
        cases += [Case(op, shape, "float64", root=size - 1) for shape in shapes]
        cases += [Case(op, (n, 3), "int16", layout=way) for way in LAYOUTS for n in (2, 1009)]
        cases += [Case(op, (37,), dtype, with_nan=True) for dtype in (*FLOATS, *COMPLEX)]
        if op != "send":
            cases += [Case(op, (5,), dtype, use_out="new") for dtype in ("bfloat16", "int32")]
            cases += [Case(op, (5,), "float32", async_op=True)] * 3
    return cases


def awkward(*, adds_in_rank_order: bool) -> list[Case]:
    """Make reductions of special values; their sums have one right value only in rank order."""
    return [
        Case(op, (count,), dtype, seed=count, is_awkward=True)
        for op in (REDUCTIONS if adds_in_rank_order else ("all_max", "all_min"))
        for dtype in (*FLOATS, *COMPLEX)
        for count in (1, 37, 1009, 15_013)
    ]
