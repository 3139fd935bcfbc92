"""What callers of a workspace have passed, checked before anything is done with it.

Each check returns the value, or raises one line in the caller's words. Pure.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from numbers import Real
from typing import Any

__all__ = ["checked_path", "checked_seconds", "checked_text", "checked_whole", "checked_words"]


def checked_text(what: str, value: Any) -> str:
    """Refuse with `TypeError` what is no str."""
    if not isinstance(value, str):
        msg = f"{what} is {value!r}; it must be a str"
        raise TypeError(msg)
    return value


def checked_path(what: str, value: Any) -> str:
    """Refuse with `TypeError` what is no path, and with `ValueError` an empty one.

    Numbers are no paths: `open` would take one for a descriptor.
    """
    if not isinstance(value, str | os.PathLike):
        msg = f"{what} is {value!r}; it must be a path"
        raise TypeError(msg)
    path = os.fspath(value)
    if not path or not isinstance(path, str):
        msg = f"{what} is {value!r}; it must be the path of a file"
        raise ValueError(msg)
    return path


def checked_words(what: str, values: Any) -> tuple[str, ...]:
    """Refuse with `TypeError` what is not several str; one alone would be taken letter by letter."""
    is_several = isinstance(values, Iterable) and not isinstance(values, str)
    words = tuple(values) if is_several else ()
    if not all(isinstance(word, str) for word in words) or not (is_several or values is None):
        msg = f"{what} is {values!r}; it must be a list of str"
        raise TypeError(msg)
    return words


def checked_whole(what: str, value: Any, least: int) -> int:
    """Refuse with `ValueError` what is no whole number of at least so much."""
    try:
        whole = operator.index(value)  # of numpy's, too; 2.0 is none
    except TypeError:
        whole = least - 1
    if whole < least or isinstance(value, bool):
        msg = f"{what} is {value!r}; it must be a whole number, {least} or more"
        raise ValueError(msg)
    return whole


def checked_seconds(what: str, value: Any, *, is_above_0: bool = False) -> float:
    """Refuse with `ValueError` what is no number of seconds."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and (value > 0 if is_above_0 else value >= 0)):
        least = "above 0" if is_above_0 else "0 or more"
        separator = " " if is_above_0 else ", "
        msg = f"{what} is {value!r}; it must be a number of seconds{separator}{least}"
        raise ValueError(msg)
    return float(value)
