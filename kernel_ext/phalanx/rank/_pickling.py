"""Values of cells as bytes: what pickle does, and functions and classes that a cell has defined.

Pure: a namespace in, bytes out, and back. Who sends them is its user's.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import io
import marshal
import pickle
import sys
from collections.abc import Sequence
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    ModuleType,
)
from typing import Any

__all__ = ["pack", "unpack"]

Namespace = dict[str, Any]
_MAIN = "__main__"
# What a class has of itself, whoever makes it.
_CLASS_OWN = {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "_abc_impl"}
# By which a dataclass knows its fields.
_MARKS = {
    id(getattr(dataclasses, name)): name
    for name in ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")
    if hasattr(dataclasses, name)
}


class _Pickler(pickle.Pickler):
    """pickle that sends what a cell has defined by value, where it is not known by its name there.

    ``top`` is the value itself; other functions and classes of cells are found by their names on
    the other side, as they came before, and so stay the same objects.
    """

    def __init__(self, file: io.BytesIO, namespace: Namespace, top: object, buffers: Any) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers)
        self._namespace = namespace
        self._top = top

    # The return values are `object.__reduce__`'s, of which pickle takes a sixth as well.
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, MappingProxyType):
            return _read_only, (dict(obj),)
        if id(obj) in _MARKS:  # of which there is one in a process
            return getattr, (dataclasses, _MARKS[id(obj)])
        if isinstance(obj, CodeType):
            return marshal.loads, (marshal.dumps(obj),)
        if not isinstance(obj, FunctionType | type) or obj.__module__ != _MAIN:
            return NotImplemented
        name: str = obj.__name__
        if obj is not self._top and name in self._namespace and self._namespace[name] is obj:
            return _named, (name,)
        return _of_function(obj) if isinstance(obj, FunctionType) else _of_class(obj)


def _of_function(function: FunctionType) -> tuple[Any, ...]:
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    state = {
        "__defaults__": function.__defaults__,
        "__kwdefaults__": function.__kwdefaults__,
        "__annotations__": function.__annotations__,
        "__doc__": function.__doc__,
        "__qualname__": function.__qualname__,
        "__dict__": function.__dict__,
    }
    # In two steps: a function may be in its own closure, or in that of its class's methods.
    make = (function.__code__, function.__name__, function.__globals__.get("__name__", _MAIN))
    return _bare_function, make, (state, cells), None, None, _fill_function


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # still empty
        return ()


def _of_class(cls: type) -> tuple[Any, ...]:
    skip = _CLASS_OWN | {name for name, v in vars(cls).items() if type(v) is GetSetDescriptorType}
    state = {name: value for name, value in vars(cls).items() if name not in skip}
    state["__doc__"] = cls.__doc__
    make = (type(cls), cls.__name__, cls.__qualname__, cls.__bases__)
    return _bare_class, make, state, None, None, _fill_class


def _main() -> Namespace:
    return vars(sys.modules[_MAIN])


def _named(name: str) -> Any:
    try:
        return _main()[name]
    except KeyError:
        msg = f"it needs {name}"
        raise NameError(msg) from None


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


def _bare_function(code: CodeType, name: str, module: str) -> FunctionType:
    closure = tuple(CellType() for _ in code.co_freevars)
    # A decorator's wrapper has the globals of its library.
    namespace = vars(importlib.import_module(module))
    namespace.setdefault("__builtins__", builtins)
    return FunctionType(code, namespace, name, None, closure)


def _fill_function(
    function: FunctionType, state: tuple[dict[str, Any], list[tuple[Any, ...]]]
) -> None:
    attributes, cells = state
    for cell, contents in zip(function.__closure__ or (), cells, strict=True):
        if contents:
            cell.cell_contents = contents[0]
    function.__module__ = _MAIN
    for name, value in attributes.items():
        setattr(function, name, value)


def _bare_class(meta: type, name: str, qualname: str, bases: tuple[type, ...]) -> type:
    made: type = meta(name, bases, {"__module__": _MAIN, "__qualname__": qualname})
    return made


def _fill_class(cls: type, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(cls, name, value)


def pack(value: object, namespace: Namespace) -> tuple[bytes, list[memoryview]]:
    """Return a value as bytes, and the memory of its arrays, which is not copied.

    Raises
    ------
    Exception
        Whatever an object says that cannot be pickled.

    Examples
    --------
    >>> unpack(*pack([1, "two"], {}))
    [1, 'two']
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, namespace, value, buffers.append).dump(value)
    return file.getvalue(), [buffer.raw() for buffer in buffers]


def unpack(data: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Return what was packed; arrays live in ``buffers``."""
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - from a rank of our own world
