"""Call functions in a rank, and exchange values with its names.

The notebook and its ranks use the same functions. They turn values into buffers and back; the
callers send the buffers.
"""

from __future__ import annotations

import io
import linecache
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import format_exception_only
from types import FunctionType
from typing import Any

from ..output.text import name_of, text_of
from .copying import MAIN, ValuePickler, names_of

Buffers = Sequence[Any]

# Smaller arrays travel within the pickle, because a frame of their own costs more than the copy.
# The number is jupyter_client's (`jupyter_client.session.MAX_BYTES`).
_OWN_FRAME_NBYTES = 1024

_MOST_CHARACTERS = 300  # of an error's text


class _MainNamespace(dict[str, Any]):
    """Placeholder for the notebook's globals; loaded, it is the rank's namespace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return names_of, (MAIN,)


class _CallPickler(ValuePickler):
    """Pickle functions with the notebook's names that they use.

    The rank may not have these names.
    """

    def _of_function(self, function: FunctionType, reduced: Any) -> Any:
        return reduced


def pack_value(value: object) -> list[Any]:
    """Pack a value into buffers: a pickle, then its arrays' memory.

    The memory of arrays is not copied. Functions and classes that cells have defined are pickled by
    value. A function of the notebook uses the rank's names as its globals, and the notebook's names
    where the rank has none.

    Examples
    --------
    >>> load_value(pack_value([1, "two"]))
    [1, 'two']
    """
    buffers: list[Any] = []
    file = io.BytesIO()
    pickler = _CallPickler(file, buffers.append)
    # Not empty, because cloudpickle fills an empty dict.
    pickler.globals_ref[id(names_of(MAIN))] = _MainNamespace(__name__=MAIN)
    pickler.dump(value)
    return [file.getbuffer(), *buffers]


def load_value(buffers: Buffers) -> Any:
    """Load a value that `pack_value` has packed; its arrays are writable.

    Raises
    ------
    Exception
        Any error of loading the value: its module may be missing here.
    """
    data, *memory = buffers
    # The buffers of a message are read-only: copy them. They are outside the message's HMAC; CURVE,
    # or the check of the peer's user on a Unix socket, keeps strangers from sending any.
    return pickle.loads(data, buffers=[bytearray(one) for one in memory])  # noqa: S301 - see above


def pack_call(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Pack a call into buffers, with its function's source for tracebacks.

    Examples
    --------
    >>> load_value(call_packed(pack_call(divmod, [7, 2], {}), {}))
    (3, 1)
    """
    return pack_value((function, tuple(args), dict(named), _source_of(function, *args)))


def _source_of(*values: object) -> dict[str, str]:
    """Return the source of the cells that define functions, by file name."""
    found = {}
    for value in values:
        name = value.__code__.co_filename if isinstance(value, FunctionType) else ""
        if name and (lines := linecache.getlines(name)) and not Path(name).exists():
            found[name] = "".join(lines)
    return found


def call_packed(buffers: Buffers, namespace: dict[str, Any]) -> list[Any]:
    """Call the function that `pack_call` has packed; return the packed value.

    Functions of the notebook use ``namespace``, the names of this rank's cells, and bind names
    there. Names of the notebook that the function uses and ``namespace`` lacks are bound there
    until the call ends.

    Raises
    ------
    Exception
        The error of the function. `TypeError` and others, with ``cannot be`` in the text, for a
        value that cannot be loaded or sent.
    """
    before = dict(namespace)
    try:
        function, args, named, sources = load_value(buffers)
    except Exception as error:  # noqa: BLE001 - any object may refuse in its own way
        raise _again(error, "what was sent cannot be loaded here") from None
    finally:
        # Loading binds the notebook's names that the functions use: the rank's own names win.
        lent = {name: value for name, value in namespace.items() if name not in before}
        namespace.update(before)
    before.clear()  # keep no reference: an object that the function deletes must be freed
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        value = function(*args, **named)
        try:
            return pack_value(value)
        except Exception as error:  # noqa: BLE001 - as above
            what = f"the value, of type {name_of(type(value))}, cannot be sent"
            raise _again(error, what) from None
    finally:
        for name, value in lent.items():
            if name in namespace and namespace[name] is value:
                del namespace[name]


def _again(error: Exception, what: str) -> Exception:
    """Return an error of the same type that names the failed action."""
    text = f"{what}: {text_of(error)}"
    for kind in type(error).__mro__:
        if kind.__module__ == "builtins" and kind is not Exception:
            try:
                made = kind(text)
            except TypeError:  # this type needs other arguments
                continue
            return made if isinstance(made, Exception) else TypeError(text)
    return TypeError(text)


def map_block(function: Callable[..., Any], *blocks: Sequence[Any]) -> list[Any]:
    """Call a function on each item of this rank's blocks."""
    return [function(*items) for items in zip(*blocks, strict=True)]


def bind(name: str, value: object) -> None:
    """Bind a name for this rank's cells."""
    names_of(MAIN)[name] = value


def fetch(name: str) -> Any:
    """Return the value of a name of this rank's cells."""
    try:
        return names_of(MAIN)[name]
    except KeyError:
        msg = f"name {name!r} is not defined"
        raise NameError(msg) from None


class _TooLarge(Exception):
    """Report that the values are larger than the limit."""


class _Limited(io.BytesIO):
    """Buffer for a pickle that counts all bytes against a limit."""

    def __init__(self, max_nbytes: int | None) -> None:
        super().__init__()
        self._left_nbytes = max_nbytes
        self.buffers: list[memoryview] = []

    def write(self, data: Any, /) -> int:
        """Write the next bytes of the pickle."""
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


def unpack_values(buffers: Sequence[Any], where: str) -> dict[str, Any]:
    """Load values that `pack_values` has packed; arrays use the memory of ``buffers``.

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
    unpickler = pickle.Unpickler(file, buffers=buffers[1:])  # noqa: S301 - from a process of ours
    values: dict[str, Any] = {}
    while file.tell() < len(buffers[0]):
        name, named = unpickler.load()
        try:
            values[name] = unpickler.load()
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
    return values


def _name(name: str, value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{name or 'the value'} (type {module}{kind.__qualname__})"


def _say(error: BaseException) -> str:
    """Return the type and first text line of an error."""
    lines = "".join(format_exception_only(error)).splitlines()
    return next(line for line in lines if line[:1] != " ")[:_MOST_CHARACTERS]
