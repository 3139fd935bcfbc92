"""The short way takes what is plainly right and leaves alone, untouched, all that is not.

What it carries out is tested by everything that passes arrays of numpy; here stands where it ends.
"""

from __future__ import annotations

import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from distributed.operations.contract import DTYPES, dtype_of

import phalanx as px
from phalanx._native import fast_path
from phalanx.distributed.control import Deadline
from phalanx.distributed.operations import run_collective

KEEP_SHAPE = ["all_sum", "all_max", "all_min", "broadcast"]
OPS = [*KEEP_SHAPE, "all_gather", "sum_scatter", "all_to_all"]
BLOCK = np.zeros(64)


class Own(np.ndarray):
    """May mean something else by its bytes."""


def take(op, engine, x, out=None, root=0, timeout=None, dtype=""):
    return fast_path(op, engine, x, out, root, timeout, dtype)


@pytest.fixture
def engine():
    return px.init()._current.engine


def n_operations(engine):
    return engine.describe()["operations"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpys_own_arrays_are_taken(engine, op, dtype):
    for shape in ((), (0,), (3,), (2, 3), (1,) * 64):
        x = np.ones(shape, dtype_of(dtype))
        for out in (None, np.zeros_like(x)):
            before = n_operations(engine)
            result = take(op, engine, x, out)
            assert n_operations(engine) == before + 1, shape
            assert out is None or result is out, shape
            assert type(result) is np.ndarray, shape
            assert (result.shape, result.dtype) == (x.shape, x.dtype)
            assert result.flags.writeable, shape
            assert result.flags.owndata, shape
            assert result.tobytes() == x.tobytes(), shape


@pytest.mark.parametrize("op", KEEP_SHAPE)
def test_an_array_may_be_its_own_out(engine, op):
    x = np.arange(5.0)
    assert take(op, engine, x, x) is x
    assert np.array_equal(x, np.arange(5.0))


@pytest.mark.parametrize("dtype", [*DTYPES, "longlong"])
def test_a_dtype_that_numpy_has_twice_is_known_too(engine, dtype):
    x = np.ones(3, np.longlong if dtype == "longlong" else dtype_of(dtype))
    came = pickle.loads(pickle.dumps(x))
    assert dtype in {"longlong", "bfloat16"} or came.dtype is not x.dtype
    for source, out in [(x, None), (came, None), (came, np.zeros_like(x)), (x, came.copy())]:
        result = take("all_sum", engine, source, out)
        assert (result.dtype, result.tolist()) == (x.dtype, x.tolist())


@pytest.mark.parametrize("out", [np.frombuffer(bytes(24), np.float64), [0.0] * 3, np.zeros(3)])
def test_an_interrupt_before_anything_is_begun_stays_what_it_is(monkeypatch, out):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_collective, "fast_path", interrupted)
    before = [*out]
    with pytest.raises(KeyboardInterrupt):
        px.all_sum(np.ones(6)[::2], out=out)
    assert [*out] == before


LEFT_ALONE = {
    "strided": (np.zeros((4, 4)).T[::2], None),
    "Fortran": (np.asfortranarray(np.ones((2, 3))), None),
    "swapped": (np.zeros(3, ">f8"), None),
    "misaligned": (np.frombuffer(bytes(17), np.uint8)[1:].view(np.float64), None),
    "longdouble": (np.zeros(3, np.longdouble), None),
    "object": (np.zeros(3, object), None),
    "swapped bfloat16": (np.zeros(3, np.dtype(ml_dtypes.bfloat16).newbyteorder()), None),
    "float8": (np.zeros(3, ml_dtypes.float8_e4m3), None),
    "out is bits": (np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, np.uint16)),
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


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_all_else_is_left_alone(engine, case):
    x, out = LEFT_ALONE[case]
    before = n_operations(engine)
    for op in OPS:
        assert take(op, engine, x, out) is NotImplemented, op
        assert n_operations(engine) == before, op


@pytest.mark.parametrize("timeout", [0, 1, 0.5, math.inf, 2**62, 0.0])
def test_a_timeout_in_numbers_of_python_is_taken(engine, timeout):
    assert take("all_sum", engine, np.ones(3), timeout=timeout).tolist() == [1, 1, 1]


NOT_TIMEOUTS = (-1, -0.5, math.nan, True, "1", np.float64(1), 10**400)


def test_another_engine_operation_root_peer_or_timeout_is_left_alone(engine):
    x = np.zeros(3)
    for call in [
        *(("broadcast", engine, x, None, root) for root in (-1, 1, 2**80, "0")),
        *((op, engine, x, None, peer) for op in ("send", "recv") for peer in (0, 1, -1, 2**80, 0.0, None)),
        *(("all_sum", engine, x, None, 0, timeout) for timeout in NOT_TIMEOUTS),
        *((op, engine, x, x) for op in OPS if op not in KEEP_SHAPE),
        ("all_sum", object(), x), ("all_sum", None, x), ("split", engine, x),
    ]:  # fmt: skip
        assert take(*call) is NotImplemented, call


def test_a_number_beyond_all_floats_is_no_limit():
    assert px.all_sum(np.ones(3), timeout=10**400).tolist() == [1, 1, 1]
    assert str(Deadline(10**400)) == "inf s"


def test_bits_are_read_as_they_are_named(engine):
    bits = np.full(3, 0x3FC0, np.uint16)
    assert take("all_sum", engine, bits, dtype="bfloat16").tolist() == [0x3FC0] * 3
    for x, dtype in [
        (bits, "float16"),
        (bits, "uint16"),
        (np.zeros(3, np.int16), "bfloat16"),
        (np.zeros(3, ml_dtypes.bfloat16), "bfloat16"),
        (bits, None),
    ]:
        assert take("all_sum", engine, x, dtype=dtype) is NotImplemented


def test_a_wrong_number_of_arguments_is_an_error(engine):
    with pytest.raises(TypeError, match="takes 7 arguments, not 3"):
        fast_path("all_sum", engine, np.zeros(3))


def test_nothing_is_kept(engine):
    import sys

    x, out = np.zeros(300), np.zeros(300)
    take("all_sum", engine, x, out)
    before = [sys.getrefcount(its) for its in (x, out, x.dtype, engine)]
    for _ in range(1000):
        take("all_sum", engine, x, out)
        take("all_sum", engine, x, None)
        take("all_sum", engine, x, out[1:])
        take("all_sum", object(), x, None)
    assert [sys.getrefcount(its) for its in (x, out, x.dtype, engine)] == before
