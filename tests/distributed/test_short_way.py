"""The short way takes what is plainly right and leaves alone, untouched, all that is not.

What it carries out is tested by everything that passes arrays of numpy; here stands where it ends.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from distributed.contract import DTYPES, dtype_of

import phalanx as px
from phalanx._native import short_way

KEEP_SHAPE = ["all_sum", "all_max", "all_min", "broadcast"]
OPS = [*KEEP_SHAPE, "all_gather", "sum_scatter", "all_to_all"]
BLOCK = np.zeros(64)


class Own(np.ndarray):
    """May mean something else by its bytes."""


@pytest.fixture
def engine():
    return px.init()._engine


def n_operations(engine):
    return engine.describe()["operations"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (1,) * 64])
def test_numpys_own_arrays_are_taken(engine, op, dtype, shape):
    x = np.ones(shape, dtype_of(dtype))
    for out in (None, np.zeros_like(x)):
        before = n_operations(engine)
        result = short_way(op, engine, x, out, 0)
        assert n_operations(engine) == before + 1
        assert out is None or result is out
        assert type(result) is np.ndarray
        assert (result.shape, result.dtype) == (x.shape, x.dtype)
        assert result.flags.writeable
        assert result.flags.owndata
        assert result.tobytes() == x.tobytes()


@pytest.mark.parametrize("op", KEEP_SHAPE)
def test_an_array_may_be_its_own_out(engine, op):
    x = np.arange(5.0)
    assert short_way(op, engine, x, x, 0) is x
    assert np.array_equal(x, np.arange(5.0))


LEFT_ALONE = {
    "strided": (np.zeros((4, 4)).T[::2], None),
    "Fortran": (np.asfortranarray(np.ones((2, 3))), None),
    "swapped": (np.zeros(3, ">f8"), None),
    "misaligned": (np.frombuffer(bytes(17), np.uint8)[1:].view(np.float64), None),
    "long long": (np.zeros(3, np.longlong), None),
    "longdouble": (np.zeros(3, np.longdouble), None),
    "object": (np.zeros(3, object), None),
    "bfloat16": (np.zeros(3, ml_dtypes.bfloat16), None),
    "subclass": (np.zeros(3).view(Own), None),
    "masked": (np.ma.zeros(3), None),
    "scalar": (np.float64(1), None),
    "list": ([1.0], None),
    "out is no array": (np.zeros(3), [0.0] * 3),
    "out of another dtype": (np.zeros(3), np.zeros(3, np.float32)),
    "out of another shape": (np.zeros(3), np.zeros((3, 1))),
    "out of another size": (np.zeros(3), np.zeros(4)),
    "out is a subclass": (np.zeros(3), np.zeros(3).view(Own)),
    "out is strided": (np.zeros(3), np.zeros(6)[::2]),
    "out is read-only": (np.zeros(2), np.frombuffer(bytes(16), np.float64)),
    "out begins within x": (BLOCK[:8], BLOCK[4:12]),
    "x begins within out": (BLOCK[4:12], BLOCK[:8]),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", LEFT_ALONE)
def test_all_else_is_left_alone(engine, op, case):
    x, out = LEFT_ALONE[case]
    before = n_operations(engine)
    assert short_way(op, engine, x, out, 0) is NotImplemented
    assert n_operations(engine) == before


@pytest.mark.parametrize("op", [op for op in OPS if op not in KEEP_SHAPE])
def test_blocks_may_not_be_their_own_out(engine, op):
    x = np.zeros(3)
    assert short_way(op, engine, x, x, 0) is NotImplemented


@pytest.mark.parametrize("root", [-1, 1, 2**80, "0"])
def test_a_root_that_is_no_rank_is_left_alone(engine, root):
    assert short_way("broadcast", engine, np.zeros(3), None, root) is NotImplemented


def test_an_engine_of_another_kind_or_an_unknown_operation_is_left_alone(engine):
    x = np.zeros(3)
    assert short_way("all_sum", object(), x, None, 0) is NotImplemented
    assert short_way("all_sum", None, x, None, 0) is NotImplemented
    assert short_way("send", engine, x, None, 0) is NotImplemented


def test_a_wrong_number_of_arguments_is_an_error(engine):
    with pytest.raises(TypeError, match="takes 5 arguments, not 3"):
        short_way("all_sum", engine, np.zeros(3))


def test_nothing_is_kept(engine):
    import sys

    x, out = np.zeros(300), np.zeros(300)
    short_way("all_sum", engine, x, out, 0)
    before = [sys.getrefcount(its) for its in (x, out, x.dtype, engine)]
    for _ in range(1000):
        short_way("all_sum", engine, x, out, 0)
        short_way("all_sum", engine, x, None, 0)
        short_way("all_sum", engine, x, out[1:], 0)
        short_way("all_sum", object(), x, None, 0)
    assert [sys.getrefcount(its) for its in (x, out, x.dtype, engine)] == before
