"""Engines of a group, native and MPI, and handles of operations.

An engine moves the bytes of one group in one epoch. Both take C-contiguous, aligned arrays of the
same dtype, and fail for good: every later operation raises the same error. The same contract tests
check both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

from phalanx import _native

from ..control import seconds
from ..mpi.engine import MpiEngine

Engine: TypeAlias = _native.Group | MpiEngine
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
