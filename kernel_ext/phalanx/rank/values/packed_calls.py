"""Call functions in a rank.

The notebook and its ranks use the same functions. They turn calls and values into buffers and back;
the callers send the buffers.
"""

from __future__ import annotations

import io
import linecache
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from ..output.error_text import name_of, text_of
from .pickling import MAIN, ValuePickler, aligned, names_of

Buffers = Sequence[Any]


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
    """Load a value that `pack_value` has packed.

    Arrays use the memory of ``buffers``, or a copy (`aligned`).

    Raises
    ------
    Exception
        Any error of loading the value: its module may be missing here.
    """
    data, *memory = buffers
    # The buffers are outside the message's HMAC; CURVE, or the check of the peer's user on a Unix
    # socket, keeps strangers from sending any.
    return pickle.loads(data, buffers=map(aligned, memory))  # noqa: S301 - see above


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
    names_of(MAIN)[name] = value


def fetch(name: str) -> Any:
    """Return the value of a name of this rank's cells."""
    try:
        return names_of(MAIN)[name]
    except KeyError:
        msg = f"name {name!r} is not defined"
        raise NameError(msg) from None
