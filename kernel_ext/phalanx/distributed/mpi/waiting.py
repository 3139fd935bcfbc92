"""Wait for MPI operations, in the caller or on a worker thread.

An interrupted wait ends the epoch. So does an operation that times out behind earlier operations.
There is no other way to tell the other ranks that this rank left the operation.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from phalanx import _native
from phalanx.errors import CollectiveTimeout

from ..control import Deadline
from .wire import Header, describe_mismatch
from .world import AbortedError, MpiWorld, Reason, wait_until

if TYPE_CHECKING:
    from .engine import MpiEngine

_NOTIFY_AFTER_S = 0.05  # waiting time after which a rank tells the others where it waits
_ANSWER_S = 0.15  # after a deadline: time for the waiting ranks' messages to arrive
_IN_FLIGHT_S = 0.2  # time for messages that a rank sent before it closed to arrive
_BUSY_RATE = 2e8  # bytes per second: the wait for a slower transfer may sleep
_LEAVE_S = 5.0  # time for the worker thread to leave an operation of an ended epoch
_JOIN_S = 1.0


def interrupted(rank: int, op: object) -> str:
    """Make the error text for an operation interrupted by a signal."""
    return f"rank {rank} was interrupted in {op}"


def late_behind(rank: int, op: str, deadline: Deadline) -> str:
    """Make the error text for a timeout before the operation began."""
    return (
        f"rank {rank}: {op} timed out after {deadline} "
        "behind operations that were submitted before it"
    )


class MpiWork:
    """A collective queued on a `Worker`; its deadline counts from submission.

    ``run`` is dropped when it has run, because it holds the arrays. (A closure would keep the
    arrays alive as long as the traceback of its exception.) ``rank`` is this rank's number in the
    world.
    """

    def __init__(
        self, op: str, run: partial[None], deadline: Deadline, engine: MpiEngine, rank: int
    ) -> None:
        self._op = op
        self._run: partial[None] | None = run
        self._deadline = deadline
        self._engine = engine
        self._rank = rank
        self.ended = threading.Event()
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self.ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the operation is complete; may be called again.

        After a `CollectiveTimeout` of this wait alone the operation goes on.
        """
        limit = Deadline(timeout)
        if not self.done:
            self._engine.check_process()
        try:
            is_over = self._wait_for_its_time(limit) or self.ended.wait(limit.remaining())
        except BaseException:
            # A signal handler raised, as Ctrl-C does. The other ranks would wait forever.
            if not self.done:
                text = interrupted(self._rank, self._op)
                self._engine.abort(_native.ABORT_INTERRUPTED, self._rank, text)
                self.ended.wait(_LEAVE_S)  # afterwards the caller owns the arrays again
            raise
        if not is_over:
            msg = (
                f"rank {self._rank}: {self._op} is still under way after a wait of {limit}; "
                "wait again, or give the call a timeout"
            )
            raise CollectiveTimeout(msg)
        if self._error is not None:
            raise self._error

    def _wait_for_its_time(self, limit: Deadline) -> bool:
        """Wait for the operation's own deadline; return whether the operation ended."""
        its, rest = self._deadline.remaining(), limit.remaining()
        if its is None or (rest is not None and rest < its):
            return False
        # An operation that has begun ends at its own deadline and names the missing ranks.
        if not self.ended.wait(its) and self._run is not None:
            text = late_behind(self._rank, self._op, self._deadline)
            self._engine.abort(_native.ABORT_TIMEOUT, -1, text)
        return self.done

    def perform(self) -> None:
        """Run the operation; called on the worker thread."""
        run, self._run = self._run, None
        assert run is not None
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
            _forget_arrays(error)
        del run  # before `ended` is set: then the waiting caller is the only owner of the arrays
        self.ended.set()


