"""Values of cells as bytes: what is shared stays shared, and arrays are not copied."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType

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


def test_an_array_that_two_names_share_is_sent_once_and_not_copied():
    array = np.arange(MIB, dtype=np.uint8)
    data, *buffers = pack_values({"a": array, "b": {"inside": array}})
    assert data.nbytes < 1024
    (memory,) = buffers
    assert np.shares_memory(np.frombuffer(memory, np.uint8), array)
    there = through({"a": array, "b": {"inside": array}})
    assert there["b"]["inside"] is there["a"]


def test_a_check_says_what_a_pack_would():
    assert not why_unpicklable([1, np.ones(3)])
    value = [1, (i for i in range(3))]
    assert why_unpicklable(value) == "cannot pickle 'generator' object"
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        pack_values({"a": 1, "b": value})


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


def test_a_file_is_not_read_to_be_sent(tmp_path):
    path = tmp_path / "text"
    path.write_text("text")
    with (
        path.open() as file,
        pytest.raises(TypeError, match=r"cannot pickle '(_io\.)?TextIOWrapper'"),
    ):
        pack_values({"file": file})
