"""Control messages, failure and shutdown of the MPI world.

In MPI one rank can wait forever for a rank that never comes. So ranks send each other small control
messages beside the operations: why the world has failed, which rank closed a group, and, during a
long wait, which rank waits in which operation (so that a timeout can name the missing ranks).
"""

from __future__ import annotations

import os
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import CollectiveMismatch, CollectiveTimeout, DistributedError

from ..control import Deadline

if TYPE_CHECKING:
    from mpi4py import MPI

    from .engine import MpiEngine

# One poll of MPI costs a Python call, about a microsecond. These values were not tuned.
_SPIN_S = 20e-6  # the cost of a sleep and a wake-up
_YIELD_S = 300e-6
_SHORTEST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 1e-3

# kind of message, kind of abort, culprit, bytes of text; channel, seq
_NEWS = struct.Struct("<IiiIQQ")

_NEWS_NBYTES = 640
_SEND_S = 0.2  # time for control messages to leave; they are small, and MPI buffers them
# After an uncaught error of the program, the other ranks get this long to end by themselves.
_AFTER_ERROR_S = 3.0

_AFTER_FAILURE_S = 60.0


def wait_until(
    is_done: Callable[[], object], check: Callable[[float], None], *, busy_s: float = 0.0
) -> None:
    """Poll until ``is_done()`` is true.

    MPI moves bytes only while it is polled. ``check`` gets the seconds waited so far and raises to
    end the wait. For ``busy_s`` seconds bytes probably still move: the wait yields the core but
    does not sleep.
    """
    if is_done():
        return
    start = time.monotonic()
    sleep_s = _SHORTEST_SLEEP_S
    while not is_done():
        waited_s = time.monotonic() - start
        check(waited_s)
        if waited_s < _SPIN_S:
            continue
        if waited_s < _YIELD_S + busy_s:
            os.sched_yield()
        else:
            time.sleep(sleep_s)
            sleep_s = min(1.5 * sleep_s, _LONGEST_SLEEP_S)


_FAILED, _CLOSED, _WAITS = 1, 2, 3


class Reason(NamedTuple):
    """Why the world failed; ``culprit`` is a world rank or -1."""

    kind: int
    culprit: int
    message: str

    def error(self) -> DistributedError:
        """Make the exception for this reason.

        Never a `RankFailure`: if a rank dies, mpirun ends the job.
        """
        if self.kind == _native.ABORT_MISMATCH:
            return CollectiveMismatch(self.message)
        if self.kind == _native.ABORT_TIMEOUT:
            return CollectiveTimeout(self.message)
        return DistributedError(self.message)


class AbortedError(Exception):
    """Ends an operation because the world has failed."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


class Received(NamedTuple):
    """Control messages received about one group, by world rank."""

    closed: dict[int, int]  # number of operations before the close
    waiting: dict[int, bytes]  # header of the operation that the rank waits in


class MpiWorld:
    """The MPI world as this rank sees it.

    All ranks construct the world together. Operations call `listen` from any thread; one thread
    at a time listens.
    """

    def __init__(self, mpi: Any, deadline: Deadline) -> None:
        self.mpi = mpi
        self.rank: int = mpi.COMM_WORLD.Get_rank()
        self.size: int = mpi.COMM_WORLD.Get_size()
        self.has_threads: bool = mpi.Query_thread() == mpi.THREAD_MULTIPLE
        self.thread = threading.get_ident()
        self.comm = self._duplicate(deadline)
        self.reason: Reason | None = None
        self.engines: weakref.WeakSet[MpiEngine] = weakref.WeakSet()
        self.received: dict[int, Received] = {}  # by channel, for the open groups of this rank
        # Arrays of failed operations: MPI may write into them at any later time.
        self.quarantine: list[object] = []
        # Groups without references. Garbage collection can run at any point, so `__del__` only
        # appends here, without a lock; the next operation closes these groups.
        self.left: deque[MpiEngine] = deque()
        self.key = b""  # from PHALANX_KEY_FILE, if all ranks have one
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
        """Whether this process is a fork, which must not call MPI."""
        return self._pid != os.getpid()

    def reap(self) -> None:
        """Close the groups without references; never called with a lock held."""
        while self.left:
            self.left.popleft().close()

    def fail(self, reason: Reason) -> Reason:
        """Record the first reason of failure and tell the other ranks."""
        with self._lock:
            if self.reason is not None:
                return self.reason
            self.reason = reason
        text = reason.message.encode()[: _NEWS_NBYTES - _NEWS.size]
        head = (_FAILED, reason.kind, reason.culprit, len(text), 0, 0)
        self._tell(range(self.size), head, text)
        return reason

    def tell_closed(self, members: Iterable[int], channel: int, seq: int) -> None:
        """Tell the members that this rank leaves a group after ``seq`` operations."""
        self._tell(members, (_CLOSED, 0, self.rank, 0, channel, seq))

    def tell_waiting(self, members: Iterable[int], channel: int, header: bytes) -> None:
        """Tell the members in which operation this rank waits."""
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
        """Wait until the control messages have left, for at most 0.2 s."""
        deadline = Deadline(_SEND_S)

        def is_sent() -> bool:
            self.listen()
            return not self._sent or deadline.is_over()

        wait_until(is_sent, lambda _: None)

    def received_on(self, channel: int) -> Received:
        """Store control messages of a group.

        Called before any member has the group, because a member may close it at once.
        """
        return self.received.setdefault(channel, Received({}, {}))

    def forget(self, channel: int) -> None:
        """Drop the control messages of a closed group, to free memory."""
        self.received.pop(channel, None)

    def _receive(self) -> MPI.Request:
        mpi = self.mpi
        request: MPI.Request = self._control.Irecv([self._news, mpi.BYTE], mpi.ANY_SOURCE)
        return request

    def listen(self) -> None:
        """Receive the control messages that have arrived."""
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
        received = self.received.get(channel)
        if news == _CLOSED and received is not None:
            received.closed[rank] = seq
        elif news == _WAITS and received is not None:
            received.waiting[rank] = text
        elif news == _FAILED and self.reason is None:
            self.reason = Reason(kind, rank, text.decode(errors="ignore"))

    def end(self, *, had_error: bool) -> None:
        """Close all groups and sleep until all ranks are here, before MPI_Finalize.

        MPI_Finalize waits as well, but spins on a core, and forever if a rank is stuck. A failed
        world that does not end by itself is aborted.
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
