"""One moment by which something must be done, shared by all its steps.

It knows the monotonic clock and nothing else.
"""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """A moment on the monotonic clock, or never (``timeout=None``).

    Examples
    --------
    >>> Deadline(None).remaining() is None, Deadline(0).is_over(), str(Deadline(30.0))
    (True, True, '30 s')
    """

    __slots__ = ("_at", "_timeout")

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:  # "not >=" refuses NaN as well
            msg = f"timeout must be None or at least 0 seconds, not {timeout!r}"
            raise ValueError(msg)
        self._timeout = timeout
        self._at = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def is_over(self) -> bool:
        """Whether the moment has passed."""
        return self._at is not None and time.monotonic() >= self._at

    def __str__(self) -> str:
        """Give the whole time that was allowed, as in an error text."""
        return "any time" if self._timeout is None else f"{self._timeout:g} s"
