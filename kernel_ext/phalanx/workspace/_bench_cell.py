"""What the ranks run for a bandwidth sweep, what they say meanwhile, and how they refuse one.

It knows the engine's call as code for a cell, and the MIME types in which what they measure travels.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from phalanx.distributed.bench import sizes_between
from phalanx.errors import CellError
from phalanx.protocol import LIMITS_MIME, MEASUREMENT_MIME, Limit, Measurement

from ._events import Display
from ._view import QuietView

__all__ = ["BenchView", "Request", "refusal_of"]


@dataclass(frozen=True)
class Request:
    """What `publish_sweep` is asked for."""

    op: str
    begin: int
    end: int
    factor: int
    dtype: str
    iterations: int

    def code(self, *, with_limits: bool) -> str:
        """Return the cell, in which the ranks may measure what bounds them as well."""
        words = {**vars(self), "with_limits": with_limits}
        arguments = ", ".join(f"{name}={value!r}" for name, value in words.items())
        return f"__import__('phalanx.rank').rank.publish_sweep({arguments})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """In bytes, as they are measured; a barrier has none."""
        return (0,) if self.op == "barrier" else sizes_between(self.begin, self.end, self.factor)


class BenchView(QuietView):
    """Takes measurements out of what the ranks display, and knows when they have begun."""

    def __init__(
        self, begun: Callable[[], None], limited: Callable[[tuple[Limit, ...]], None]
    ) -> None:
        self.measured: queue.SimpleQueue[Measurement | None] = queue.SimpleQueue()
        self._begun, self._limited = begun, limited

    def begin(self, ranks: tuple[int, ...]) -> None:
        """Say so: from here on the ranks can be interrupted."""
        self._begun()

    def display(self, ranks: tuple[int, ...], event: Display) -> None:
        """Keep a measurement, or hand on what bounds the ranks."""
        data = event.data.get(MEASUREMENT_MIME)
        if data is not None:
            self.measured.put(msgspec.convert(data, Measurement))
        limits = event.data.get(LIMITS_MIME)
        if limits is not None:
            self._limited(msgspec.convert(limits, tuple[Limit, ...]))


def refusal_of(error: BaseException) -> ValueError | None:
    """Return what all ranks said alike of a sweep before they began it, if that ended it."""
    told = error.failures.values() if isinstance(error, CellError) else ()
    said = {text if name == "ValueError" else None for name, text, _ in told}
    text = said.pop() if len(said) == 1 else None
    return None if text is None else ValueError(text)
