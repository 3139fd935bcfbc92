"""The public group, `Group`.

A `Group` stays the same object when the world is formed again: each new epoch gives it a new
`Membership`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, cast, final

from phalanx._native import fast_path
from phalanx.errors import DistributedError

from ..control import call_seconds, seconds
from ..mpi.engine import MpiEngine, split_mpi
from .formation import split_group
from .registry import ADAPTERS, Membership
from .work import Engine

_HALVES = ("float16", "bfloat16")


def _sizes_in_bytes(sizes: Iterable[object]) -> list[int]:
    try:
        given = iter(sizes)
    except TypeError:
        msg = f"describe takes a list of sizes in bytes, like [8, 4096], not {sizes!r}"
        raise TypeError(msg) from None
    return [_nbytes(size) for size in given]


def _nbytes(size: object) -> int:
    try:
        nbytes = operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        nbytes = -1
    if not 0 <= nbytes < 1 << 63:
        msg = f"describe takes sizes in bytes, whole numbers from 0, not {size!r}"
        raise ValueError(msg)
    return nbytes


def algorithms_by_size(described: dict[str, Any], op: str, dtype: str) -> dict[int, str]:
    """Return the algorithms of an operation, by bytes of a rank's array.

    Examples
    --------
    >>> engine = {"algorithms": {"all_sum": {8: "inline+mesh"}}}
    >>> engine["algorithms_of_halves"] = {"all_sum": {8: "staged+mesh"}}
    >>> algorithms_by_size({"engine": engine}, "all_sum", "bfloat16")
    {8: 'staged+mesh'}
    >>> algorithms_by_size({"engine": {}}, "all_sum", "float32")  # an engine that tells of none
    {}
    """
    engine = described["engine"]
    tables = [engine.get("algorithms", {})]
    if dtype in _HALVES:
        tables.insert(0, engine.get("algorithms_of_halves", {}))
    by_size: dict[int, str] = next((table[op] for table in tables if op in table), {})
    return by_size


@final
class Group:
    """Group of ranks that communicate with each other, including this process.

    `init` makes groups; do not construct one. A group is a context manager: leaving it closes the
    group. Methods may be called from any thread, but all ranks must call the operations of a group
    in the same order.

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
        "_adapters_group",
        "_current",
        "_listener",
        "_origin",
        "_timeout",
    )

    def __init__(self, formed: Membership, origin: tuple[int, int] | None = None) -> None:
        self._timeout: float | None = None
        self._origin = origin  # split only: color and key
        self._listener: Callable[[Engine], None] | None = None
        self._adapters_group: Group | None = None  # the world only
        # An operation reads this once, and stays in the epoch in which it began.
        self._current = self._join(formed)

    def _join(self, formed: Membership) -> Membership:
        formed.engine.timeout = self._timeout
        return formed if formed.registry is None else formed.registry.add(self, formed)

    def _enter(self, formed: Membership) -> None:
        """Leave the epoch for a new one."""
        old = self._current
        old.engine.close()
        self._current = self._join(formed)
        if old.leave is not None and old.leave.detach() is None:
            self.close()  # as another thread has closed the split meanwhile
        if self._listener is not None:
            self._listener(formed.engine)

    def _listen(self, listener: Callable[[Engine], None]) -> None:
        """Call ``listener`` with the engine of each new epoch."""
        self._listener = listener

    def _take_adapters_group(self) -> Group:
        """Return the split of all ranks for the adapters of frameworks.

        Every rank calls this. The split is formed again in each epoch on all ranks, also on those
        that replace others, so that a framework keeps one group as long as its process lives.
        """
        if self._adapters_group is None:
            self._adapters_group = self._split(0, -1, ADAPTERS)
        assert self._adapters_group is not None
        return self._adapters_group

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
        return self._current.spec.rank

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
        return self._current.spec.size

    @property
    def timeout(self) -> float | None:
        """Return the default timeout of operations, in seconds; None: no limit.

        Each rank has a value of its own: set it on all ranks. A split starts with the value of its
        parent group. The value survives `recover`. ``timeout=math.inf`` in a call means no limit.

        Raises
        ------
        ValueError
            The new value is negative or not a number.

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
        self._timeout = limit
        self._current.engine.timeout = limit

    def split(self, color: int | None, key: int = -1) -> Group | None:
        """Split the group into groups of ranks with the same ``color``.

        Every rank of the group must call this, in the same order as other operations. Several
        threads may use this group and the new groups at the same time.

        Parameters
        ----------
        color : int or None
            Ranks with the same color form a group; None or negative: join no group.
        key : int, optional
            New ranks are ordered by key, then by rank in this group. Negative: the key is the rank
            in this group.

        Returns
        -------
        Group or None
            The new group of this rank; None without a color. Close the group when it is not needed
            any more: a process can be in about 30 splits at a time. Garbage collection also closes
            a group.

        Raises
        ------
        DistributedError
            The group has one rank only, or too many splits are open. The group stays usable.
        TypeError, ValueError
            ``color`` or ``key`` is not an int, or is 2**63 or more.
        RankFailure, CollectiveMismatch
            As for every operation.

        Notes
        -----
        Cost: three small `all_gather` if the ranks of each new group share a host. Otherwise five,
        one connection for each pair of a new group's ranks on different hosts, and one more between
        the hosts.
        Source: MPI 4.1, section 7.4.2 (MPI_Comm_split).

        A failure in a split is a failure of the whole world. When the world is formed again
        (`recover`, or the next cell), a split is formed again if all of its ranks still hold it:
        the same object with the same ranks. A split that a rank has closed or lost raises in every
        call and names that rank.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().split(0)
        Traceback (most recent call last):
        ...
        phalanx.errors.DistributedError: Cannot split the distributed group further.
        """
        return self._split(color, key)

    def _split(self, color: int | None, key: int, number: int = 0) -> Group | None:
        """Split the group; ``number`` is as for `split_group`."""
        current = self._current
        if current.spec.size == 1:
            msg = "Cannot split the distributed group further."
            raise DistributedError(msg)
        formed: Membership | None
        if current.registry is None:
            made = split_mpi(cast("MpiEngine", current.engine), color, key)
            formed = None if made is None else Membership(*made)
        else:
            try:
                formed = split_group(current, current.registry, color, key, number)
            except BaseException:
                current.tell_failure()
                raise
        if formed is None:
            return None
        group = Group(formed, (int(color or 0), key))
        group.timeout = self._timeout
        return group

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank of the group has called this.

        Parameters
        ----------
        timeout : float, optional
            Seconds this call may take; ``None``: the value of `Group.timeout`.

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
        Cost: 1 step. Each rank reads the headers of its host's ranks, and each host sends one
        header (144 bytes) to all other hosts. Dissemination (Hensgen, Finkel and Manber 1988,
        doi:10.1007/BF01379320) would send fewer headers, in more steps.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().barrier(timeout=5.0)
        """
        current, limit = self._current, call_seconds(timeout)
        engine = current.engine
        try:
            if fast_path("barrier", engine, None, None, 0, limit, "") is NotImplemented:
                engine.run("barrier", timeout=limit)
        except BaseException:
            current.tell_failure()
            raise

    def close(self) -> None:
        """Release sockets and memory; every later operation raises.

        Calling this twice has no further effect.

        Examples
        --------
        >>> import phalanx as px
        >>> group = px.init()
        >>> group.close()
        >>> group
        <phalanx.Group rank 0 of 1, closed>
        """
        current = self._current
        current.engine.close()
        if current.leave is not None and current.registry is not None:
            current.leave()
            current.registry.reap()
        if self._current is not current:
            self.close()  # a new epoch has begun meanwhile

    def describe(self, sizes: Iterable[int] = ()) -> dict[str, Any]:
        """Describe the group's ranks and how operations are carried out.

        Parameters
        ----------
        sizes : iterable of int, optional
            Sizes in bytes to list algorithms for, besides a few common sizes.

        Returns
        -------
        dict
            ``rank``, ``size``, ``epoch``, ``hosts`` (host name by rank), ``transports`` (by peer:
            ``"arena"``, ``"tcp"``, ``"mpi"`` or ``"self"``), ``members`` (each rank's rank in the
            world), and ``engine``. A split also has ``color`` and ``key``. ``engine`` has
            ``algorithms`` (by operation and bytes), ``algorithms_of_halves`` (the same for sums of
            float16 and bfloat16), counts, and ``stripes`` (by peer: both addresses of each
            connection, for links with several connections).

        Raises
        ------
        ValueError
            A size is not a whole number of bytes from 0.
        TypeError
            ``sizes`` is not iterable.

        Examples
        --------
        >>> import phalanx as px
        >>> px.init().describe()["transports"]
        ['self']
        """
        current = self._current
        spec, hosts = current.spec, current.spec.native_hosts
        far = "mpi" if spec.transport == "mpi" else "tcp"
        transports = ["arena" if host == hosts[spec.rank] else far for host in hosts]
        transports[spec.rank] = "self"
        described = {
            "rank": spec.rank,
            "size": spec.size,
            "epoch": spec.epoch,
            "hosts": list(spec.rank_host_names()),
            "transports": transports,
            "members": list(spec.members),
            "engine": current.engine.describe(_sizes_in_bytes(sizes)),
        }
        if self._origin is not None:
            described |= dict(zip(("color", "key"), self._origin, strict=True))
        return described

    def __enter__(self) -> Group:
        """Return the group; leaving the block closes it."""
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
        """Show rank, size and state of the group in one line."""
        current = self._current
        state = ", closed" if current.engine.is_closed else ""
        if not state and (failure := current.engine.failure) is not None:
            state = f", failed: {failure[2]}"
        return f"<phalanx.Group rank {current.spec.rank} of {current.spec.size}{state}>"
