"""Run a supervisor's tasks and polls; report those that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class LogOnceOnError:
    """Let polls fail: log the first failure and keep polling."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_said = False

    @contextmanager
    def look(self) -> Iterator[None]:
        """Suppress an exception raised inside; log the first one."""
        try:
            yield
        except Exception:
            if not self._is_said:
                self._is_said = True
                log.exception(
                    "%s failed; it goes on, and further failures are not logged", self._what
                )


async def poll(every_s: float, what: str, look: Callable[[], Awaitable[None]]) -> None:
    """Call ``look`` again and again, also after it has failed.

    ``what`` names it in the log.
    """
    errors = LogOnceOnError(what)
    while True:
        await asyncio.sleep(every_s)
        with errors.look():
            await look()


class TaskSet:
    """Run the tasks of one owner until `cancel`.

    ``on_failed`` is called with the error of a task that fails: its owner cannot go on as before.
    Python 3.10 has no `asyncio.TaskGroup`, which also ends only when its body does.
    """

    def __init__(self, on_failed: Callable[[BaseException], None]) -> None:
        self._on_failed = on_failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks, except one that calls this itself."""
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a task of the supervisor failed", exc_info=error)
            self._on_failed(error)
