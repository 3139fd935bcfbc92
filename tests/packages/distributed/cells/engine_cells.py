"""What ranks run to call the native group itself: bytes that are true, and wrong calls."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import phalanx as px


def true_bytes() -> bytes:
    """Sum bools whose bytes are neither 0 nor 1."""
    engine = px.init()._engine
    x = np.array([0, 2, 128, 255, 0], np.uint8)
    x[4] = 7 if engine.rank == 0 else 0
    out = np.empty(5, bool)
    engine.run("all_sum", x.view(bool), out)
    return out.tobytes()


def refusals() -> list[str]:
    """Every call that is wrong by itself, and then one that is right."""
    engine = px.init()._engine
    n = engine.size
    x, out = np.ones(2 * n, np.float32), np.zeros(2 * n, np.float32)
    bits = np.zeros(2, np.uint16)
    calls = [
        lambda: engine.run("sum_scatter", np.ones(2 * n + 1), np.ones(2)),
        lambda: engine.run("all_to_all", np.ones(2 * n + 1), np.ones(2 * n + 1)),
        lambda: engine.run("sum_scatter", x, out[:1]),
        lambda: engine.run("sum_scatter", x, x[:2]),
        lambda: engine.run("all_to_all", x, x),
        lambda: engine.run("all_sum", bits, bits, dtype="float32"),
        lambda: engine.run("all_sum", bits, bits, dtype="float8"),
        lambda: engine.run("all_sum", np.zeros(2, "m8[s]"), np.zeros(2, "m8[s]"), dtype="int64"),
        lambda: engine.run("all_sum", np.zeros(2, np.longdouble), np.zeros(2, np.longdouble)),
        lambda: engine.run("all_sum", np.zeros(2, np.clongdouble), np.zeros(2, np.clongdouble)),
        lambda: engine.run("all_sum", np.zeros(2, object), np.zeros(2, object)),
        lambda: engine.run("all_sum", np.zeros(2, "U3"), np.zeros(2, "U3")),
        lambda: engine.run("all_sum", np.zeros(2, ">f4"), np.zeros(2, ">f4")),
        lambda: engine.run("all_sum", np.zeros(2, ml_dtypes.float8_e5m2), np.zeros(2, np.uint8)),
        lambda: engine.run("all_max", x, x[::-1]),
    ]
    said = []
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    engine.run("sum_scatter", x, out[:2])
    assert (out[:2] == n).all()
    return said
