"""Pickle values that use the names of the loading process."""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from traceback import format_exception_only
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from cloudpickle import Pickler as CloudPickler

MAIN = "__main__"
# Objects by which a dataclass marks its fields; each process has one of each.
_SENTINELS = {id(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY")}
# Attributes that differ between processes though the source is the same: places in the source,
# state from pickling and importing, the order of a set, and whether a text is the same object as
# that of the base class.
_AROUND = {"__firstlineno__", "__static_attributes__", "__abstractmethods__", "__slotnames__"}
_AROUND |= {"__globals__", "_cloudpickle_submodules", "__module__"}

_FILENAME = 10  # index of the file name in the arguments of `CodeType`, since Python 3.8
# Smaller arrays travel within the pickle, because a frame of their own costs more than the copy.
# The number is jupyter_client's (`jupyter_client.session.MAX_BYTES`).
_OWN_FRAME_NBYTES = 1024

_ALIGNMENT = 8  # bytes: what operations need, and what a large message has
_MOST_CHARACTERS = 300  # of an error's text


class ValuePickler(CloudPickler):  # type: ignore[misc]
    """Pickle as cloudpickle does, but use the loading process's names.

    A function of a cell uses the names of the cells there: `rank` is the number of the rank that
    calls it. A class of a cell becomes the class of the same name there if both have the same
    content. A class that comes from several ranks, or several times, is one class there. The memory
    of tensors is not copied.

    One pickler has one memo: an object that occurs twice is sent once and is one object there.

    Parameters
    ----------
    file : object with ``write``
        Gets the pickle.
    on_buffer : callable
        Gets the memory of an array; if it returns True, the memory is put into the pickle.
    """

    def __init__(self, file: Any, on_buffer: Callable[[memoryview], bool | None]) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda buffer: on_buffer(buffer.raw()))

    # Returns `object.__reduce__` values; pickle also takes a sixth item.
    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__module__ == "torch.storage":
            return _of_storage(obj)
        if isinstance(obj, io.TextIOWrapper):
            return obj.__reduce_ex__(5)  # raises; cloudpickle would read the whole file
        if id(obj) in _SENTINELS:
            return _SENTINELS[id(obj)]
        if isinstance(obj, CodeType):
            return _of_code(obj)
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced  # pickled by name
        if isinstance(obj, FunctionType):
            return self._of_function(obj, reduced)
        return self._of_class(obj, reduced)

    def _of_function(self, function: FunctionType, reduced: Any) -> Any:
        """Make a function use its module's names there; cloudpickle would send them."""
        module = str(function.__globals__.get("__name__"))
        # A decorator's wrapper has the globals of its library.
        is_modules = getattr(sys.modules.get(module), "__dict__", None) is function.__globals__
        if module != MAIN and not is_modules:
            return reduced
        make, (code, _names, *args), (attributes, slots), *_, fill = reduced
        state = fill, (attributes, {**slots, "__globals__": {}})
        return make, (code, _Namespace(module), *args), state, None, None, _fill_function

    def _of_class(self, cls: type, reduced: Any) -> Any:
        make, (*args, _tracker, extra), state, *_, fill = reduced
        digest = _digest(cls)
        # cloudpickle finds a class that it has made by its tracker id, which is random; use a
        # digest.
        made = make, (*args, digest, extra), cls.__qualname__, digest
        return _class_here, made, (fill, state), None, None, _fill_class


def _of_code(code: CodeType) -> Any:
    """Keep the file name of code for tracebacks.

    cloudpickle drops the file name from version 3.1.3 on.
    """
    make, args = CloudPickler.dispatch_table[CodeType](code)
    return make, (*args[:_FILENAME], code.co_filename, *args[_FILENAME + 1 :])


class _Digester(ValuePickler):
    """Pickle the content of a class, without its place and origin."""

    def persistent_id(self, obj: Any) -> Any:
        """Write each text in full.

        Processes differ in which equal texts are one object.
        """
        return obj.encode(errors="surrogatepass") if type(obj) is str else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            anywhere = obj.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
            return self.dispatch_table[CodeType](anywhere)
        if isinstance(obj, TypeVar):
            return str, (obj.__name__,)
        return super().reducer_override(obj)

    def _of_function(self, function: FunctionType, reduced: Any) -> Any:
        make, (code, _names, *args), (attributes, slots), *rest = reduced
        said = {name: value for name, value in slots.items() if name not in _AROUND}
        return make, (code, *args), (attributes, said), *rest

    def _of_class(self, cls: type, reduced: Any) -> Any:
        make, (*args, _tracker, _extra), (attributes, slots), *rest = reduced
        said = {name: value for name, value in attributes.items() if name not in _AROUND}
        return make, (*args, cls.__qualname__), (said, slots), *rest


def _digest(cls: type) -> str:
    """Return a digest of a class's content, used as its name."""
    content = hashlib.sha256()
    _Digester(SimpleNamespace(write=content.update), lambda memory: True).dump(cls)
    return content.hexdigest()


def _class_here(make: Callable[..., type], args: Any, qualname: str, digest: str) -> type:
    """Return this process's equal class, or make one without attributes."""
    found = _class_of_cells(qualname)
    if found is not None and _says(found, digest):
        return found
    made = make(*args)
    made.__qualname__ = qualname
    return made


def _says(cls: type, digest: str) -> bool:
    try:
        return _digest(cls) == digest
    except Exception:  # noqa: BLE001 - an attribute cannot be pickled, so the class differs
        return False


def _fill_class(cls: type, state: tuple[Callable[..., object], Any]) -> None:
    if _class_of_cells(cls.__qualname__) is not cls:  # the class of a cell is complete
        fill, attributes = state
        fill(cls, attributes)


def _class_of_cells(qualname: str) -> type | None:
    found: Any = sys.modules[MAIN]
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and found.__module__ == MAIN else None


class _Namespace:
    """Placeholder for a module's names; loaded, it is the module's dict."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return names_of, (self._module,)


def names_of(module: str) -> dict[str, Any]:
    """Return the names of a module of this process; cells have ``__main__``."""
    return vars(importlib.import_module(module))


def _fill_function(function: FunctionType, state: tuple[Callable[..., object], Any]) -> None:
    fill, attributes = state
    fill(function, attributes)
    if function.__globals__.get("__name__") == MAIN:
        function.__globals__["__builtins__"] = builtins  # cloudpickle has put in their dict


def _of_storage(storage: Any) -> Any:
    """Reduce a tensor's memory to a buffer: torch would copy it."""
    torch = importlib.import_module("torch")
    if isinstance(storage, torch.storage.TypedStorage):  # torch makes one for each tensor
        return _typed_storage, (storage._untyped_storage, storage.dtype)
    if type(storage) is not torch.UntypedStorage or storage.device.type != "cpu":
        return NotImplemented
    memory: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    return _untyped_storage, (pickle.PickleBuffer(memory),)


def _typed_storage(untyped: Any, dtype: Any) -> Any:
    torch = importlib.import_module("torch")
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped_storage(buffer: Any) -> Any:
    torch = importlib.import_module("torch")
    memory = np.frombuffer(buffer, np.uint8)
    if not memory.size:
        return torch.UntypedStorage(0)
    return torch.from_numpy(memory).untyped_storage()


class _TooLarge(Exception):  # than the limit
    pass


class _Limited(io.BytesIO):
    """Buffer for a pickle that counts all bytes against a limit."""

    def __init__(self, max_nbytes: int | None) -> None:
        super().__init__()
        self._left_nbytes = max_nbytes
        self.buffers: list[memoryview] = []

    def write(self, data: Any, /) -> int:
        self._count(memoryview(data).nbytes)
        return super().write(data)

    def keep(self, memory: memoryview) -> bool:
        """Keep an array's memory as a buffer; True if too small."""
        if memory.nbytes < _OWN_FRAME_NBYTES:
            return True
        self._count(memory.nbytes)
        self.buffers.append(memory)
        return False

    def _count(self, nbytes: int) -> None:
        if self._left_nbytes is not None:
            self._left_nbytes -= nbytes
            if self._left_nbytes < 0:
                raise _TooLarge


def pack_values(values: Mapping[str, object], max_nbytes: int | None = None) -> list[memoryview]:
    """Pack named values into buffers; the first buffer is a pickle.

    The memory of arrays is not copied. An object that two values share is sent once. The name of
    the value of a cell is ``""``. ``max_nbytes`` limits the size of all buffers.

    Raises
    ------
    TypeError
        A value cannot be pickled; the text names the value and its type.
    ValueError
        The values take more than ``max_nbytes``.
    KeyboardInterrupt
        A stop came, or the value's own code raised it; the text names the value.

    Examples
    --------
    >>> unpack_values(pack_values({"a": [1, "two"], "b": 3}), "here")
    {'a': [1, 'two'], 'b': 3}
    """
    file = _Limited(max_nbytes)
    pickler = ValuePickler(file, file.keep)
    for name, value in values.items():
        named = _name(name, value)
        try:
            pickler.dump((name, named))
            pickler.dump(value)
        except _TooLarge:
            msg = f"{named} takes more than {(max_nbytes or 0) >> 20} MiB; bind it to a name and pull that"
            raise ValueError(msg) from None
        except KeyboardInterrupt as error:  # a stop, or the value's own code
            msg = f"{named} was not sent"
            raise KeyboardInterrupt(msg) from error
        except BaseException as error:  # packing runs the value's own code
            msg = (
                f"{named} cannot be sent: {_say(error)}; send arrays, numbers or text of it instead"
            )
            raise TypeError(msg) from error
    return [file.getbuffer(), *file.buffers]


def aligned(memory: Any) -> Any:
    """Return a message's memory, or a copy at an aligned address.

    ZeroMQ leaves a message of a few KB where it lies among others. numpy takes an array at any
    address, but an operation writes to an aligned one only.
    """
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return bytearray(memory) if address % _ALIGNMENT else memory


def unpack_values(buffers: Sequence[Any], where: str) -> dict[str, Any]:
    """Load all values, as `load_each` does."""
    return dict(load_each(buffers, where))


def load_each(buffers: Sequence[Any], where: str) -> Iterator[tuple[str, Any]]:
    """Load values that `pack_values` has packed; arrays use the memory of ``buffers``.

    Loading a value may run code of cells (``__setstate__``), which may need the names before it.
    The buffers must be from a process of ours: loading a pickle runs code that the pickle names.
    Errors name the place ``where``: ``"here"``, or ``"on the rank"``.

    Raises
    ------
    TypeError
        A value cannot be loaded here; the text names the value and its type.
    KeyboardInterrupt
        A stop came, or the value's own code raised it; the text names the value.
    """
    file = io.BytesIO(buffers[0])
    unpickler = pickle.Unpickler(file, buffers=map(aligned, buffers[1:]))  # noqa: S301 - of ours
    while file.tell() < len(buffers[0]):
        name, named = unpickler.load()
        try:
            value = unpickler.load()
        except KeyboardInterrupt as error:  # a stop, or the value's own code
            msg = f"{named} was not loaded {where}"
            raise KeyboardInterrupt(msg) from error
        except BaseException as error:  # loading runs the value's own code
            if isinstance(error, ImportError | AttributeError):
                remedy = (
                    f"install what defines it {where} too, or send arrays, numbers or text of it"
                )
            else:
                remedy = "send arrays, numbers or text of it instead"
            msg = f"{named} cannot be loaded {where}: {_say(error)}; {remedy}"
            raise TypeError(msg) from error
        yield name, value


def _name(name: str, value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{name or 'the value'} (type {module}{kind.__qualname__})"


def _say(error: BaseException) -> str:
    """Return the type and first text line of an error."""
    lines = "".join(format_exception_only(error)).splitlines()
    return next(line for line in lines if line[:1] != " ")[:_MOST_CHARACTERS]
