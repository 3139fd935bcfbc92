"""Values of cells as bytes: what is shared stays shared, arrays are not copied, what cannot be is named."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from phalanx.rank.values.copying import why_unpicklable
from phalanx.rank.values.pickling import pack_values, unpack_values

MIB = 1 << 20


def through(values):
    """Pack values and load them from copies of the memory, as on another rank."""
    copies = [np.frombuffer(bytearray(buffer), np.uint8) for buffer in pack_values(values)]
    return load(copies)


def load(buffers):
    return unpack_values(buffers, "here")


def test_large_arrays_have_a_buffer_of_their_own_and_small_ones_none():
    large, small = np.arange(MIB), np.arange(3)
    shared = [1]
    values = {"a": {"deep": large}, "b": [small] * 100, "c": shared, "d": shared, "e": large}
    packed = pack_values(values)
    assert len(packed) == 2
    assert packed[0].nbytes < 4096
    assert np.shares_memory(np.frombuffer(packed[1], np.int64), large)
    there = load([bytearray(buffer) for buffer in packed])
    assert (there["a"]["deep"] == large).all()
    assert there["e"] is there["a"]["deep"]
    assert there["c"] is there["d"]
    assert there["a"]["deep"].flags.writeable
    assert there["b"][0].flags.writeable


def test_arrays_of_a_message_at_an_odd_address_can_be_written_to_by_operations():
    """ZeroMQ leaves one of a few KB among others; a large one is not copied."""
    data, *memory = pack_values({"x": np.arange(200.0)})
    odd = memoryview(bytearray(b"-" + memory[0]))[1:]
    x = load([data, odd])["x"]
    assert x.flags.aligned
    assert x.flags.writeable
    assert x.sum() == 19900.0


@pytest.mark.parametrize(
    "dtype", ["M8[D]", "m8[s]", [("t", "M8[s]"), ("x", "i4")], "O", ml_dtypes.bfloat16]
)
@pytest.mark.parametrize("n", [3, 200_000])
def test_arrays_that_give_no_buffer_arrive_and_can_be_written_to(dtype, n):
    given = np.zeros(n, dtype)
    there = through({"x": given, "y": [given.copy()]})
    for array in (there["x"], there["y"][0]):
        assert array.dtype == given.dtype
        assert (array == given).all()
        assert array.flags.writeable


def test_a_value_that_cannot_be_sent_is_named_with_its_type(tmp_path):
    assert not why_unpicklable([1, np.ones(3)])
    assert why_unpicklable([1, (i for i in range(3))]) == "cannot pickle 'generator' object"
    with pytest.raises(TypeError) as caught:
        pack_values({"a": 1, "gen": (i for i in range(3))})
    assert str(caught.value) == (
        "gen (type generator) cannot be sent: TypeError: cannot pickle 'generator' object; "
        "send arrays, numbers or text of it instead"
    )
    with (
        (tmp_path / "file").open("w") as file,
        pytest.raises(TypeError, match=r"cannot pickle '(_io\.)?TextIOWrapper'"),
    ):
        pack_values({"file": file})

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
        load(packed)
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


def test_a_tensors_memory_is_not_copied_and_tensors_that_share_it_still_do():
    torch = pytest.importorskip("torch")
    whole = torch.zeros(MIB, dtype=torch.float32)
    value = {
        "whole": whole,
        "part": whole[2:4],
        "none": torch.zeros(0),
        "half": whole[:1024].bfloat16(),
    }
    data, *buffers = pack_values(value)
    assert data.nbytes < 4096
    assert sum(buffer.nbytes for buffer in buffers) == 4 * MIB + 2 * 1024
    there = through(value)
    there["whole"][2] = 7
    assert there["part"].tolist() == [7, 0]
    assert there["none"].tolist() == []
    assert there["half"].dtype == torch.bfloat16


def test_an_optimizer_steps_the_parameters_of_the_model_that_came_with_it():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(names):
        names["opt"].zero_grad()
        names["model"](torch.ones(4, 3)).sum().backward()
        names["opt"].step()
        return [parameter.tolist() for parameter in names["model"].parameters()]

    here = {"model": model, "opt": opt}
    before = step(here)  # so that the optimizer has moments to send
    there = through(here)
    after = step(there)
    assert after != before
    assert after == step(here)


@pytest.fixture
def cells(monkeypatch):
    """Become a process whose cells have run some code; its names."""

    def become(code=""):
        module = ModuleType("__main__")
        module.__builtins__ = builtins
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(code, vars(module))
        return vars(module)

    return become


def test_a_function_uses_the_names_of_the_cells_where_it_is_loaded(cells):
    there = cells(
        "rank = 1\ndef who(): return rank\n"
        "def outer(k):\n    def inner(): return rank + k\n    return inner\nadd = outer(10)"
    )
    packed = pack_values({name: there[name] for name in ("who", "add")})
    here = cells("rank = 2")
    loaded = load(packed)
    assert (loaded["who"](), loaded["add"]()) == (2, 12)
    assert loaded["who"].__globals__ is here
    assert here == {**here, "rank": 2, "__builtins__": builtins}


CLASSES = """
import collections, dataclasses, enum, typing, abc
T = typing.TypeVar("T")
@dataclasses.dataclass
class Config:
    lr: float
    sizes: list = dataclasses.field(default_factory=list)
    def total(self): return sum(self.sizes)
