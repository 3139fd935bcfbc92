"""What every operation of an MPI group has in common: its turn, its waits, its failure, its end.

Whatever goes wrong in an operation becomes the reason of the whole world, which all ranks are
told. MPI cannot take back what was started: it keeps the arrays it was given (`quarantine`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError, NotSupported

from .._deadline import Deadline
from ._elements import spoil
from ._header import HEADER_NBYTES, Header
from ._pairs import Pairs
from ._usage import COLLECTIVES
from ._waits import Waits
from ._work import Worker, interrupted, late_behind
from ._world import AbortedError, MpiWorld, Reason

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["EPOCH", "INLINE_NBYTES", "Operations"]

Array = NDArray[Any]

EPOCH = 1  # MPI's world stands once
RECORD_NBYTES = 512  # of a rank, in the exchange that every collective begins with
INLINE_NBYTES = RECORD_NBYTES - HEADER_NBYTES  # what a record has room for beside the header
_TOLD_NBYTES = (8, 1 << 10, 1 << 14, 1 << 20, 1 << 26)  # as the native engine has it
_TURN_BITE_S = 0.05
_CLOSE_S = 5.0


class Operations(Waits):
    """One MPI group without its operations.

    Parameters
    ----------
    world : MpiWorld
        What all groups share.
    comm : MPI.Intracomm
        This group's own.
    members : sequence of int
        World ranks by rank of this group.
    channel : int
        Tells groups apart, the same on all members; 0 is the world's group.
    host_names : sequence of str
        By world rank.
    """

    def __init__(
        self,
        world: MpiWorld,
        comm: MPI.Intracomm,
        members: Sequence[int],
        channel: int = 0,
        host_names: Sequence[str] = (),
    ) -> None:
        super().__init__(world, comm, members, channel)
        self.epoch = EPOCH
        self.host_names = tuple(host_names)
        self.is_closed = False
        self.timeout: float | None = None
        self._comm = comm
        self._turn = threading.Lock()
        self._worker: Worker | None = None
        self._worker_lock = threading.Lock()
        self._seq = 0
        self._counts = [0, 0]  # operations, bytes
        self._record = np.zeros(RECORD_NBYTES, np.uint8)
        self._records = np.empty((self.size, RECORD_NBYTES), np.uint8)
        self._pairs = Pairs(world.mpi, comm)
        self._held: list[object] = []
        world.engines.add(self)

    # -- turn ---------------------------------------------------------------------------------

    @property
    def failure(self) -> tuple[int, int, str] | None:
        """``(kind, culprit, message)`` once the world has failed."""
        reason = self._world.reason
        return None if reason is None else (reason.kind, reason.culprit, reason.message)

    def _error(self, reason: Reason) -> DistributedError:
        known = 0 <= reason.culprit < len(self.host_names)
        return reason.error(self.host_names[reason.culprit] if known else "")

    def _check_open(self) -> None:
        if self.is_closed:
            msg = (
                f"rank {self._me}: the group is closed and cannot be used any more; "
                "of a part of the ranks make a new one with split"
            )
            raise DistributedError(msg)

    def check_process(self) -> None:
        """Refuse what a fork of the rank asks for."""
        if self._world.is_forked:
            msg = "this process is a fork of the rank, which MPI belongs to; call collectives there"
            raise DistributedError(msg)

    def _check_usable(self) -> None:
        self._check_open()
        self.check_process()
        world = self._world
        world.reap()
        if not world.has_threads and threading.get_ident() != world.thread:
            msg = "this MPI lets only the thread in that called init (no MPI_THREAD_MULTIPLE)"
            raise NotSupported(msg)
        world.listen()
        if world.reason is not None:
            raise self._error(world.reason)

    def _deadline(self, timeout: float | Deadline | None) -> Deadline:
        """Begin to count, unless that was begun."""
        if isinstance(timeout, Deadline):
            return timeout
        return Deadline(self.timeout if timeout is None else timeout)

    @contextmanager
    def _operation(self, op: str, timeout: float | Deadline | None) -> Iterator[Deadline]:
        """One thread at a time, after all that was submitted."""
        self._check_usable()
        deadline = self._deadline(timeout)
        if self._worker is not None and not self._worker.is_current():
            self._wait_behind(self._worker, op, deadline)
        # For another thread: nothing was begun, so leaving does the group no harm.
        while not self._turn.acquire(timeout=_TURN_BITE_S):
            self._check_usable()
            if deadline.is_over():
                msg = (
                    f"rank {self._me}: {op} timed out waiting for another operation of this rank's"
                )
                raise CollectiveTimeout(msg)
        try:
            self._check_usable()
            yield deadline
        finally:
            self._turn.release()

    def _wait_behind(self, worker: Worker, op: str, deadline: Deadline) -> None:
        """Wait for what this rank began before; to leave out an operation would be the epoch's end.

        The others have it in their order, and would take our next one for it.
        """
        try:
            while not worker.wait_idle(_TURN_BITE_S):
                self._check_usable()
                if deadline.is_over():
                    self.abort(_native.ABORT_TIMEOUT, -1, late_behind(self._me, op, deadline))
        except DistributedError:
            raise
        except self._world.mpi.Exception as error:
            text = f"rank {self._me}: {op} failed: {error}"
            reason = self._world.fail(Reason(_native.ABORT_ERROR, self._me, text))
            self._world.flush()
            raise self._error(reason) from error
        except BaseException:
            self.abort(_native.ABORT_INTERRUPTED, self._me, interrupted(self._me, op))
            raise

    # -- failure ------------------------------------------------------------------------------

    @contextmanager
    def _guard(self, header: Header, *held: object) -> Iterator[list[tuple[Array, str]]]:
        """Turn what happens inside into the world's reason; gives a list for outputs begun."""
        begun: list[tuple[Array, str]] = []
        self._held = list(held)
        try:
            yield begun
        except AbortedError as error:
            raise self._give_up(error.reason, header, begun) from None
        except self._world.mpi.Exception as error:
            text = f"rank {self._me}: {header} failed: {error}"
            reason = Reason(_native.ABORT_ERROR, self._me, text)
            raise self._give_up(reason, header, begun) from error
        except BaseException:
            # Raised by a handler of a signal, as Ctrl-C's, while we waited.
            text = interrupted(self._me, header)
            self._give_up(Reason(_native.ABORT_INTERRUPTED, self._me, text), header, begun)
            raise
        self._held = []

    def _give_up(
        self, reason: Reason, header: Header, begun: Sequence[tuple[Array, str]]
    ) -> DistributedError:
        world = self._world
        world.quarantine.append((self._held, self._record, self._records, self._pairs))
        reason = world.fail(reason)
        world.flush()
        for out, name in begun:
            spoil(out, name)
        if begun:
            reason = reason._replace(message=f"{reason.message}; its output was invalidated")
        return self._error(reason)

    def abort(self, kind: int, culprit: int, message: str) -> bool:
        """Give the world up; whether this was the first reason."""
        reason = Reason(kind, culprit, message)
        is_first = self._world.reason is None
        is_first = self._world.fail(reason) is reason and is_first
        self._world.flush()
        return is_first

    def settle(self, timeout: float) -> bool:
        """Wait until no thread is inside a group that has failed; False if one still is."""
        has_left = self._turn.acquire(timeout=timeout)
        if has_left:
            self._turn.release()
        return has_left

    # -- end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, quietly: only a rank that still expects this one is told why."""
        if self.is_closed or self._world.is_forked:
            return
        self.is_closed = True
        if not self._turn.acquire(blocking=False):
            text = f"rank {self._me} closed the group"
            self._world.fail(Reason(_native.ABORT_CLOSED, self._me, text))
            if not self._turn.acquire(timeout=_CLOSE_S):
                return
        with self._worker_lock:  # nobody submits behind the end
            if self._worker is not None:
                self._worker.close()
        world = self._world
        world.forget(self._channel)
        if world.is_ended:
            return
        if world.reason is None:
            world.tell_closed(self.members, self._channel, self._seq)
            if self._channel and self._pairs.is_idle():
                # MPI might wait for the others here, but neither Open MPI nor MPICH does.
                self._comm.Free()
                return
        world.quarantine.append(self._pairs)

    def __del__(self) -> None:
        """Note a group that nobody holds any more, which `MpiWorld.reap` closes."""
        if hasattr(self, "_held") and not self.is_closed:  # made in full
            self._world.left.append(self)

    def describe(self, sizes: Sequence[int] = ()) -> dict[str, Any]:
        """Tell which MPI it is, what was done, and what is ours of it: small arrays, with headers.

        For arrays beyond that an operation is named "mpi": how it is done is the library's business.
        """
        told = (*_TOLD_NBYTES, *sizes)
        ways = {n: "inline" if n <= INLINE_NBYTES else "mpi" for n in told}
        library = self._world.mpi.Get_library_version().split("\n")[0].rstrip("\0")
        return {
            "rank": self.rank,
            "size": self.size,
            "epoch": self.epoch,
            "library": library,
            "has_threads": self._world.has_threads,
            "algorithms": {
                **{op: dict(ways) for op in COLLECTIVES},
                "barrier": dict.fromkeys(told, "inline"),
            },
            "stripes": {},
            "operations": self._counts[0],
            "bytes": self._counts[1],
        }
