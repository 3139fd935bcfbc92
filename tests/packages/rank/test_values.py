"""Named values as the buffers of a message, and what is said of those that cannot be."""

from __future__ import annotations

import sys
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from phalanx.rank.values.pickling import pack_values, unpack_values

MIB = 1 << 20


def test_large_arrays_have_a_buffer_of_their_own_and_small_ones_none():
    large, small = np.arange(MIB), np.arange(3)
    shared = [1]
    packed = pack_values({"a": {"deep": large}, "b": [small] * 100, "c": shared, "d": shared})
    assert len(packed) == 2
    assert packed[0].nbytes < 4096
    assert np.shares_memory(np.frombuffer(packed[1], np.int64), large)
    there = unpack_values([bytearray(buffer) for buffer in packed], "here")
    assert (there["a"]["deep"] == large).all()
    assert there["c"] is there["d"]
    assert there["a"]["deep"].flags.writeable
    assert there["b"][0].flags.writeable


@pytest.mark.parametrize(
    "dtype", ["M8[D]", "m8[s]", [("t", "M8[s]"), ("x", "i4")], "O", ml_dtypes.bfloat16]
)
@pytest.mark.parametrize("n", [3, 200_000])
def test_arrays_that_give_no_buffer_arrive_and_can_be_written_to(dtype, n):
    given = np.zeros(n, dtype)
    packed = pack_values({"x": given, "y": [given.copy()]})
    there = unpack_values([bytearray(buffer) for buffer in packed], "here")
    for array in (there["x"], there["y"][0]):
        assert array.dtype == given.dtype
        assert (array == given).all()
        assert array.flags.writeable


def test_a_value_that_cannot_be_sent_is_named_with_its_type():
    with pytest.raises(TypeError) as caught:
        pack_values({"a": 1, "gen": (i for i in range(3))})
    assert str(caught.value) == (
        "gen (type generator) cannot be sent: TypeError: cannot pickle 'generator' object; "
        "send arrays, numbers or text of it instead"
    )

    class Odd:
        def __reduce__(self):
            raise OSError(*["one\ntwo"])

    with pytest.raises(TypeError) as caught:
        pack_values({"": [Odd()]})
    assert str(caught.value).startswith("the value (type list) cannot be sent: OSError: one; ")


class Unloadable:
    """Refuses to be loaded."""

    def __init__(self, error):
        self.error = error

    def __setstate__(self, state):
        raise state["error"]


@pytest.mark.parametrize(
    "error", [ValueError("no\nmore"), SystemExit(3), RecursionError("no"), GeneratorExit("no")]
)
def test_a_value_that_cannot_be_loaded_is_named_with_its_type(error):
    packed = pack_values({"a": 1, "odd": Unloadable(error)})
    with pytest.raises(TypeError) as caught:
        unpack_values(packed, "on the rank")
    said = {"ValueError": "ValueError: no", "SystemExit": "SystemExit: 3"}
    text = said.get(type(error).__name__, f"{type(error).__name__}: no")
    kind = f"{Unloadable.__module__}.Unloadable"
    assert str(caught.value) == (
        f"odd (type {kind}) cannot be loaded on the rank: {text}; "
        "send arrays, numbers or text of it instead"
    )


def test_a_module_that_is_missing_where_a_value_comes_is_told(monkeypatch):
    module = ModuleType("only_there")
    exec("class Thing: pass", vars(module))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "only_there", module)
        packed = pack_values({"thing": module.Thing()})
    with pytest.raises(TypeError) as caught:
        unpack_values(packed, "here")
    assert str(caught.value) == (
        "thing (type only_there.Thing) cannot be loaded here: ModuleNotFoundError: "
        "No module named 'only_there'; install what defines it here too, "
        "or send arrays, numbers or text of it"
    )


@pytest.mark.parametrize("value", [np.zeros(2 * MIB, np.uint8), bytes(2 * MIB), [0.5] * MIB])
def test_a_value_that_is_larger_than_was_asked_for_is_refused(value):
    with pytest.raises(ValueError, match="takes more than 1 MiB; bind it to a name and pull that"):
        pack_values({"": value}, MIB)
    pack_values({"": value[:1000]}, MIB)
