"""Collectives on Python objects.

Each call runs two collectives on arrays. In the first, every rank sends the size of its pickle (or
that pickling failed) and a random nonce for the seals. In the second, the pickles move.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from phalanx.errors import DistributedError

from ..control import Deadline, call_seconds
from ..group.group import Group
from .run_collective import group_or_world, root_of, run_checked, try_fast_path
from .sealed import NONCE_NBYTES, SEAL_NBYTES, Seals, refuse, sealing_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


_T = TypeVar("_T")

_PROTOCOL = 5  # supported by every Python version that we run on; hosts may have different versions
_WHY_CHARACTERS = 300
# Up to this total all pickles are gathered at once, each padded to the longest. Above this total
# they are gathered at once only if padding at most doubles the bytes.
_AT_ONCE_NBYTES = 1 << 20


def all_gather_object(
    obj: Any, *, group: Group | None = None, timeout: float | None = None
) -> list[Any]:
    """Gather the objects of all ranks on every rank.

    Parameters
    ----------
    obj : object
        Any object that can be pickled, different on each rank. A function or class is looked up by
        name on the receiving ranks. An object that pickle cannot name (a lambda, a local function)
        is sent by value.
    group : Group, optional
        Ranks that take part; ``None`` is the group made by `init`.
    timeout : float, optional
        Seconds this call may take in all; ``None``: the limit of `Group.timeout`.

    Returns
    -------
    list of object
        The objects in rank order. All are copies, including this rank's own.

    Raises
    ------
    Exception
        The error that pickling raised. The other ranks raise a `DistributedError` that names this
        rank; the group stays usable.
    DistributedError
        The object of another rank cannot be pickled, or cannot be loaded here (the group stays
        usable). Or a pickle was altered in transit: it is not loaded, and the epoch is over.
    CollectiveMismatch
        A peer called another operation (names both).
    RankFailure, CollectiveTimeout
        A rank was lost, or the time was up (names who was missing).
    NotSupported
        Ranks that do not share memory have no key to authenticate pickles: ranks of mpirun without
        a ``PHALANX_KEY_FILE``.
    TypeError, ValueError
        ``group`` is not a group; ``timeout`` is not a number.

    Notes
    -----
    Loading a pickle can run any code: every rank of the group can run code on every rank that gets
    its objects. No other process can: if the ranks do not share memory, each pickle carries an HMAC
    under the workspace key, which is checked before the pickle is loaded.

    Cost: an `all_gather` of 24 bytes, and one of the longest pickle; if pickles differ much in
    size, a `broadcast` of each. Each pickle is also copied twice. Pass arrays to `all_gather`.

    Examples
    --------
    >>> import phalanx as px
    >>> px.all_gather_object({"loss": 0.5})
    [{'loss': 0.5}]
    """
    exchange = _Exchange("all_gather_object", group, timeout)
    parts = exchange.all_gather(_pickled(obj))
    return [exchange.load(rank, part) for rank, part in enumerate(parts)]


def broadcast_object(
    obj: _T, root: int = 0, *, group: Group | None = None, timeout: float | None = None
) -> _T:
    """Copy the object of one rank to every rank.

    Parameters
    ----------
    obj : object
        Any object that can be pickled, as for `all_gather_object`; ignored on ranks other than
        ``root``.
    root : int, optional
        The rank that sends its object, the same on every rank.
    group, timeout : optional
        As for `all_gather_object`.

    Returns
    -------
    object
        A copy of the object of ``root``; on ``root`` the object itself.

    Raises
    ------
    ValueError
        ``root`` is not a rank of the group, or ``timeout`` is not a number.
    Exception
        On ``root``: the error that pickling raised.
    DistributedError, NotSupported, TypeError
        As for `all_gather_object`; ranks that pass different roots raise `CollectiveMismatch`.

    Notes
    -----
    Cost: an `all_gather` of 24 bytes and a `broadcast` of the pickle, which is copied twice.

    Examples
    --------
    >>> import phalanx as px
    >>> px.broadcast_object(["a", 1], root=0)
    ['a', 1]
    """
    exchange = _Exchange("broadcast_object", group, timeout)
    root = root_of(root, exchange.size)
    is_root = exchange.rank == root
    part = exchange.broadcast(_pickled(obj) if is_root else _NOTHING, root)
    return obj if is_root else exchange.load(root, part)


class _Pickled(NamedTuple):
    """Pickle of an object, or the error of pickling and its text."""

    data: bytes
    error: Exception | None


_NOTHING = _Pickled(b"", None)


def _pickled(obj: object) -> _Pickled:
    try:
        return _Pickled(_dumps(obj), None)
    except Exception as error:  # noqa: BLE001 - any object may raise any error
        return _Pickled(_why(error).encode(), error)


def _dumps(obj: object) -> bytes:
    try:
        return pickle.dumps(obj, _PROTOCOL)
    except Exception:
        # By value only if pickle fails: classes defined in a cell resolve to each rank's own class.
        with contextlib.suppress(Exception):
            by_value: bytes = importlib.import_module("cloudpickle").dumps(obj, _PROTOCOL)
            return by_value
        raise


def _why(error: Exception) -> str:
    line = str(error).strip().partition("\n")[0]
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return text[:_WHY_CHARACTERS].encode(errors="backslashreplace").decode()


class _Exchange:
    """One object collective: exchanges sizes, then pickles, and checks the seals."""

    def __init__(self, op: str, group: Group | None, timeout: float | None) -> None:
        # One epoch for all messages, also if the group is formed anew meanwhile.
        self._current = group_or_world(group)._current
        self._spec = self._current.spec
        self._op = op
        self.rank, self.size = self._spec.rank, self._spec.size
        self._deadline = Deadline(call_seconds(timeout))
        # Before any communication: if one rank has no key, none has, so no rank is left waiting.
        self._key = sealing_key(self._spec, op, range(self.size))
        self._seals: Seals | None = None

    def all_gather(self, given: _Pickled) -> list[Bytes]:
        """Exchange pickles with all ranks and return them, checked."""
        sizes = self._meet(given)
        widths = [self._width(nbytes) for nbytes in sizes]
        if max(widths) * self.size > max(_AT_ONCE_NBYTES, 2 * sum(widths)):
            return [self._from(rank, given.data, sizes[rank]) for rank in range(self.size)]
        rows = self._collective("all_gather", self._sealed(given.data, max(widths)))
        rows = rows.reshape(self.size, -1)
        return [self._checked(rank, rows[rank, :width]) for rank, width in enumerate(widths)]

    def broadcast(self, given: _Pickled, root: int) -> Bytes:
        """Send the pickle of ``root`` to all ranks and return it, checked."""
        return self._from(root, given.data, self._meet(given)[root])

    def load(self, rank: int, part: Bytes) -> Any:
        """Unpickle the bytes of a rank."""
        try:
            return pickle.loads(part.data)  # noqa: S301 - the seal was checked
        except Exception as error:
            msg = f"{self._op}: what {self._name(rank)} gave cannot be loaded here: {_why(error)}"
            raise DistributedError(msg) from error

    def _meet(self, given: _Pickled) -> list[int]:
        """Exchange the sizes of the pickles and return those of all ranks.

        If pickling failed on a rank, all ranks raise.
        """
        mine = np.empty(1 + NONCE_NBYTES // 8, np.int64)
        mine[0] = len(given.data) if given.error is None else -1 - len(given.data)
        mine[1:] = np.frombuffer(os.urandom(NONCE_NBYTES), np.int64)
        # No user array has this shape, so ranks that make different calls raise CollectiveMismatch.
        rows = self._collective("all_gather", mine.reshape(1, 1, 1, -1)).reshape(self.size, -1)
        rows[self.rank] = mine  # keep our own nonce, whatever the peers sent back
        if self._key is not None:
            self._seals = Seals(self._key, self._spec, rows.tobytes())
        sizes: list[int] = rows[:, 0].tolist()
        failed = next((rank for rank, nbytes in enumerate(sizes) if nbytes < 0), None)
        if failed is None:
            return sizes
        why = self._from(failed, given.data, -1 - sizes[failed]).tobytes().decode()
        if given.error is not None:
            raise given.error
        msg = f"{self._op}: the object of {self._name(failed)} cannot be pickled: {why}"
        raise DistributedError(msg)

    def _from(self, root: int, data: bytes, nbytes: int) -> Bytes:
        """Broadcast the bytes of ``root``; ``data`` is used only on that rank."""
        width = self._width(nbytes)
        mine = self._sealed(data, width) if self.rank == root else np.empty(width, np.uint8)
        return self._checked(root, self._collective("broadcast", mine, mine, root))

    def _collective(self, op: str, x: Any, out: Any = None, root: int = 0) -> Any:
        limit = self._deadline.remaining()
        result = try_fast_path(op, self._current, x, out, root, limit)
        if result is NotImplemented:
            return run_checked(op, self._current, out, limit, False, root, x)
        return result

    def _width(self, nbytes: int) -> int:
        return nbytes + (0 if self._key is None else SEAL_NBYTES)

    def _sealed(self, data: bytes, width: int) -> Bytes:
        """Copy bytes and their seal into a buffer of ``width`` bytes."""
        seal = b"" if self._seals is None else self._seals.make(self.rank, 0, data)
        room = np.zeros(width, np.uint8)
        room[: len(data)] = np.frombuffer(data, np.uint8)
        room[len(data) : len(data) + len(seal)] = np.frombuffer(seal, np.uint8)
        return room

    def _checked(self, rank: int, part: Bytes) -> Bytes:
        if self._seals is None:
            return part
        data, seal = part[:-SEAL_NBYTES], part[-SEAL_NBYTES:]
        if rank != self.rank and not self._seals.is_right(rank, 0, data, seal):
            refuse(self._current, self._op, rank)
        return data

    def _name(self, rank: int) -> str:
        return f"rank {self._spec.members[rank]}"