def _forget_arrays(error: BaseException | None) -> None:
    """Clear the frames of a traceback, which keep arrays alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


class Worker:
    """Worker thread of one group; a daemon, so that exit never blocks."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[MpiWork | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last_ended: threading.Event | None = None
        self._thread.start()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.perform()
            del work  # it holds the group, which may have no other reference

    def submit(self, work: MpiWork) -> None:
        """Queue an operation after all earlier ones."""
        self._last_ended = work.ended
        self._queue.put(work)

    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait until all submitted operations have ended; return whether they have."""
        last = self._last_ended
        return last is None or last.is_set() or last.wait(timeout)

    def close(self) -> None:
        """End the thread after the queued operations."""
        self._queue.put(None)
        if not self.is_current():
            self._thread.join(_JOIN_S)


class PeerWatch:
    """Watch the other ranks of a group while this rank waits.

    Ends a wait if a rank closed the group, waits in another operation, or did not come in time.
    """

    def __init__(self, world: MpiWorld, members: tuple[int, ...], rank: int, channel: int) -> None:
        self._members = members
        self._rank = rank
        self._size = len(members)
        self._me = members[rank]  # error texts name world ranks
        self._world = world
        self._channel = channel
        self._received = world.received_on(channel)

    def wait(
        self,
        is_done: Callable[[], object],
        header: Header,
        deadline: Deadline,
        *,
        nbytes: int = 0,
        has_met: bool = False,
        peer: int | None = None,
    ) -> None:
        """Wait for MPI; also check the deadline and control messages.

        ``has_met``: all ranks are in the operation. ``peer``: the only rank waited for.
        """
        world = self._world
        others = [r for r in range(self._size) if r != self._rank] if peer is None else [peer]
        is_exact = peer is not None or len(others) == 1
        has_notified = has_met or is_exact
        seen: dict[str, float] = {}

        def check(waited_s: float) -> None:
            nonlocal has_notified
            world.listen()
            if world.reason is not None:
                raise AbortedError(world.reason)
            if not has_met:
                self._check_closed(header, others, waited_s, seen, is_pair=peer is not None)
                if peer is None and self._received.waiting:
                    self._check_visible(header)
            is_over = deadline.is_over()
            if not has_notified and (is_over or waited_s > _NOTIFY_AFTER_S):
                has_notified = True
                members = [self._members[rank] for rank in others]
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
            member = self._members[rank]
            done = self._received.closed.get(member)
            if done is None or (not is_pair and done >= header.seq):
                continue
            first_s = seen.setdefault("closed", waited_s)
            if waited_s - first_s >= _IN_FLIGHT_S:
                text = f"rank {member} closed the group; rank {self._me} was in {header}"
                raise AbortedError(Reason(_native.ABORT_CLOSED, member, text))

    def _visible(self, header: Header) -> dict[int, bytes]:
        """Return the headers of ranks known to wait in this operation."""
        found = {self._rank: header.pack()}
        for rank, member in enumerate(self._members):
            came = self._received.waiting.get(member)
            if came is not None and Header.unpack(came).seq == header.seq:
                found[rank] = came
        return dict(sorted(found.items()))

    def _check_visible(self, header: Header) -> None:
        """Detect a mismatch among the waiting ranks."""
        found = self._visible(header)
        text = describe_mismatch([self._members[r] for r in found], tuple(found.values()))
        if text:
            raise AbortedError(Reason(_native.ABORT_MISMATCH, -1, text))

    def _missing(self, header: Header, others: Sequence[int]) -> list[int]:
        found = self._visible(header)
        return [rank for rank in others if rank not in found]

    def _late(self, header: Header, deadline: Deadline, missing: Sequence[int]) -> Reason:
        ranks = [self._members[rank] for rank in missing]
        names = ", ".join(map(str, ranks))
        who = f"missing: rank{'s' if len(ranks) > 1 else ''} {names}" if ranks else "none missing"
        text = f"rank {self._me}: {header} timed out after {deadline}; {who}"
        culprit = ranks[0] if len(ranks) == 1 else -1
        return Reason(_native.ABORT_TIMEOUT, culprit, text)
