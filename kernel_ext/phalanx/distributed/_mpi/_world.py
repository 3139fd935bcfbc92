"""What all MPI groups of this process share: the news between ranks, the failure, the end.

MPI lets one rank wait for ever for another that will not come. So ranks send each other news,
small messages beside the operations: why the world has failed, who has closed a group, and, when
a wait gets long, who waits where (so that a deadline can name the missing).
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import CollectiveMismatch, CollectiveTimeout, DistributedError, RankFailure

from .._deadline import Deadline
from ._waiting import wait_until

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._operation import Operations

__all__ = ["AbortedError", "MpiWorld", "Reason"]

# kind of news, kind of abort, culprit, bytes of text; channel, seq
_NEWS = struct.Struct("<IiiIQQ")
_NEWS_NBYTES = 640
_FAILED, _CLOSED, _WAITS = 1, 2, 3
_SEND_S = 0.2  # for news to leave; they are small, and MPI buffers them
# After an error of the program that nobody caught the others get so long to end by themselves.
_AFTER_ERROR_S = 3.0
_AFTER_FAILURE_S = 60.0


class Reason(NamedTuple):
    """Why the world was given up; ``culprit`` is a world rank or -1."""

    kind: int
    culprit: int
    message: str

    def error(self, host: str) -> DistributedError:
        """Make the error that it stands for."""
        if self.kind == _native.ABORT_RANK_FAILURE:
            return RankFailure(self.culprit, host, self.message)
        if self.kind == _native.ABORT_MISMATCH:
            return CollectiveMismatch(self.message)
        if self.kind == _native.ABORT_TIMEOUT:
            return CollectiveTimeout(self.message)
        return DistributedError(self.message)


class AbortedError(Exception):
    """Leaves an operation for a reason that the world now has."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


class Heard(NamedTuple):
    """What the members of one group have told this rank of it, by world rank."""

    closed: dict[int, int]  # after how many operations
    waiting: dict[int, bytes]  # the header of the operation


