"""An operation that goes on while its caller does something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

from ._deadline import seconds
from ._engine import Work as EngineWork

__all__ = ["Work"]

_T_co = TypeVar("_T_co", covariant=True)


@final
class Work(Generic[_T_co]):
    """A collective under way, as ``async_op=True`` returns it; never made by hand.

    The operations of a group are carried out one after the other, in the order in which they were
    started. Until one is done its arrays are not to be changed, and not to be read but for ``x``.

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
        self._held = held  # memory that the operation works on

    def wait(self, timeout: float | None = None) -> _T_co:
        """Wait until the operation is done, and return its result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; ``None``: no limit. When they are over the operation goes on, and one
            can wait again; a limit of its own was given when it was started.

        Returns
        -------
        array
            What the operation would have returned; the same object each time.

        Raises
        ------
        CollectiveTimeout
            It was not done in time.
        DistributedError
            Whatever the operation raised.

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
                self._fail, self._held = None, ()  # what the caller does with `out` later is theirs
            raise
        if self._give is not None:
            self._result: _T_co = self._give()
            self._give, self._held = None, ()
        return self._result

    def _then(self, change: Callable[[Any], _T_co]) -> Work[_T_co]:
        """Have `wait` return what ``change`` makes of the result; before it is waited for."""
        give = self._give
        assert give is not None
        self._give = lambda: change(give())
        return self

    def done(self) -> bool:
        """Tell whether the operation is over, well or not; `wait` then returns at once.

        Returns
        -------
        bool
            True also where `wait` will raise.

        Examples
        --------
        >>> import phalanx as px
        >>> work = px.all_sum(2, async_op=True)
        >>> work.wait(), work.done()
        (2, True)
        """
        return self._engine_work.done
