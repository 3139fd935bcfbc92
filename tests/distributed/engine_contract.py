"""What every engine must do: each operation with each dtype, beside numpy; run by every rank.

It knows `phalanx.distributed._engine.Engine` and numpy, nothing of what is below. A rank makes its
own input, and what the others have given, from (seed, rank).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
OPS = ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "all_to_all", "broadcast")
_UFUNCS = {"all_max": np.maximum, "all_min": np.minimum}


def storage(name: str) -> np.dtype:
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def widened(x: np.ndarray, name: str) -> np.ndarray:
    """Return the values, of a type that numpy can calculate with."""
    if name == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32) if name == "float16" else x


def narrowed(x: np.ndarray, name: str) -> np.ndarray:
    """Return what is stored of values: rounded to the nearest, ties to even."""
    if name != "bfloat16":
        return x.astype(storage(name))
    bits = np.atleast_1d(x.astype(np.float32)).view(np.uint32).astype(np.uint64)
    up = (bits >> 16) + ((bits & 0xFFFF) + ((bits >> 16) & 1) > 0x8000)
    return np.where(np.isnan(x), 0x7FC0, up).astype(np.uint16).reshape(np.shape(x))


def values(name: str, count: int, seed: int, rank: int) -> np.ndarray:
    """Make the input of a rank: all bits of integers, many magnitudes of floats, some NaN."""
    rng = np.random.default_rng([seed, rank, count])
    if name == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if name.startswith(("int", "uint")):
        info = np.iinfo(name)
        return rng.integers(info.min, info.max, count, name, endpoint=True)
    kind = {"complex64": np.float32, "complex128": np.float64}.get(name, storage(name).type)
    exact = np.float32 if name == "bfloat16" else kind
    made = [rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count) for _ in range(2)]
    if seed % 2 and count:
        made[0][rng.integers(count)] = np.nan
        made[1][rng.integers(count)] = np.inf
    if name.startswith("complex"):
        both = np.empty(count, name)
        both.real, both.imag = made[0], np.round(made[1], 1)
        both.real[::2] = np.round(both.real[::2])  # equal real parts: the imaginary ones decide
        return both
    return narrowed(made[0].astype(exact), name)


@dataclass(frozen=True)
class Case:
    op: str
    name: str
    count: int
    seed: int = 0
    root: int = 0
    in_place: bool = False

    def inputs(self, size: int) -> list[np.ndarray]:
        return [values(self.name, self.count, self.seed, rank) for rank in range(size)]

    def expected(self, rank: int, size: int) -> np.ndarray:
        """What numpy makes of it; reductions as `widened` values, before they are stored."""
        given = self.inputs(size)
        share = self.count // size
        mine = slice(rank * share, (rank + 1) * share)
        if self.op == "broadcast":
            return given[self.root]
        if self.op == "all_gather":
            return np.concatenate(given)
        if self.op == "all_to_all":
            return np.concatenate([x[mine] for x in given])
        total = widened(given[0], self.name).copy()
        combine = _UFUNCS.get(self.op, np.add)
        with np.errstate(all="ignore"):
            for x in given[1:]:
                total = combine(total, widened(x, self.name))
        return total[mine] if self.op == "sum_scatter" else total

    def check(self, result: np.ndarray, rank: int, size: int) -> None:
        want = self.expected(rank, size)
        if self.op in {"all_gather", "all_to_all", "broadcast"}:
            assert result.tobytes() == want.tobytes(), self
            return
        with np.errstate(all="ignore"):
            stored = narrowed(want, self.name)
        if "sum" not in self.op or storage(self.name).kind not in "fc":
            same = np.array_equal(widened(result, self.name), widened(stored, self.name),
                                  equal_nan=storage(self.name).kind in "fc" or self.name == "bfloat16")  # fmt: skip
            assert same, (self, result, stored)
            return
        # Any order of n - 1 additions errs by less than this (Higham 2002, section 4.2), and half
        # precision by half of its last place once more, as it is stored once.
        absolute = sum(np.abs(widened(x, self.name)) for x in self.inputs(size))
        if self.op == "sum_scatter":
            share = self.count // size
            absolute = absolute[rank * share : (rank + 1) * share]
        wide = np.float32 if self.name in {"float16", "bfloat16"} else storage(self.name)
        limit = 2 * size * np.finfo(wide).eps * absolute
        if self.name == "float16":
            limit = limit + 2.0**-11 * np.abs(want) + 2.0**-25
        with np.errstate(all="ignore"):
            close = np.abs(widened(result, self.name) - want) <= limit
        odd = ~np.isfinite(want) | ~np.isfinite(widened(stored, self.name))
        assert np.all(close | odd), (self, result, want)
        assert np.array_equal(np.isnan(result[odd]), np.isnan(stored[odd])), (self, result, want)


def run_case(engine, case: Case) -> np.ndarray:
    """Do it and check it; returns the result."""
    rank, size = engine.rank, engine.size
    x = values(case.name, case.count, case.seed, rank)
    before = x.tobytes()
    n_out = {"all_gather": case.count * size, "sum_scatter": case.count // size}
    out = np.empty(n_out.get(case.op, case.count), storage(case.name))
    if case.in_place and case.op == "all_gather":
        own = out[rank * case.count : (rank + 1) * case.count]
        own[...] = x
        x = own
    elif case.in_place:
        out = x
    arguments = (case.root,) if case.op == "broadcast" else ()
    dtype = case.name if case.name == "bfloat16" else ""
    getattr(engine, case.op)(x, out, *arguments, timeout=60.0, dtype=dtype)
    assert case.in_place or x.tobytes() == before, f"{case}: the input was changed"
    case.check(out, rank, size)
    return out


def cases(size: int, counts: tuple[int, ...], dtypes: tuple[str, ...] = DTYPES) -> Iterator[Case]:
    """Every op with every dtype and count, in place and not, with and without NaN."""
    for op in OPS:
        for name in dtypes:
            for count in counts:
                divided = op in {"sum_scatter", "all_to_all"}
                n = count * size if divided else count
                for seed in (0, 1):
                    yield Case(op, name, n, seed, root=(count + seed) % size)
                if op != "sum_scatter":
                    yield Case(op, name, n, 2, root=size - 1, in_place=True)


def check_truths(engine) -> None:
    """Any byte but 0 is true, as numpy has it, in arrays of every size; a result's is 1."""
    rank, size = engine.rank, engine.size
    mine = np.array([0, 1 << rank % 8, rank, 255, 128 if rank else 0, 0 if rank else 7], np.uint8)
    some, every = bytes([0, 1, 1, 1, 1, 1]), bytes([0, 1, 0, 1, 0, 0])
    for rounds in (size, 1000 * size):
        x, out = np.tile(mine, rounds).view(bool), np.empty(6 * rounds, bool)
        for op, expected in (("all_sum", some), ("all_max", some), ("all_min", every)):
            getattr(engine, op)(x, out)
            assert out.tobytes() == expected * rounds, (op, x.size)
        share = out[: x.size // size]
        engine.sum_scatter(x, share)
        assert share.tobytes() == some * (rounds // size), x.size


def check_same_bits(engine, result: np.ndarray) -> None:
    """All ranks have the very same bytes."""
    data = np.frombuffer(result.tobytes() or b"\0", np.uint8).copy()
    every = np.empty(data.size * engine.size, np.uint8)
    engine.all_gather(data, every)
    assert (every.reshape(engine.size, -1) == data).all()


def check_collectives(engine, counts: tuple[int, ...], dtypes: tuple[str, ...] = DTYPES) -> int:
    """Check them all; how many there were."""
    n_done = 0
    for case in cases(engine.size, counts, dtypes):
        result = run_case(engine, case)
        if case.op in {"all_sum", "all_max", "all_min"}:
            if not case.in_place:
                assert result.tobytes() == run_case(engine, case).tobytes(), f"{case} is not steady"
            check_same_bits(engine, result)
        n_done += 1
    engine.barrier(timeout=60.0)
    return n_done


def check_pairs(engine, counts: tuple[int, ...]) -> int:
    """Every rank to every rank, all sending first where it is small, in turns where not."""
    rank, size = engine.rank, engine.size
    n_done = 0
    for name in DTYPES:
        dtype = name if name == "bfloat16" else ""
        for count in counts:
            for shift in range(1, size):
                dst, src = (rank + shift) % size, (rank - shift) % size
                x = values(name, count, shift, rank)
                out = np.empty_like(x)
                if x.nbytes <= 1 << 14:
                    engine.send(x, dst, timeout=60.0, dtype=dtype)
                    x.fill(0)  # it is ours again
                    engine.recv(out, src, timeout=60.0, dtype=dtype)
                else:
                    _in_turns(engine, x, out, dst, src, dtype)
                assert out.tobytes() == values(name, count, shift, src).tobytes()
                n_done += 1
    return n_done


def _in_turns(engine, x, out, dst, src, dtype) -> None:
    """Large arrays around the rings of one shift: the lowest of each sends first."""
    step = (dst - engine.rank) % engine.size
    is_first = engine.rank < np.gcd(step, engine.size)
    if is_first:
        engine.send(x, dst, timeout=60.0, dtype=dtype)
    engine.recv(out, src, timeout=60.0, dtype=dtype)
    if not is_first:
        engine.send(x, dst, timeout=60.0, dtype=dtype)


def check_submitted(engine) -> int:
    """Many at once, waited for in another order, and one of our own after them."""
    works = []
    for i, op in enumerate(OPS * 3):
        case = Case(op, "float64", 6 * engine.size, seed=2 * i, root=i % engine.size)
        x = values(case.name, case.count, case.seed, engine.rank)
        n_out = {"all_gather": case.count * engine.size, "sum_scatter": case.count // engine.size}
        out = np.empty(n_out.get(op, case.count))
        works.append((case, x, out, engine.submit(op, x, out, case.root, timeout=60.0)))
    run_case(engine, Case("all_sum", "int32", 5))
    for case, _, out, work in reversed(works):
        work.wait(60.0)
        assert work.done
        case.check(out, engine.rank, engine.size)
    return len(works)