class MpiWorld:
    """The world of mpirun as this rank sees it.

    Made by all ranks together. Operations call `listen` from any thread; one at a time listens.
    """

    def __init__(self, mpi: Any, deadline: Deadline) -> None:
        self.mpi = mpi
        self.rank: int = mpi.COMM_WORLD.Get_rank()
        self.size: int = mpi.COMM_WORLD.Get_size()
        self.has_threads: bool = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self.thread = threading.get_ident()
        self.comm = self._duplicate(deadline)
        self.reason: Reason | None = None
        self.engines: weakref.WeakSet[Operations] = weakref.WeakSet()
        self.heard: dict[int, Heard] = {}  # by channel, of the groups that stand here
        # MPI may write into these for ever: what a failed operation had handed to it.
        self.quarantine: list[object] = []
        # Groups that nobody held any more: a garbage collection runs in the midst of anything, so
        # it only notes them here, without a lock, and they are closed by the next operation.
        self.left: deque[Operations] = deque()
        self._pid = os.getpid()
        self._control = self._duplicate(deadline)
        self._lock = threading.Lock()
        self._sent: list[tuple[MPI.Request, NDArray[Any]]] = []
        self._news = np.empty(_NEWS_NBYTES, np.uint8)
        self._receipt = self._receive()
        self.is_ended = False

    def _duplicate(self, deadline: Deadline) -> MPI.Intracomm:
        comm, request = self.mpi.COMM_WORLD.Idup()

        def check(_: float) -> None:
            if deadline.is_over():
                msg = f"rank {self.rank}: not all {self.size} ranks came within {deadline}"
                raise CollectiveTimeout(msg)

        wait_until(request.Test, check)
        copy: MPI.Intracomm = comm
        return copy

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the rank, in which MPI must not be touched."""
        return self._pid != os.getpid()

    def reap(self) -> None:
        """Close the groups that nobody holds any more; never called with a lock held."""
        while self.left:
            self.left.popleft().close()

    # -- failure ------------------------------------------------------------------------------

    def fail(self, reason: Reason) -> Reason:
        """Give the world up, for the first reason that anybody had; tell the others."""
        with self._lock:
            if self.reason is not None:
                return self.reason
            self.reason = reason
        text = reason.message.encode()[: _NEWS_NBYTES - _NEWS.size]
        head = (_FAILED, reason.kind, reason.culprit, len(text), 0, 0)
        self._tell(range(self.size), head, text)
        return reason

    def tell_closed(self, members: Iterable[int], channel: int, seq: int) -> None:
        """Tell that this rank leaves a group after ``seq`` operations."""
        self._tell(members, (_CLOSED, 0, self.rank, 0, channel, seq))

    def tell_waiting(self, members: Iterable[int], channel: int, header: bytes) -> None:
        """Tell in which operation this rank waits."""
        self._tell(members, (_WAITS, 0, self.rank, len(header), channel, 0), header)

    def _tell(self, members: Iterable[int], head: tuple[int, ...], text: bytes = b"") -> None:
        if self.is_ended:
            return
        record = np.zeros(_NEWS_NBYTES, np.uint8)
        data = _NEWS.pack(*head) + text
        record[: len(data)] = np.frombuffer(data, np.uint8)
        with self._lock:
            for member in members:
                if member != self.rank:
                    request = self._control.Isend([record, self.mpi.BYTE], member)
                    self._sent.append((request, record))

    def flush(self) -> None:
        """Let what was told leave; for a short while only."""
        deadline = Deadline(_SEND_S)

        def is_sent() -> bool:
            self.listen()
            return not self._sent or deadline.is_over()

        wait_until(is_sent, lambda _: None)

    # -- news ---------------------------------------------------------------------------------

    def hear_of(self, channel: int) -> Heard:
        """Keep news of a group; from before any member has it, as one may close it at once."""
        return self.heard.setdefault(channel, Heard({}, {}))

    def forget(self, channel: int) -> None:
        """Keep no news any more of a group that this rank has left: there may be many."""
        self.heard.pop(channel, None)

    def _receive(self) -> MPI.Request:
        mpi = self.mpi
        request: MPI.Request = self._control.Irecv([self._news, mpi.BYTE], mpi.ANY_SOURCE)
        return request

    def listen(self) -> None:
        """Take in the news that have come."""
        if self.is_ended or not self._lock.acquire(blocking=False):
            return
        try:
            while self._receipt.Test():
                data = self._news.tobytes()
                self._receipt = self._receive()
                self._take(data)
            if self._sent:
                self._sent = [kept for kept in self._sent if not kept[0].Test()]
        finally:
            self._lock.release()

    def _take(self, data: bytes) -> None:
        news, kind, rank, length, channel, seq = _NEWS.unpack_from(data)
        text = data[_NEWS.size : _NEWS.size + length]
        heard = self.heard.get(channel)
        if news == _CLOSED and heard is not None:
            heard.closed[rank] = seq
        elif news == _WAITS and heard is not None:
            heard.waiting[rank] = text
        elif news == _FAILED and self.reason is None:
            self.reason = Reason(kind, rank, text.decode(errors="ignore"))

    # -- end ----------------------------------------------------------------------------------

    def end(self, *, had_error: bool) -> None:
        """Close all groups and wait, asleep, for the others to come here; MPI's end may follow.

        MPI's own end waits as well, but burns a processor, and for ever if a rank is stuck. A
        world that has failed is aborted if it does not end by itself.
        """
        if self.is_forked or self.is_ended or self.mpi.Is_finalized():
            return
        for engine in tuple(self.engines):
            engine.close()
        self.flush()
        limit = _AFTER_ERROR_S if had_error else _AFTER_FAILURE_S
        arrival = self._control.Ibarrier()

        def check(waited_s: float) -> None:
            self.listen()
            if (had_error or self.reason is not None) and waited_s > limit:
                self.mpi.COMM_WORLD.Abort(1)

        wait_until(arrival.Test, check)
        self.listen()
        self.is_ended = True
        self._receipt.Cancel()
        self._receipt.Wait()
