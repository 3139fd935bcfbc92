"""Copy the state of a training, and put a copy back.

A state is a dict. Its values are containers (dict, list, tuple) of what `capture` knows: arrays of
numpy, torch and MLX, numbers and texts, random generators, and modules and optimizers. A copy
consists of plain containers, arrays and numbers only, so that it can be sent and saved. Its form is
what is left of it without its arrays.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from phalanx.errors import NotSupported

from .arrays import kind_of

_PLAIN = (int, float, complex, str, bytes, bool, type(None), np.generic)
# Pairs of methods with which objects give and take their state.
_PAIRS = (
    ("state_dict", "load_state_dict"),  # torch: modules, optimizers, schedulers, data loaders
    ("get_state", "set_state"),  # torch.Generator, numpy.random.RandomState
    ("getstate", "setstate"),  # random.Random, and the module random
)


def capture(value: Any, old: Any = None, path: str = "") -> Any:
    """Return a copy of a state that later changes do not reach.

    Parameters
    ----------
    value : object
        The state, or a part of it.
    old : object, optional
        An earlier copy that is no longer needed: the memory of its arrays is used again.
    path : str, optional
        The place of ``value`` in the state, for errors.

    Raises
    ------
    TypeError
        A part of the state cannot be copied; names its path.
    """
    if isinstance(value, _PLAIN):
        return value
    if kind_of(value) is not None and not isinstance(value, np.ma.MaskedArray):
        return _copy_of_array(value, old)
    taken = _give(value)
    if taken is not None:
        return capture(taken, old, path)
    if isinstance(value, dict):
        known = old if isinstance(old, dict) else {}
        return {k: capture(v, known.get(k), _below(path, k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        olds = old if isinstance(old, list | tuple) else ()
        pairs = enumerate(zip_longest(value, olds[: len(value)]))
        parts = [capture(part, one, _below(path, i)) for i, (part, one) in pairs]
        return parts if isinstance(value, list) else tuple(parts)
    msg = (
        f"the state {path or 'itself'} is of type {type(value).__name__}, which cannot be copied: "
        "put arrays, numbers, random generators, modules or objects with state_dict() and "
        "load_state_dict() into it"
    )
    raise TypeError(msg)


def compute(saved: Any) -> None:
    """Make MLX compute the arrays of a copy now."""
    arrays = [array for array in pack(saved).arrays if type(array).__module__ == "mlx.core"]
    if arrays:
        sys.modules["mlx.core"].eval(arrays)


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _copy_of_array(array: Any, old: Any) -> Any:
    kind = type(array).__module__.partition(".")[0]
    if kind == "mlx":
        # MLX changes no memory in place: `a += 1` gives the object `a` other memory. So another
        # object with the same memory is a copy.
        return array.astype(array.dtype)
    if isinstance(array, np.ndarray):
        if isinstance(old, np.ndarray) and (old.shape, old.dtype) == (array.shape, array.dtype):
            np.copyto(old, array)
            return old
        return np.array(array)  # of numpy's own class, which can be sent
    torch = sys.modules["torch"]
    source = array.detach()
    if isinstance(old, torch.Tensor) and (old.shape, old.dtype) == (array.shape, array.dtype):
        return old.copy_(source)
    return source.clone()


def _give(value: Any) -> Any:
    """Return the state that an object gives; None if it gives none."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if _is_mlx(value, "mlx.nn", "Module"):
        return value.parameters()
    if _is_mlx(value, "mlx.optimizers", "Optimizer"):
        return value.state
    if _is_random_of_mlx(value):
        return list(value)
    for give, take in _PAIRS:
        if callable(getattr(value, give, None)) and callable(getattr(value, take, None)):
            return getattr(value, give)()
    return None


def _is_random_of_mlx(value: Any) -> bool:
    """Whether it is `mx.random.state`; in older releases that is a list."""
    return type(value).__module__ == "mlx.core.random" and hasattr(value, "__iter__")


