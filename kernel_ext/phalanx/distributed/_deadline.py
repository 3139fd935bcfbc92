"""One moment by which something must be done, shared by all its steps, and what users give for it.

It knows the monotonic clock and nothing else.
"""

from __future__ import annotations

import math
import time

__all__ = ["Deadline", "call_seconds", "seconds"]

_FOREVER_S = 3e9  # a century, which every clock can add


def seconds(timeout: float | None) -> float | None:
    """Check a timeout a user gave; infinity is no limit.

    Raises
    ------
    ValueError
        It is negative or not a number.
    """
    if timeout is None:
        return None
    checked = _checked(timeout)
    return None if checked == math.inf else checked


def _checked(timeout: float) -> float:
    shape = getattr(timeout, "shape", ())
    try:
        is_time = not shape and timeout >= 0  # not of NaN
    except (TypeError, ValueError):  # no number
        is_time = False
    if not is_time:
        what = f"an array of shape {tuple(shape)}" if shape else repr(timeout)
        msg = f"timeout must be None or at least 0 seconds, not {what}"
        raise ValueError(msg)
    try:
        return float(timeout)
    except OverflowError:  # an integer beyond all floats
        return math.inf


def call_seconds(timeout: float | None) -> float | None:
    """Check the timeout of a call, where infinity is no limit whatever that of the group is."""
    limit = seconds(timeout)
    return _FOREVER_S if limit is None and timeout is not None else limit


class Deadline:
    """A moment on the monotonic clock, or never (``timeout=None``).

    Examples
    --------
    >>> Deadline(None).remaining() is None, Deadline(0).is_over(), str(Deadline(30.0))
    (True, True, '30 s')
    """

    __slots__ = ("_at", "_timeout")

    def __init__(self, timeout: float | None) -> None:
        self._timeout = None if timeout is None else _checked(timeout)
        self._at = None if self._timeout is None else time.monotonic() + self._timeout

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def is_over(self) -> bool:
        """Whether the moment has passed."""
        return self._at is not None and time.monotonic() >= self._at

    def __str__(self) -> str:
        """Give the whole time that was allowed, as in an error text."""
        return "any time" if self._timeout is None else f"{self._timeout:g} s"
