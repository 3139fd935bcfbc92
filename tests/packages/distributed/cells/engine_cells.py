"""What ranks run to call the native group itself: bytes that are true, and wrong calls."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from distributed.cells.texts import text_of

import phalanx as px


def truths() -> None:
    """Any byte but 0 is true, as numpy has it, in arrays of every size; a result's is 1."""
    engine = px.init()._current.engine
    rank, size = engine.rank, engine.size
    mine = np.array([0, 1 << rank % 8, rank, 255, 128 if rank else 0, 0 if rank else 7], np.uint8)
    some, every = bytes([0, 1, 1, 1, 1, 1]), bytes([0, 1, 0, 1, 0, 0])
    for rounds in (size, 1000 * size):
        x, out = np.tile(mine, rounds).view(bool), np.empty(6 * rounds, bool)
        for op, expected in (("all_sum", some), ("all_max", some), ("all_min", every)):
            engine.run(op, x, out)
            assert out.tobytes() == expected * rounds, (op, x.size)
        share = out[: x.size // size]
        engine.run("sum_scatter", x, share)
        assert share.tobytes() == some * (rounds // size), x.size


def refusals() -> list[str]:
    """Every call that is wrong by itself, and then one that is right."""
    engine = px.init()._current.engine
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
    said = [text_of(call) for call in calls]
    engine.run("sum_scatter", x, out[:2])
    assert (out[:2] == n).all()
    return said
