"""Asynchronous operations: one thread per group that does them in the order they came.

A wait that is interrupted, or for an operation whose own time is up behind others, is the end of
the epoch: what became of the operation could not be told to the other ranks in any other way.
"""

from __future__ import annotations

import queue
import threading
import traceback
from functools import partial
from typing import Protocol

from phalanx import _native
from phalanx.errors import CollectiveTimeout

from .._deadline import Deadline

__all__ = ["MpiWork", "Worker", "interrupted", "late_behind"]

_LEAVE_S = 5.0  # for the thread to leave an operation whose epoch is over
_JOIN_S = 1.0


def interrupted(rank: int, op: object) -> str:
    """Say that a handler of a signal has raised, as Ctrl-C's does."""
    return f"rank {rank} was interrupted in {op}"


def late_behind(rank: int, op: str, deadline: Deadline) -> str:
    """Say that an operation had no time left to begin."""
    return (
        f"rank {rank}: {op} timed out after {deadline} "
        "behind operations that were submitted before it"
    )


class _Ending(Protocol):
    """Whose end of an epoch it is."""

    def abort(self, kind: int, culprit: int, message: str) -> bool: ...
    def check_process(self) -> None: ...


class MpiWork:
    """An operation that a `Worker` was given.

    Parameters
    ----------
    op : str
        Its name.
    run : functools.partial
        Does it; forgotten as soon as it is done, as it holds the arrays. (A function that encloses
        them would hold them as long as the traceback of what it raises.)
    deadline : Deadline
        By when it must be done: its time counts from its submission.
    engine : has ``abort`` and ``check_process``
        The group.
    rank : int
        This rank's number in the world.
    """

    def __init__(
        self, op: str, run: partial[None], deadline: Deadline, engine: _Ending, rank: int
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
        """Return once it is complete; may be called again.

        Raises
        ------
        CollectiveTimeout
            It is not complete yet and goes on; or its own time is up, and the epoch is over.
        DistributedError
            What the operation raised; or this is a fork of the rank, without the thread.
        """
        limit = Deadline(timeout)
        if not self.done:
            self._engine.check_process()
        try:
            is_over = self._wait_for_its_time(limit) or self.ended.wait(limit.remaining())
        except BaseException:
            # Raised by a handler of a signal, as Ctrl-C's. The others would wait for ever.
            if not self.done:
                text = interrupted(self._rank, self._op)
                self._engine.abort(_native.ABORT_INTERRUPTED, self._rank, text)
                self.ended.wait(_LEAVE_S)  # then its arrays are the caller's again
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
        """Wait until the operation should have ended; whether it has."""
        its, rest = self._deadline.remaining(), limit.remaining()
        if its is None or (rest is not None and rest < its):
            return False
        # Once begun it ends its own time, and names who is missing.
        if not self.ended.wait(its) and self._run is not None:
            text = late_behind(self._rank, self._op, self._deadline)
            self._engine.abort(_native.ABORT_TIMEOUT, -1, text)
        return self.done

    def perform(self) -> None:
        """Do it, on the worker's thread."""
        run, self._run = self._run, None
        assert run is not None
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self._error = error
            _forget_arrays(error)
        del run  # first: who has waited for it is the arrays' only owner
        self.ended.set()


def _forget_arrays(error: BaseException | None) -> None:
    """Empty the frames that an error came through; what they were stays to be told."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


class Worker:
    """The thread of one group. A daemon: a process may end while peers keep it waiting."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[MpiWork | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last_ended: threading.Event | None = None
        self._thread.start()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.perform()
            del work  # it holds the group, which nobody else may hold any more

    def submit(self, work: MpiWork) -> None:
        """Do it after all that came before."""
        self._last_ended = work.ended
        self._queue.put(work)

    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait for what was submitted, as an operation of the caller's own comes after it."""
        last = self._last_ended
        return last is None or last.is_set() or last.wait(timeout)

    def close(self) -> None:
        """End the thread, which has nothing left to do; give back what it uses."""
        self._queue.put(None)
        if not self.is_current():
            self._thread.join(_JOIN_S)
