"""What ranks run to try the native group itself: every dtype, and errors before a byte moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import phalanx as px

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}
SPECIALS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, -65504.0, 6e-8, 1e-40)


@dataclass(frozen=True)
class Case:
    """One native call; every rank makes its own input from (seed, rank)."""

    op: str
    dtype: str
    count: int
    is_awkward: bool = False
    as_bits: bool = False

    def input(self, rank: int) -> np.ndarray:
        rng = np.random.default_rng([self.count, rank])
        dtype = DTYPES[self.dtype]
        if dtype.kind == "b":
            return rng.integers(0, 2, self.count) == 1
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            return rng.integers(bounds.min, bounds.max, self.count, dtype, endpoint=True)
        x = rng.standard_normal(self.count) * 10.0 ** rng.integers(-3, 4, self.count)
        if dtype.kind == "c":
            x = x + 1j * rng.integers(-1, 2, self.count)
            x.real = np.where(rng.random(self.count) < 0.5, np.sign(x.real), x.real)
        if self.is_awkward:
            odd = rng.random(self.count) < 0.4
            x[odd] = rng.choice(SPECIALS, np.count_nonzero(odd))
            if dtype.kind == "c":
                odd = rng.random(self.count) < 0.3
                x.imag[odd] = rng.choice(SPECIALS, np.count_nonzero(odd))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return x.astype(dtype)


def results(cases: list[Case]) -> list[bytes]:
    engine = px.init()._engine
    size, rank = engine.size, engine.rank
    found = []
    for case in cases:
        x = case.input(rank)
        before = x.tobytes()
        count = {"all_gather": case.count * size, "sum_scatter": case.count // size}
        out = np.empty(count.get(case.op, case.count), x.dtype)
        out.view(np.uint8)[...] = 0x5A
        if case.as_bits:
            bits = f"u{x.itemsize}"
            getattr(engine, case.op)(x.view(bits), out.view(bits), dtype=case.dtype)
        else:
            getattr(engine, case.op)(x, out)
        assert x.tobytes() == before
        found.append(out.tobytes())
    return found


def true_bytes() -> bytes:
    """Sum bools whose bytes are neither 0 nor 1."""
    engine = px.init()._engine
    x = np.array([0, 2, 128, 255, 0], np.uint8)
    x[4] = 7 if engine.rank == 0 else 0
    out = np.empty(5, bool)
    engine.all_sum(x.view(bool), out)
    return out.tobytes()


def refusals() -> list[str]:
    """Every call that is wrong by itself, and then one that is right."""
    engine = px.init()._engine
    n = engine.size
    x, out = np.ones(2 * n, np.float32), np.zeros(2 * n, np.float32)
    bits = np.zeros(2, np.uint16)
    calls = [
        lambda: engine.sum_scatter(np.ones(2 * n + 1), np.ones(2)),
        lambda: engine.all_to_all(np.ones(2 * n + 1), np.ones(2 * n + 1)),
        lambda: engine.sum_scatter(x, out[:1]),
        lambda: engine.sum_scatter(x, x[:2]),
        lambda: engine.all_to_all(x, x),
        lambda: engine.all_sum(bits, bits, dtype="float32"),
        lambda: engine.all_sum(bits, bits, dtype="float8"),
        lambda: engine.all_sum(np.zeros(2, "m8[s]"), np.zeros(2, "m8[s]"), dtype="int64"),
        lambda: engine.all_sum(np.zeros(2, np.longdouble), np.zeros(2, np.longdouble)),
        lambda: engine.all_sum(np.zeros(2, np.clongdouble), np.zeros(2, np.clongdouble)),
        lambda: engine.all_sum(np.zeros(2, object), np.zeros(2, object)),
        lambda: engine.all_sum(np.zeros(2, "U3"), np.zeros(2, "U3")),
        lambda: engine.all_sum(np.zeros(2, ">f4"), np.zeros(2, ">f4")),
        lambda: engine.all_sum(np.zeros(2, ml_dtypes.float8_e5m2), np.zeros(2, np.uint8)),
        lambda: engine.all_max(x, x[::-1]),
    ]
    said = []
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    engine.sum_scatter(x, out[:2])
    assert (out[:2] == n).all()
    return said


def described() -> dict[str, dict[int, str]]:
    return described_engine()["algorithms"]


def described_engine() -> dict[str, Any]:
    return px.init()._engine.describe()
