"""Write the form of a state as JSON.

The form is what is left of a state without its arrays.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx.errors import NotSupported

from .states import ArrayPlace


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
            walk(child, f"{path}.{key}" if path else str(key))

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
    """Return a form again."""
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
