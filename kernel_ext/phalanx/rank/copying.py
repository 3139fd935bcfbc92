"""Copy variables from a living rank to a replaced one.

`ValuePickler` is also the pickler for values that the notebook and its ranks exchange.
"""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from cloudpickle import Pickler as CloudPickler

from phalanx.distributed.operations.sealed import SealedPair

from .errors import name_of, text_of

MAIN = "__main__"
# Objects by which a dataclass marks its fields; each process has one of each.
_SENTINELS = {id(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY")}
# Attributes that differ between processes though the source is the same: places in the source,
# state from pickling and importing, the order of a set, and whether a text is the same object as
# that of the base class.
_AROUND = {"__firstlineno__", "__static_attributes__", "__abstractmethods__", "__slotnames__"}
_AROUND |= {"__globals__", "_cloudpickle_submodules", "__module__"}

_FILENAME = 10  # index of the file name in the arguments of `CodeType`, since Python 3.8
Namespace = dict[str, Any]
# Names that phalanx and IPython have bound on each rank.
_OWN = {"rank", "size", "world", "px", "np", "In", "Out", "exit", "quit", "get_ipython", "open"}

_WHY_CHARACTERS = 160
_OP = "restart --from"


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
        """Return the way to rebuild an object."""
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
        """Return the content of an object, without its place."""
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
    """Reduce a tensor's memory to a buffer.

    torch would copy the memory into the pickle.
    """
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


def check(value: object) -> None:
    """Raise the error of `pack` without memory for the pickle.

    Raises
    ------
    Exception
        Any error of an object that cannot be pickled.
    """
    ValuePickler(SimpleNamespace(write=len), lambda memory: None).dump(value)


def pack(values: Mapping[str, object]) -> tuple[memoryview, list[memoryview]]:
    """Pack named values into a pickle and the memory of their arrays.

    The memory of arrays is not copied. An object that two values share is sent once and is shared
    on the other side too.

    Raises
    ------
    Exception
        Any error of an object that cannot be pickled.

    Examples
    --------
    >>> dict(unpack(*pack({"a": [1, "two"], "b": 3})))
    {'a': [1, 'two'], 'b': 3}
    """
    buffers: list[memoryview] = []
    file = io.BytesIO()
    pickler = ValuePickler(file, buffers.append)
    for item in values.items():
        pickler.dump(item)
    return file.getbuffer(), buffers


def unpack(data: Any, buffers: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield packed values with their names; arrays use the memory of ``buffers``.

    Loading a value may run code of cells (``__setstate__``), which may need the names before it.
    """
    file = io.BytesIO(data)
    nbytes = file.getbuffer().nbytes
    unpickler = pickle.Unpickler(file, buffers=buffers)  # noqa: S301 - from a rank of our world
    while file.tell() < nbytes:
        yield unpickler.load()


class CopyReport(NamedTuple):
    """Number of copied names, and the reason for each other name."""

    copied: int
    problems: dict[str, str]


class _ParcelHeader(msgspec.Struct, frozen=True, tag=True):
    """Header of a pickle of names and ``n_buffers`` buffers of their arrays.

    ``is_whole``: this parcel replaces all parcels before.
    """

    is_whole: bool
    n_buffers: int


class _End(msgspec.Struct, frozen=True, tag=True):
    """End of a copy: ``is_kept`` says whether the last parcel is kept.

    ``problems`` has the reason for each name that was not copied.
    """

    is_kept: bool
    problems: dict[str, str]


def copy_names(
    namespace: Namespace,
    hidden: Mapping[str, object],
    source: int,
    ranks: Collection[int],
    rank: int,
) -> CopyReport:
    """Copy the user's names of ``source`` to ``ranks``.

    ``source`` and all ``ranks`` call this function. The names travel in one pickle, so that objects
    shared by two names are shared on the other side too: an optimizer has the parameters of the
    model that came with it. Names that cannot be pickled, or cannot be loaded on one of ``ranks``,
    are left out, with the reason; so are the names that IPython had put there (``hidden``).
    """
    if rank == source:
        return _give(namespace, hidden, [SealedPair(peer, _OP) for peer in sorted(ranks)])
    return _take(namespace, SealedPair(source, _OP))


def _user_names(namespace: Namespace, hidden: Mapping[str, object]) -> Namespace:
    """Return the user's names: modules, then classes, functions, and the rest.

    Values are loaded in this order, because code that loading runs may need the names before.
    """
    names = {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_")
        and name not in _OWN
        and (name not in hidden or hidden[name] is not value)
    }

    def order(name: str) -> int:
        kinds = (ModuleType, type, FunctionType)
        return next((at for at, kind in enumerate(kinds) if isinstance(names[name], kind)), 3)

    return {name: names[name] for name in sorted(names, key=order)}


def _give(
    namespace: Namespace, hidden: Mapping[str, object], takers: Sequence[SealedPair]
) -> CopyReport:
    names, problems = _user_names(namespace, hidden), dict[str, str]()

    def leave_out(why_not: Callable[[str], str]) -> None:
        for name in list(names):
            if why := why_not(name):
                problems[name] = why
                del names[name]

    leave_out(lambda name: _why_unpicklable(names[name]))
    why = _offer(names, takers, is_whole=True)
    if why:
        # A pickle that fails half-way leaves objects half-made, also for the names after it. So try
        # each name alone, and then send the names that can be loaded together again.
        leave_out(lambda name: _offer({name: names[name]}, takers, is_whole=False))
        why = _offer(names, takers, is_whole=True)
    if why:
        problems.update(dict.fromkeys(names, why))
    for taker in takers:
        taker.send(msgspec.msgpack.encode(_End(not why, problems)))
    return CopyReport(0 if why else len(names), problems)


def _why_unpicklable(value: object) -> str:
    try:
        check(value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any object may refuse in its own way
        return _why(error)
    return ""


def _offer(names: Namespace, takers: Sequence[SealedPair], *, is_whole: bool) -> str:
    """Send names to ranks; return the first error or ""."""
    try:
        data, buffers = pack(names)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        return _why(error)
    parcel = msgspec.msgpack.encode(_ParcelHeader(is_whole, len(buffers)))
    for taker in takers:
        for memory in (parcel, data, *buffers):
            taker.send(memory)
    answers = [taker.recv().tobytes().decode() for taker in takers]
    return next(filter(None, answers), "")


def _take(namespace: Namespace, giver: SealedPair) -> CopyReport:
    bound: set[str] = set()

    def unbind() -> None:
        for name in bound:
            namespace.pop(name, None)
        bound.clear()

    while isinstance(
        message := msgspec.msgpack.decode(giver.recv(), type=_ParcelHeader | _End), _ParcelHeader
    ):
        if message.is_whole:
            unbind()
        why = _load(namespace, bound, message, giver)
        giver.send(why.encode())
    if not message.is_kept:
        unbind()
    return CopyReport(len(bound), message.problems)


def _load(namespace: Namespace, bound: set[str], parcel: _ParcelHeader, giver: SealedPair) -> str:
    """Receive a parcel and bind its names; return the error or ""."""
    data, *buffers = [giver.recv() for _ in range(1 + parcel.n_buffers)]
    try:
        for name, value in unpack(data, buffers):
            namespace[name] = value
            bound.add(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        return _why(error)
    return ""


def _why(error: BaseException) -> str:
    text = text_of(error).strip().partition("\n")[0][:_WHY_CHARACTERS]
    text = text.encode(errors="backslashreplace").decode()  # surrogates cannot be sent as text
    return text or name_of(type(error))
