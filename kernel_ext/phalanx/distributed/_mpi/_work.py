"""Asynchronous operations: one thread per group that does them in the order they came."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from phalanx.errors import CollectiveTimeout

__all__ = ["MpiWork", "Worker"]


class MpiWork:
    """An operation that a `Worker` was given."""

    def __init__(self, op: str, run: Callable[[], None]) -> None:
        self._op = op
        self._run = run
        self._ended = threading.Event()
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Return once it is complete; may be called again.

        Raises
        ------
        CollectiveTimeout
            It is not complete yet; it goes on.
        DistributedError
            What the operation raised.
        """
        if not self._ended.wait(timeout):
            msg = f"{self._op} is not complete after {timeout:g} s; it goes on, wait for it again"
            raise CollectiveTimeout(msg)
        if self._error is not None:
            raise self._error

    def perform(self) -> None:
        """Do it, on the worker's thread."""
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self._error = error
        self._ended.set()


class Worker:
    """The thread of one group. A daemon: a process may end while peers keep it waiting."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[MpiWork | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._last: MpiWork | None = None
        self._thread.start()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.perform()

    def submit(self, work: MpiWork) -> None:
        """Do it after all that came before."""
        self._last = work
        self._queue.put(work)

    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def wait_idle(self, timeout: float | None) -> bool:
        """Wait for what was submitted, as an operation of the caller's own comes after it."""
        last = self._last
        return last is None or last.done or last._ended.wait(timeout)

    def close(self) -> None:
        """End the thread once it is idle."""
        self._queue.put(None)