def _is_mlx(value: Any, module: str, name: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def restore(value: Any, saved: Any) -> Any:
    """Put a copy back, and return the restored value.

    That is ``value`` itself if it can change. The copy stays as it is and can be put back again.
    """
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = capture(saved)
        return value
    if _is_mlx(value, "mlx.nn", "Module"):
        value.update(capture(saved))
        return value
    if _is_mlx(value, "mlx.optimizers", "Optimizer"):
        value.state = capture(saved)
        return value
    if _is_random_of_mlx(value):
        high, low = saved[0].tolist()
        sys.modules["mlx.core"].random.seed(high << 32 | low)  # there is no other way to set a key
        return value
    if kind_of(value) is not None:
        return _restore_array(value, saved)
    for give, take in _PAIRS:
        if callable(getattr(value, give, None)) and callable(getattr(value, take, None)):
            getattr(value, take)(capture(saved))
            return value
    if isinstance(value, dict) and isinstance(saved, dict):
        for key in [key for key in value if key not in saved]:
            del value[key]
        value.update({key: restore(value.get(key), part) for key, part in saved.items()})
        return value
    if isinstance(value, tuple) and isinstance(saved, tuple) and len(value) == len(saved):
        parts = [restore(old, part) for old, part in zip(value, saved, strict=True)]
        make: Callable[..., Any] = type(value)
        return make(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list) and isinstance(saved, list):
        known = [*value, *[None] * len(saved)]
        value[:] = [restore(old, part) for old, part in zip(known, saved, strict=False)]
        return value
    return capture(saved)


def _restore_array(value: Any, saved: Any) -> Any:
    if isinstance(value, np.ndarray) and isinstance(saved, np.ndarray):
        if (value.shape, value.dtype) == (saved.shape, saved.dtype) and value.flags.writeable:
            np.copyto(value, saved)
            return value
        return saved.copy()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and isinstance(saved, torch.Tensor):
        if (value.shape, value.dtype) == (saved.shape, saved.dtype):
            with torch.no_grad():
                value.copy_(saved)
            return value
        return saved.clone()
    return capture(saved)


class ArrayPlace(NamedTuple):
    """The place of an array in a form."""

    number: int


class Packed(NamedTuple):
    """A copy of a state, as its form and its arrays."""

    form: Any
    arrays: list[Any]


def pack(saved: Any, may_send: Callable[[Any], bool] = lambda _: True) -> Packed:
    """Take a copy apart.

    Arrays for which ``may_send`` is False stay in the form.
    """
    arrays: list[Any] = []

    def form_of(part: Any) -> Any:
        if kind_of(part) is not None and may_send(part):
            arrays.append(part)
            return ArrayPlace(len(arrays) - 1)
        if isinstance(part, dict):
            return {key: form_of(child) for key, child in part.items()}
        if isinstance(part, list | tuple):
            children = [form_of(child) for child in part]
            return children if isinstance(part, list) else tuple(children)
        return part

    return Packed(form_of(saved), arrays)


def unpack(form: Any, arrays: list[Any]) -> Any:
    """Put a copy together again."""
    if isinstance(form, ArrayPlace):
        return arrays[form.number]
    if isinstance(form, dict):
        return {key: unpack(child, arrays) for key, child in form.items()}
    if isinstance(form, list | tuple):
        children = [unpack(child, arrays) for child in form]
        return children if isinstance(form, list) else tuple(children)
    return form


def paths_of(form: Any, n_arrays: int) -> list[str]:
    """Return the path of each array in a form, each only once."""
    paths = [""] * n_arrays
    used: set[str] = set()

    def walk(part: Any, path: str) -> None:
        if isinstance(part, ArrayPlace):
            name, n = path, 2
            while name in used:
                name, n = f"{path}#{n}", n + 1
            used.add(name)
            paths[part.number] = name
            return
        for key, child in _items(part):
            walk(child, _below(path, key))

    walk(form, "")
    return paths


def _items(part: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(part, dict):
        return iter(part.items())
    return iter(enumerate(part)) if isinstance(part, list | tuple) else iter(())


def encoded(form: Any) -> Any:
    """Return a form as JSON can hold it."""
    if isinstance(form, ArrayPlace):
        return {"array": form.number}
    if isinstance(form, dict):
        return {"dict": [[encoded(key), encoded(child)] for key, child in form.items()]}
    if isinstance(form, list | tuple):
        name = "list" if isinstance(form, list) else "tuple"
        return {name: [encoded(child) for child in form]}
    if isinstance(form, np.generic):
        return {"numpy": [form.dtype.str, base64.b64encode(form.tobytes()).decode()]}
    if isinstance(form, bytes):
        return {"bytes": base64.b64encode(form).decode()}
    if isinstance(form, complex):
        return {"complex": [form.real, form.imag]}
    if isinstance(form, str | int | float | None):
        return form
    msg = f"save: a {type(form).__name__} of dtype {getattr(form, 'dtype', '?')} cannot be saved"
    raise NotSupported(msg)


def decoded(form: Any) -> Any:
    """Return the form that `encoded` has turned into JSON."""
    if not isinstance(form, dict):
        return form
    ((name, value),) = form.items()
    if name == "array":
        return ArrayPlace(value)
    if name == "dict":
        return {decoded(key): decoded(child) for key, child in value}
    if name == "list":
        return [decoded(child) for child in value]
    if name == "tuple":
        return tuple(decoded(child) for child in value)
    if name == "numpy":
        return np.frombuffer(base64.b64decode(value[1]), value[0])[0]
    if name == "bytes":
        return base64.b64decode(value)
    return complex(*value)
