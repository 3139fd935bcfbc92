"""Courtesy of a process that wakes often beside ranks that compute: it does not push in.

A thread that wakes takes its core at once, also from a rank in the middle of a copy, for which all
other ranks wait. Under SCHED_BATCH it takes a core that is free, that of a rank which waits, or its
turn, some milliseconds later. What the process does when it has its turn it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Courtesy", "pushing_in"]

LASTS_S = 2.0  # longer than who watches lets pass between two looks, even at very many ranks
_TASKS = Path("/proc/self/task")
_CAN = hasattr(os, "sched_setscheduler") and _TASKS.is_dir()  # Linux
# The flag says that it was us: a user may have chosen SCHED_BATCH for all of it. It stays, as only
# root may take it back; to a thread of ordinary priority it makes no difference.
_MARK: int = getattr(os, "SCHED_RESET_ON_FORK", 0)
_BATCH: int = getattr(os, "SCHED_BATCH", 0)
_OTHER: int = getattr(os, "SCHED_OTHER", 0)
_ORDINARY = _OTHER | _MARK
_COURTEOUS = _BATCH | _MARK


def _become(thread: int, policy: int) -> None:
    # A thread may have ended, or a sandbox forbid it: then it is as it was.
    if hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, policy, os.sched_param(0))


def _policy(thread: int) -> int:
    """Return -1 for a thread that has ended."""
    policy = -1
    if hasattr(os, "sched_getscheduler"):
        with contextlib.suppress(OSError):
            policy = os.sched_getscheduler(thread)
    return policy


def _threads() -> dict[int, int]:
    """All of this process, and their policies without the mark."""
    return {int(task.name): _policy(int(task.name)) & ~_MARK for task in _TASKS.iterdir()}


class Courtesy:
    """Of all threads of this process, for as long as somebody asks for it.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        Where its end is waited for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._end: asyncio.TimerHandle | None = None
        self._others: set[int] = set()  # threads that have a policy of their own

    @property
    def is_shown(self) -> bool:
        """Whether it lasts now."""
        return self._end is not None

    def show(self, seconds: float = LASTS_S) -> None:
        """Be courteous from now on; ``seconds`` after the last word it ends."""
        if not _CAN:
            return
        if self._end is None:
            found = _threads()
            self._others = {its for its, policy in found.items() if policy != _OTHER}
            for thread in found.keys() - self._others:
                _become(thread, _COURTEOUS)
        else:
            self._end.cancel()
        self._end = self._loop.call_later(seconds, self.end)

    def end(self) -> None:
        """Be as before."""
        if self._end is None:
            return
        self._end.cancel()
        self._end = None
        # Those that were started meanwhile are courteous, too, without the mark.
        for thread, policy in _threads().items():
            if policy == _BATCH and thread not in self._others:
                _become(thread, _ORDINARY)


@contextlib.contextmanager
def pushing_in() -> Iterator[None]:
    """Let this thread be as it was: it starts a process, which would inherit the courtesy."""
    if not _CAN or _policy(0) != _COURTEOUS:
        yield
        return
    _become(0, _ORDINARY)
    try:
        yield
    finally:
        _become(0, _COURTEOUS)
