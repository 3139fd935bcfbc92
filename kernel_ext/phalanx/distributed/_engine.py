"""What moves the bytes of a group, as the public functions see it: the native engine or MPI.

A seam, nothing more: both engines are tested by the same contract checks.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

__all__ = ["Engine", "Work"]

Array = NDArray[Any]


class Work(Protocol):
    """An operation on its way."""

    @property
    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        ...

    def wait(self, timeout: float | None = None) -> None:
        """Return once it is complete; raise what it raised."""
        ...


class Engine(Protocol):
    """One epoch of one group.

    ``x`` and ``out`` are C-contiguous, aligned arrays of the same dtype; ``out`` may be ``x`` (for
    `all_gather` ``x`` may be this rank's part of ``out``). ``dtype`` says how the bytes are to be
    read where numpy has no name for it (``uint16`` with ``"bfloat16"``). A failure is final:
    every later operation raises the same, and what was written to ``out`` is spoiled.
    """

    timeout: float | None  # of calls that give none

    @property
    def rank(self) -> int:
        """This process among the ranks of the group."""
        ...

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        ...

    @property
    def epoch(self) -> int:
        """For the how-manieth time the world stands."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether this rank has closed it."""
        ...

    @property
    def failure(self) -> tuple[int, int, str] | None:
        """``(kind, culprit, message)`` once the group has failed."""
        ...

    def all_sum(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def all_max(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def all_min(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def all_gather(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def sum_scatter(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def all_to_all(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def broadcast(
        self, x: Array, out: Array, root: int, timeout: float | None = None, dtype: str = ""
    ) -> None: ...
    def send(self, x: Array, dst: int, timeout: float | None = None, dtype: str = "") -> None: ...
    def recv(self, out: Array, src: int, timeout: float | None = None, dtype: str = "") -> None: ...
    def barrier(self, timeout: float | None = None) -> None: ...
    def submit(
        self,
        op: str,
        x: Array,
        out: Array,
        root: int = 0,
        timeout: float | None = None,
        dtype: str = "",
    ) -> Work: ...
    def abort(self, kind: int, culprit: int, message: str) -> bool: ...
    def settle(self, timeout: float) -> bool:
        """Wait until no thread is inside a group that has failed; False if one still is."""
        ...

    def close(self) -> None: ...
    def describe(self, sizes: list[int] = ...) -> dict[str, Any]: ...
