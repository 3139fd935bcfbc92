"""What the collectives take and refuse, in a group of one, where every operation is a copy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from distributed.operations.contract import dtype_of

import phalanx as px
from phalanx.distributed.arrays.arguments import as_source

OPERATIONS = [
    px.all_sum,
    px.all_max,
    px.all_min,
    px.all_gather,
    px.sum_scatter,
    px.all_to_all,
    px.broadcast,
]
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


@pytest.mark.parametrize("operation", [op for op in OPERATIONS if op is not px.all_gather])
def test_a_scalar_comes_back_as_it_was(operation):
    of_numpy = [np.float32(1.5), np.int8(7), np.bool_(True), np.complex64(1j)]
    for x in (True, 2, -(2**63), 2.5, 2j, *of_numpy, dtype_of("bfloat16").type(1.5)):
        result = operation(x)
        assert type(result) is type(x)
        assert result == x


def test_gathered_scalars_are_an_array_of_no_dimension_in_a_group_of_one():
    for x, dtype in [(3, "int64"), (3.5, "float64"), (np.float32(3), "float32")]:
        result = px.all_gather(x)
        assert type(result) is np.ndarray
        assert (result.shape, result.dtype) == ((), dtype)


@every_operation
def test_what_is_no_array_is_refused_in_the_words_of_mlx(operation):
    for x in ([1.0, 2.0], (1, 2), "text", None, {"a": 1}, object()):
        text = f"Invalid type {type(x).__name__} received in array initialization."
        with pytest.raises(ValueError, match=text.replace(".", r"\.")):
            operation(x)


class _Table:
    """As a DataFrame of pandas, of which the call knows no more than this."""

    def to_numpy(self): ...


X = np.ones(2)
ONCE_FOR_EACH = "{op} takes one array: call it once for each, "


@every_operation
@pytest.mark.parametrize(
    ("make", "rest"),
    [
        (lambda: [X, X], ONCE_FOR_EACH + "[px.{op}(y) for y in x]."),
        (lambda: (X, None), ONCE_FOR_EACH + "[px.{op}(y) for y in x]."),
        (lambda: iter([X]), ONCE_FOR_EACH + "[px.{op}(y) for y in x]."),
        (lambda: {"w": X}, ONCE_FOR_EACH + "{{k: px.{op}(y) for k, y in x.items()}}."),
        (lambda: [1, np.float32(2)], "Pass np.asarray(x)."),
        (lambda: [[1, 2], [3]], ONCE_FOR_EACH + "[px.{op}(y) for y in x]."),
        (_Table, "Pass x.to_numpy()."),
    ],
)
def test_for_several_arrays_the_error_says_how(operation, make, rest):
    x = make()
    with pytest.raises(ValueError, match="Invalid type") as caught:
        operation(x)
    begin = f"Invalid type {type(x).__name__} received in array initialization. "
    assert str(caught.value) == begin + rest.format(op=operation.__name__)


def test_the_example_for_several_messages_names_the_peer():
    for op, peer in (("send", "dst"), ("recv_like", "src")):
        with pytest.raises(ValueError, match=rf"\[px\.{op}\(y, {peer}\) for y in x\]\.$"):
            as_source(op, [X, X])


@every_operation
@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.ones(2, np.longdouble), "float128 is not supported; bool, int8, "),
        (np.longdouble(3), "float128 is not supported"),
        (np.ones(2, np.clongdouble), "complex256 is not supported"),
        (np.ones(2, ml_dtypes.float8_e4m3), "float8_e4m3 is not supported"),
        (np.ones(2, "datetime64[s]"), r"datetime64\[s\] is not supported"),
        (np.array(["a"]), "<U1 is not supported"),
        (np.array([None]), "object is not supported"),
        (np.zeros(2, "f4,i8"), "is not supported"),
        (np.ones(2, ">f4"), r"dtype >f4 has its bytes swapped; pass x.astype\('float32'\)"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), r"would lose its mask; pass x\.filled\(value\)"),
        (np.ones((2, 2)).view(np.matrix), r"matrix would lose .* pass np\.asarray\(x\)"),
        (np.rec.array([(1.0,)]), "recarray would lose"),
    ],
)
def test_what_would_be_lost_or_misread_is_refused(operation, x, text):
    with pytest.raises(px.NotSupported, match=text) as caught:
        operation(x)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(operation.__name__)


def test_an_int_that_int64_cannot_hold_is_refused():
    with pytest.raises(OverflowError, match="9223372036854775808 may not fit into int64"):
        px.all_sum(2**63)


@every_operation
def test_out_is_returned_filled(operation):
    x = np.arange(6.0).reshape(2, 3)
    out = np.empty_like(x)
    assert operation(x, out=out) is out
    assert np.array_equal(out, x)
    if operation in (px.all_sum, px.all_max, px.all_min, px.broadcast):
        assert operation(x, out=x) is x
        view = x[:]
        assert operation(x, out=view) is view
    else:
        with pytest.raises(ValueError, match="memory in common with x; it must lie apart"):
            operation(x, out=x)
    assert operation(x.T, out=np.empty((3, 2))).shape == (3, 2)
    scalar = np.empty(())
    assert operation(2.5, out=scalar) is scalar
    assert scalar == 2.5


@every_operation
def test_an_out_that_does_not_fit_is_refused(operation):
    x = np.arange(6.0)
    frozen = np.empty(6)
    frozen.flags.writeable = False
    both = np.zeros(9)
    unaligned = np.zeros(49, np.uint8)[1:].view(float)
    refused = [
        (x, [0.0] * 6, TypeError, "plain numpy array or a tensor, not list"),
        (x.astype("uint16"), np.empty(6, dtype_of("bfloat16")), ValueError, "has uint16"),
        (x, np.ma.zeros(6), TypeError, "not MaskedArray"),
        (x, np.empty(5), ValueError, r"shape \(5,\); the result has \(6,\)"),
        (x, np.empty(6, "float32"), ValueError, "dtype float32; the result has float64"),
        (x, np.empty(12)[::2], ValueError, "C-contiguous"),
        (x, unaligned, ValueError, "aligned"),
        (x, frozen, ValueError, "no permission to be written to"),
        (both[:6], both[3:], ValueError, "memory in common with"),
    ]
    for source, out, error, text in refused:
        with pytest.raises(error, match=text):
            operation(source, out=out)
    assert both.any() == np.False_


@every_operation
def test_options_are_keywords_and_a_stream_is_mlx_s(operation):
    with pytest.raises(px.NotSupported, match=r"stream is for arrays of MLX, x is numpy\.ndarray"):
        operation(np.ones(2), stream="gpu")
    with pytest.raises(TypeError):
        operation(np.ones(2), 0, px.init())


@every_operation
def test_an_operation_can_be_waited_for_later(operation):
    x, out = np.arange(4.0), np.empty(4)
    work = operation(x, async_op=True)
    result = work.wait()
    assert np.array_equal(result, x)
    assert work.wait(timeout=0) is result
    assert work.done()
    assert operation(x, out=out, async_op=True).wait(5.0) is out
    if operation is not px.all_gather:
        assert operation(2.5, async_op=True).wait() == 2.5
    with pytest.raises(ValueError, match="timeout must be None or at least 0"):
        work.wait(-1)
    with pytest.raises(ValueError, match="received in array initialization"):
        operation([1.0], async_op=True)  # at once, not later


def test_alone_there_is_nobody_to_send_to():
    for call in (px.send, px.recv_like):
        for peer in (0, 1):
            with pytest.raises(ValueError, match=r"Cannot (send to|recv from) a singleton group"):
                call(np.ones(2), peer)
    with pytest.raises(ValueError, match="Cannot recv from a singleton group"):
        px.recv((2,), "float32", 0)


@every_operation
def test_a_wrong_group_or_timeout_is_refused(operation):
    with pytest.raises(TypeError, match=r"group must be a phalanx\.Group or None, not int"):
        operation(np.ones(2), group=3)
    for wrong, shown in [
        (-1, "-1"),
        (float("nan"), "nan"),
        ("1", "'1'"),
        ([1, 2], r"\[1, 2\]"),
        (np.ones(1), r"an array of shape \(1,\)"),
        (np.ones(2), r"an array of shape \(2,\)"),
    ]:
        text = f"^timeout must be None or at least 0 seconds, not {shown}$"
        with pytest.raises(ValueError, match=text):
            operation(np.ones(2), timeout=wrong)
        with pytest.raises(ValueError, match=text):
            px.init().timeout = wrong
    for right in (0, 1, 0.5, float("inf"), None, 10**30, True, np.float32(1), np.array(1)):
        operation(np.ones(2), timeout=right)


def test_a_root_outside_the_group_is_refused():
    for root in (1, -1):
        with pytest.raises(ValueError, match=f"Invalid root={root} for a group of size 1"):
            px.broadcast(np.ones(2), root)
    with pytest.raises(TypeError):
        px.broadcast(np.ones(2), 0.0)


def test_init_alone_gives_one_group_of_one():
    group = px.init()
    assert (group.rank(), group.size()) == (0, 1)
    assert px.init() is group
    assert px.init(backend="ring") is group
    group.barrier()
    with pytest.raises(px.DistributedError, match="Cannot split the distributed group further"):
        group.split(0)
    with pytest.raises(px.NotConfigured, match="PHALANX_CHANNEL is not set"):
        px.init(strict=True)


def test_a_closed_group_says_so_and_alone_init_makes_a_new_one():
    with px.init() as group:
        assert repr(group) == "<phalanx.Group rank 0 of 1>"
    assert repr(group) == "<phalanx.Group rank 0 of 1, closed>"
    for operation in (lambda: px.all_sum(np.ones(2)), group.barrier):
        with pytest.raises(px.DistributedError, match="closed"):
            operation()
    group.close()
    assert px.init() is group
    assert px.all_sum(1) == 1


def test_backends_are_named_as_in_mlx():
    with pytest.raises(ValueError, match=r"only valid values for backend .* 'bogus' was provided"):
        px.init(backend="bogus")
    with pytest.raises(ValueError, match="Did you mean 'ring'"):
        px.init(backend="rign")
    for backend in ("nccl", "jaccl"):
        with pytest.raises(px.NotSupported, match=f"'{backend}' is not in this release"):
            px.init(backend=backend)
    available = [name for name in ("any", "ring", "nccl", "bogus") if px.is_available(name)]
    assert available == ["any", "ring"]


def test_other_options_of_init_are_checked():
    with pytest.raises(ValueError, match="only supported with backend='jaccl'"):
        px.init(all_gather_factory=print)
    with pytest.raises(TypeError, match="callable"):
        px.init(backend="jaccl", all_gather_factory=3)
    with pytest.raises(ValueError, match="timeout must be None or at least 0 seconds, not -1"):
        px.init(timeout=-1)
