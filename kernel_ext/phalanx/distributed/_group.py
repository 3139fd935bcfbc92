"""The group that users hold: who is in it, and its life.

It stays the same object while worlds come and go: a new epoch gives it a new native group. How
that is formed it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast, final

from phalanx import _native
from phalanx.errors import DistributedError, NotSupported

from ._deadline import call_seconds, seconds
from ._describe import describe
from ._engine import Engine
from ._family import Family, Gone
from ._mpi._engine import MpiEngine
from ._mpi._split import split_mpi
from ._split import split_group
from ._world import WorldSpec

if TYPE_CHECKING:
    from ._family import Leave

__all__ = ["Group"]

FailureListener = Callable[[int, int, int, str], None]


@final
class Group:
    """Ranks that communicate with each other, of which this process is one.

    Made by `init`, never by hand. A context manager: leaving it closes the group. Methods may be
    called from any thread, but all ranks must call the operations of a group in the same order.

    Examples
    --------
    >>> import phalanx as px
    >>> group = px.init()
    >>> group.rank(), group.size()
    (0, 1)
    >>> group
    <phalanx.Group rank 0 of 1>
    """

    __slots__ = (
        "__weakref__",
        "_engine",
        "_family",
        "_leave",
        "_on_failure",
        "_origin",
        "_spec",
        "_timeout",
    )

    def __init__(
        self,
        engine: Engine,
        spec: WorldSpec,
        on_failure: FailureListener | None = None,
        family: Family | None = None,
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._on_failure = on_failure
        self._family = family
        self._timeout: float | None = None
        # Of a split: gives its channel back; called once, at the latest by a garbage collection.
        self._leave: Leave | None = None
        self._origin: tuple[int, int] | None = None  # of a split: color and key
        if family is not None:
            family.add(self)

    def _rearm(self, engine: Engine, spec: WorldSpec, family: Family | None) -> None:
        """Go on as the group of a new epoch; every variable that holds this group sees it."""
        if self._family is not None:
            self._family.end()
        self._engine.close()
        engine.timeout = self._timeout
        self._engine = engine
        self._spec = spec
        self._family = family
        if family is not None:
            family.add(self)

    def _renew(self, engine: Engine, spec: WorldSpec, family: Family) -> None:
        """Go on as the split of a new epoch."""
        if self._leave is not None:
            self._leave.detach()
        self._engine.close()
        engine.timeout = self._timeout
        self._engine = engine
        self._spec = spec
        self._family = family
        self._leave = family.add_split(self, cast("_native.Group", engine), spec)

    def _retire(self, stand_in: Gone) -> None:
        """Give up a split that does not go on; the world itself does, and a closed one is closed."""
        if self._leave is None or self._engine.is_closed:
            return
        engine, self._engine = self._engine, stand_in  # type: ignore[assignment]
        engine.close()
        self._leave()

    def _tell_failure(self) -> None:
        """Tell all who need to know why an operation failed, if that was the end of the epoch."""
        failure = self._engine.failure
        if failure is None:
            return
        if self._on_failure is not None:
            self._on_failure(self._spec.epoch, *failure)
        if self._family is not None:
            self._family.spread(failure, self)

    def rank(self) -> int:
        """Return the rank of this process in the group.

        Returns
        -------
        int
            ``0 <= rank < size()``.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().rank()
        0
        """
        return self._spec.rank

    def size(self) -> int:
        """Return the number of ranks in the group.

        Returns
        -------
        int
            At least 1.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().size()
        1
        """
        return self._spec.size

    @property
    def timeout(self) -> float | None:
        """Seconds that an operation of this group may take if its call does not say; None: no limit.

        It is each rank's own: set it on all of them. Splits begin with that of their group, and
        it stays when the world is formed anew. ``timeout=math.inf`` in a call is no limit.

        Raises
        ------
        ValueError
            Set to something negative, or not a number.

        Examples
        --------
        >>> import phalanx as px
        >>> group = px.init()
        >>> group.timeout = 30.0
        >>> group.barrier()  # at most 30 s; then a CollectiveTimeout that names who is missing
        >>> group.timeout = None
        """
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: float | None) -> None:
        limit = seconds(timeout)
        self._engine.timeout = limit
        self._timeout = limit

    def split(self, color: int | None, key: int = -1) -> Group | None:
        """Split the group into groups of the ranks that give the same ``color``.

        An operation like others: every rank of the group calls it, in the same order. The new
        groups and this one can be at work at the same time, from several threads.

        Parameters
        ----------
        color : int or None
            Ranks with the same color come into the same group; None or negative: into none.
        key : int, optional
            Smaller keys become smaller ranks, equal ones in the order of this group; negative:
            as if the key were the rank in this group.

        Returns
        -------
        Group or None
            The part that this rank is in; None without a color. Close it when it is not needed
            any more: a process can be in some 30 splits at a time. One that nobody holds any more
            is closed, too.

        Raises
        ------
        DistributedError
            The group has one rank only, or too many splits are open; the group is as before.
        TypeError, ValueError
            ``color`` or ``key`` is no int, or one of 2**63 or more.
        RankFailure, CollectiveMismatch
            As for every operation.
        NotSupported
            The group's backend has no splits.

        Notes
        -----
        Cost: five small `all_gather`, a connection for each pair of ranks of a part on different
        hosts, and one more between their hosts. Source: MPI 4.1, section 7.4.2 (MPI_Comm_split).

        A failure in a split is one of the whole world. When that is formed anew (`recover`, or
        the next cell), every split that all its ranks still hold stands again, the same object
        with the same ranks; one that a rank has closed or lost refuses every call and names it.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().split(0)
        Traceback (most recent call last):
        ...
        phalanx.errors.DistributedError: Cannot split the distributed group further.
        """
        if self.size() == 1:
            msg = "Cannot split the distributed group further."
            raise DistributedError(msg)
        if isinstance(self._engine, MpiEngine):
            part = split_mpi(self._engine, color, key)
            return None if part is None else self._adopt(Group(*part, self._on_failure), color, key)
        family = self._family
        if family is None:
            msg = f"{self!r} cannot be split: its backend has no splits"
            raise NotSupported(msg)
        try:
            made = split_group(cast("_native.Group", self._engine), self._spec, family, color, key)
        except BaseException:
            self._tell_failure()
            raise
        if made is None:
            return None
        engine, spec = made
        group = Group(engine, spec, self._on_failure, family)
        group._leave = family.add_split(group, engine, spec)
        return self._adopt(group, color, key)

    def _adopt(self, part: Group, color: int | None, key: int) -> Group:
        part._origin = (int(color or 0), key)
        part.timeout = self._timeout
        return part

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank of the group has come here.

        Parameters
        ----------
        timeout : float, optional
            Seconds this call may take; ``None``: as `Group.timeout` says.

        Raises
        ------
        CollectiveTimeout
            The time was up (names who was missing).
        RankFailure
            A rank was lost.
        CollectiveMismatch
            A peer called another operation (names both).

        Notes
        -----
        Cost: 1 step, in which each rank looks at the headers of its host, and each host sends one
        (144 bytes) to all others. Dissemination (Hensgen, Finkel and Manber 1988,
        doi:10.1007/BF01379320) would send fewer, in more steps.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().barrier(timeout=5.0)
        """
        try:
            self._engine.barrier(call_seconds(timeout))
        except BaseException:
            self._tell_failure()
            raise

    def close(self) -> None:
        """Give back sockets and memory; idempotent. Every later operation raises.

        Examples
        --------
        >>> import phalanx as px
        >>> group = px.init()
        >>> group.close()
        >>> group
        <phalanx.Group rank 0 of 1, closed>
        """
        self._engine.close()
        if self._leave is not None and self._family is not None:
            self._leave()
            self._family.reap()

    def describe(self, sizes: Iterable[int] = ()) -> dict[str, Any]:
        """Tell who is where, and how this group's operations are done.

        Parameters
        ----------
        sizes : iterable of int, optional
            Bytes of messages whose algorithms are told, beside those of a few usual ones.

        Returns
        -------
        dict
            ``rank``, ``size``, ``epoch``, ``hosts`` (host name by rank), ``transports`` (by
            peer: ``"arena"``, ``"tcp"``, ``"mpi"`` or ``"self"``), ``members`` (the world's rank
            of each rank), and ``engine``: ``algorithms`` (by operation and bytes), the same of
            sums of float16 and bfloat16 as ``algorithms_of_halves``, counts, and ``stripes`` (by
            peer, from where to where the connections of a link go that has several). Of a split
            also ``color`` and ``key``.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().describe()["transports"]
        ['self']
        """
        return describe(self._spec, self._engine, self._origin, sizes)

    def __enter__(self) -> Group:
        """Use the group for a while; `close` follows."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the group."""
        self.close()

    def __repr__(self) -> str:
        """One line: who we are, and whether the group still stands."""
        state = ", closed" if self._engine.is_closed else ""
        if not state and self._engine.failure is not None:
            state = f", failed: {self._engine.failure[2]}"
        return f"<phalanx.Group rank {self.rank()} of {self.size()}{state}>"
