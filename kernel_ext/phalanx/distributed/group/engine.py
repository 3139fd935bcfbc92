"""Interface of a group's engine, native or MPI, and its handles.

The same contract tests check both engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, final

from numpy.typing import NDArray

from ..control import seconds

Array = NDArray[Any]
_T_co = TypeVar("_T_co", covariant=True)


class EngineWork(Protocol):
    """Handle of an operation that runs asynchronously."""

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        ...

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the operation is complete; raise its error."""
        ...


class EngineInterface(Protocol):
    """Communication engine of one group in one epoch.

    ``x`` and ``out`` are C-contiguous, aligned arrays of the same dtype. ``out`` may be ``x``; for
    `all_gather`, ``x`` may be this rank's part of ``out``. ``dtype`` names the type of the elements
    if numpy has no such type (``uint16`` with ``"bfloat16"``). A failure is final: every later
    operation raises the same error, and the contents of ``out`` are invalid.
    """

    timeout: float | None  # default for calls without one

    @property
    def rank(self) -> int:
        """Return this process's rank in the group."""
        ...

    @property
    def size(self) -> int:
        """Return the number of ranks in the group."""
        ...

    @property
    def epoch(self) -> int:
        """Return the epoch number, from 1."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether this rank has closed the group."""
        ...

    @property
    def failure(self) -> tuple[int, int, str] | None:
        """Return ``(kind, culprit, message)`` once the group has failed, else None."""
        ...

    def all_sum(self, x: Array, out: Array, timeout: float | None = None, dtype: str = "") -> None:
        """Sum over all ranks into ``out``."""
        ...

    def all_max(self, x: Array, out: Array, timeout: float | None = None, dtype: str = "") -> None:
        """Take the maximum over all ranks into ``out``."""
        ...

    def all_min(self, x: Array, out: Array, timeout: float | None = None, dtype: str = "") -> None:
        """Take the minimum over all ranks into ``out``."""
        ...

    def all_gather(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """Concatenate the arrays of all ranks into ``out``."""
        ...

    def sum_scatter(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """Sum over all ranks; each rank gets its part in ``out``."""
        ...

    def all_to_all(
        self, x: Array, out: Array, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """Exchange parts between all ranks into ``out``."""
        ...

    def broadcast(
        self, x: Array, out: Array, root: int, timeout: float | None = None, dtype: str = ""
    ) -> None:
        """Send the array of rank ``root`` to all ranks' ``out``."""
        ...

    def send(self, x: Array, dst: int, timeout: float | None = None, dtype: str = "") -> None:
        """Send to rank ``dst``."""
        ...

    def recv(self, out: Array, src: int, timeout: float | None = None, dtype: str = "") -> None:
        """Receive from rank ``src`` into ``out``."""
        ...

    def barrier(self, timeout: float | None = None) -> None:
        """Wait for all ranks."""
        ...

    def submit(
        self,
        op: str,
        x: Array,
        out: Array,
        root: int = 0,
        timeout: float | None = None,
        dtype: str = "",
    ) -> EngineWork:
        """Start an operation in the background."""
        ...

    def abort(self, kind: int, culprit: int, message: str) -> bool:
        """End the epoch for all ranks; False if it has ended before."""
        ...

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no thread is inside the failed group; False on timeout."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...

    def describe(self, sizes: list[int] = ...) -> dict[str, Any]:
        """Describe how operations of these sizes are carried out."""
        ...


@final
class Work(Generic[_T_co]):
    """Handle of a running collective, returned for ``async_op=True``.

    A group runs its operations one after the other, in the order in which they were started. Until
    an operation is done, do not change its arrays and read only ``x``.

    Examples
    --------
    >>> import numpy as np, phalanx as px
    >>> work = px.all_sum(np.arange(3.0), async_op=True)
    >>> work.wait(timeout=5.0)
    array([0., 1., 2.])
    >>> work.done()
    True
    """

    __slots__ = ("_engine_work", "_fail", "_give", "_held", "_result")

    def __init__(
        self,
        engine_work: EngineWork,
        give: Callable[[], _T_co],
        fail: Callable[[], None],
        held: tuple[Any, ...],
    ) -> None:
        self._engine_work = engine_work
        self._give: Callable[[], _T_co] | None = give
        self._fail: Callable[[], None] | None = fail
        self._held = held  # keeps the operation's memory alive

    def wait(self, timeout: float | None = None) -> _T_co:
        """Wait until the operation is done, and return its result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; ``None``: no limit. After a timeout the operation continues, and `wait`
            may be called again. The operation's own timeout was set when it was started.

        Returns
        -------
        array
            The result of the operation; the same object in each call.

        Raises
        ------
        CollectiveTimeout
            The operation was not done in time.
        DistributedError
            The operation failed; this is its error.

        Examples
        --------
        >>> import phalanx as px
        >>> px.all_sum(2, async_op=True).wait()
        2
        """
        try:
            self._engine_work.wait(seconds(timeout))
        except BaseException:
            if self._engine_work.done and self._fail is not None:
                self._fail()
                self._fail, self._held = None, ()  # release `out`
            raise
        if self._give is not None:
            self._result: _T_co = self._give()
            self._give, self._held = None, ()
        return self._result

    def _then(self, change: Callable[[Any], _T_co]) -> Work[_T_co]:
        """Make `wait` return ``change(result)``; call this before `wait`."""
        give = self._give
        assert give is not None
        self._give = lambda: change(give())
        return self

    def done(self) -> bool:
        """Return whether the operation has ended, successfully or not.

        Returns
        -------
        bool
            True if `wait` would return or raise at once.

        Examples
        --------
        >>> import phalanx as px
        >>> work = px.all_sum(2, async_op=True)
        >>> work.wait(), work.done()
        (2, True)
        """
        return self._engine_work.done