class Child(Config):
    class Inner: pass
    def total(self): return super().total() + 1
class Colour(enum.Enum):
    RED = 1
class Box(typing.Generic[T]): pass
class Some(abc.ABC):
    @abc.abstractmethod
    def one(self): pass
    @abc.abstractmethod
    def two(self): pass
class Whole(Some):
    def one(self): pass
    def two(self): pass
Point = collections.namedtuple("Point", "x y")
made = dict(config=Config(1.0, [2]), child=Child(2.0, [3]), inner=Child.Inner(), colour=Colour.RED, box=Box(),
            whole=Whole(), point=Point(1, 2))
"""


def test_instances_come_with_their_classes_and_of_several_ranks_they_are_one(cells):
    packed = [pack_values(cells(f"\n# rank {rank}{CLASSES}")["made"]) for rank in range(2)]
    cells()
    one, other = (load(each) for each in packed)
    assert one["config"].total() == 2
    assert one["child"].total() == 4
    assert one["config"] == other["config"]
    assert one["colour"] is other["colour"]
    assert one["inner"].__class__.__qualname__ == "Child.Inner"
    assert one["point"] == (1, 2)
    assert {name for name in one if type(one[name]) is not type(other[name])} == set()


def test_a_class_that_is_here_is_taken_only_if_it_says_the_same_and_is_left_as_it_is(cells):
    packed = pack_values(cells(CLASSES)["made"])
    here = cells(CLASSES)
    before = {name: dict(vars(here[name])) for name in ("Config", "Child", "Colour", "Point")}
    loaded = load(packed)
    assert {
        name for name, value in here["made"].items() if type(loaded[name]) is not type(value)
    } == set()
    assert loaded["colour"] is here["Colour"].RED
    assert {name: dict(vars(here[name])) for name in before} == before
    there = cells("class Config:\n    version = 2\nold, kind = Config(), Config")
    packed = pack_values({"old": there["old"], "kind": there["kind"]})
    here = cells("class Config:\n    version = 1")
    loaded = load(packed)
    assert loaded["old"].version == 2
    assert type(loaded["old"]) is loaded["kind"]
    assert here["Config"].version == 1


def test_a_class_goes_there_and_back(cells):
    there = cells(CLASSES)
    packed = pack_values(there["made"])
    cells()
    packed = pack_values(load(packed))
    sys.modules["__main__"].__dict__.update(there)
    back = load(packed)
    assert {name for name in back if type(back[name]) is not type(there["made"][name])} == set()


def test_a_dataclass_that_came_can_be_inherited_from(cells):
    packed = pack_values({"Config": cells(CLASSES)["Config"]})
    here = cells("import dataclasses")
    here.update(load(packed))
    exec("@dataclasses.dataclass\nclass More(Config):\n    more: int = 1", here)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'lr'"):
        here["More"]()
