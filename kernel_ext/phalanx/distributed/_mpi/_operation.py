"""What every operation of an MPI group has in common: its turn, its waits, its failure, its end.

Whatever goes wrong in an operation becomes the reason of the whole world, which all ranks are
told. MPI cannot take back what was started: it keeps the arrays it was given (`quarantine`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phalanx import _native
from phalanx.errors import CollectiveTimeout, DistributedError, NotSupported

from .._deadline import Deadline
from ._elements import spoil
from ._header import Header, describe_mismatch
from ._pairs import Pairs
from ._waiting import wait_until
from ._work import Worker
from ._world import AbortedError, MpiWorld, Reason

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["EPOCH", "RECORD_NBYTES", "Operations"]

Array = NDArray[Any]

EPOCH = 1  # MPI's world stands once
RECORD_NBYTES = 512  # of a rank, in the exchange that every collective begins with
_TURN_BITE_S = 0.05
_TELL_AFTER_S = 0.05  # in an operation: the others learn where we wait
_ANSWER_S = 0.15  # after a deadline: who waits has told by then
_IN_FLIGHT_S = 0.2  # what a rank sent before it closed has come by then
_BUSY_RATE = 2e8  # bytes per second: what moves more slowly need not be hurried
_CLOSE_S = 5.0


class Operations:
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
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.epoch = EPOCH
        self.members = tuple(members)
        self.host_names = tuple(host_names)
        self.is_closed = False
        self.timeout: float | None = None
        self._world = world
        self._comm = comm
        self._channel = channel
        self._turn = threading.Lock()
        self._worker: Worker | None = None
        self._worker_lock = threading.Lock()
        self._seq = 0
        self._counts = [0, 0]  # operations, bytes
        self._record = np.zeros(RECORD_NBYTES, np.uint8)
        self._records = np.empty((self.size, RECORD_NBYTES), np.uint8)
        self._pairs = Pairs(world.mpi, comm)
        self._held: list[object] = []
        self._me = self.members[self.rank]  # in every text: the world's ranks
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

    def _check_usable(self) -> None:
        if self.is_closed:
            msg = (
                f"rank {self._me}: the group is closed and cannot be used any more; "
                "of a part of the ranks make a new one with split"
            )
            raise DistributedError(msg)
        world = self._world
        if world.is_forked:
            msg = "this process is a fork of the rank, which MPI belongs to; call collectives there"
            raise DistributedError(msg)
        world.reap()
        if not world.has_threads and threading.get_ident() != world.thread:
            msg = "this MPI lets only the thread in that called init (no MPI_THREAD_MULTIPLE)"
            raise NotSupported(msg)
        world.listen()
        if world.reason is not None:
            raise self._error(world.reason)

    @contextmanager
    def _operation(self, op: str, timeout: float | None) -> Iterator[Deadline]:
        """One thread at a time, after all that was submitted; until then no harm is done."""
        self._check_usable()
        deadline = Deadline(self.timeout if timeout is None else timeout)
        worker = self._worker
        is_mine = worker is None or worker.is_current()
        while not (
            (is_mine or worker is None or worker.wait_idle(_TURN_BITE_S))
            and self._turn.acquire(timeout=_TURN_BITE_S)
        ):
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

    # -- waiting ------------------------------------------------------------------------------

    def _wait(
        self,
        is_done: Callable[[], object],
        header: Header,
        deadline: Deadline,
        *,
        nbytes: int = 0,
        has_met: bool = False,
        peer: int | None = None,
    ) -> None:
        """Wait for MPI, with an eye on the deadline, the news and (by itself) signals.

        ``has_met``: all ranks are in the operation. ``peer``: the one rank that is waited for.
        """
        world = self._world
        others = [r for r in range(self.size) if r != self.rank] if peer is None else [peer]
        is_exact = peer is not None or len(others) == 1
        has_told = has_met or is_exact
        seen: dict[str, float] = {}

        def check(waited_s: float) -> None:
            nonlocal has_told
            world.listen()
            if world.reason is not None:
                raise AbortedError(world.reason)
            if not has_met:
                self._check_closed(header, others, waited_s, seen, is_pair=peer is not None)
                if peer is None and world.waiting:
                    self._check_visible(header)
            is_over = deadline.is_over()
            if not has_told and (is_over or waited_s > _TELL_AFTER_S):
                has_told = True
                members = [self.members[rank] for rank in others]
                world.tell_waiting(members, self._channel, header.pack())
            if is_over:
                over_s = seen.setdefault("deadline", waited_s)
                if has_met or is_exact or waited_s - over_s > _ANSWER_S:
                    missing = others if is_exact else self._missing(header, others)
                    raise AbortedError(self._late(header, deadline, [] if has_met else missing))

        wait_until(is_done, check, busy_s=nbytes / _BUSY_RATE)

    def _check_closed(
        self,
        header: Header,
        others: Sequence[int],
        waited_s: float,
        seen: dict[str, float],
        *,
        is_pair: bool,
    ) -> None:
        for rank in others:
            member = self.members[rank]
            done = self._world.closed.get((self._channel, member))
            if done is None or (not is_pair and done >= header.seq):
                continue
            first_s = seen.setdefault("closed", waited_s)
            if waited_s - first_s >= _IN_FLIGHT_S:
                text = f"rank {member} closed the group; rank {self._me} was in {header}"
                raise AbortedError(Reason(_native.ABORT_CLOSED, member, text))

    def _visible(self, header: Header) -> dict[int, bytes]:
        """Return the headers of the members that are known to wait in this operation, by rank."""
        found = {self.rank: header.pack()}
        for rank, member in enumerate(self.members):
            came = self._world.waiting.get((self._channel, member))
            if came is not None and Header.unpack(came).seq == header.seq:
                found[rank] = came
        return dict(sorted(found.items()))

    def _check_visible(self, header: Header) -> None:
        """See a mismatch among those that have come, whoever never comes."""
        found = self._visible(header)
        text = describe_mismatch([self.members[r] for r in found], tuple(found.values()))
        if text:
            raise AbortedError(Reason(_native.ABORT_MISMATCH, -1, text))

    def _missing(self, header: Header, others: Sequence[int]) -> list[int]:
        found = self._visible(header)
        return [rank for rank in others if rank not in found]

    def _late(self, header: Header, deadline: Deadline, missing: Sequence[int]) -> Reason:
        ranks = [self.members[rank] for rank in missing]
        names = ", ".join(map(str, ranks))
        who = f"missing: rank{'s' if len(ranks) > 1 else ''} {names}" if ranks else "none missing"
        text = f"rank {self._me}: {header} timed out after {deadline}; {who}"
        culprit = ranks[0] if len(ranks) == 1 else -1
        return Reason(_native.ABORT_TIMEOUT, culprit, text)

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
            text = f"rank {self._me} was interrupted in {header}"
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
        if self._worker is not None:
            self._worker.close()
        world = self._world
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
        if hasattr(self, "_me") and not self.is_closed:
            self._world.left.append(self)

    def describe(self, sizes: Sequence[int] = ()) -> dict[str, Any]:
        """Tell which MPI it is, and what was done; algorithms are its own business."""
        library = self._world.mpi.Get_library_version().split("\n")[0].rstrip("\0")
        return {
            "rank": self.rank,
            "size": self.size,
            "epoch": self.epoch,
            "library": library,
            "has_threads": self._world.has_threads,
            "operations": self._counts[0],
            "bytes": self._counts[1],
        }
