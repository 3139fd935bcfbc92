"""Tell the user's threads from ours.

A thread belongs to the user unless the package of its code is in `_HOUSEKEEPING`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import thread as pools
from contextvars import Context, copy_context
from functools import partial, wraps
from types import FrameType

# Packages with internal threads that call no collective.
_HOUSEKEEPING = frozenset(
    {"IPython", "asyncio", "ipykernel", "ipyparallel", "phalanx", "tornado", "tqdm", "zmq"}
)

# Packages with pool threads: they live as long as the process and run tasks of any caller.
_POOLS = frozenset({"concurrent", "multiprocessing"})

# Longest time between the end of a pool worker's task and its wait for the next: microseconds;
# tenths of a second on a busy machine; plus the user's callbacks.
_SETTLE_S = 1.0
_LOOK_AGAIN_S = 0.001


def _package_of(thread: threading.Thread) -> str:
    """Return the top-level package of the code that a thread runs."""
    owner: object = type(thread)
    if type(thread) is threading.Thread:
        owner = getattr(thread, "_target", None)
    return str(getattr(owner, "__module__", "") or "").partition(".")[0]


def _has_work(thread: threading.Thread, top: FrameType | None) -> bool | None:
    """Return whether a thread runs code.

    A pool worker without a task does not. None: a worker has ended its task and does not wait for
    the next yet. ``top`` is the thread's innermost frame.
    """
    work = pools._threads_queues.get(thread)
    if work is None or top is None or not work.empty():
        return True
    if top.f_code is pools._worker.__code__:
        return False  # it waits for work: everything else it does runs in deeper frames
    frame: FrameType | None = top
    while frame is not None and frame.f_code is not pools._WorkItem.run.__code__:
        frame = frame.f_back
    if frame is None:  # between tasks
        return None
    item = frame.f_locals.get("self")  # None after its error was set
    return None if item is None or item.future.done() else True


class UserThreads:
    """Detects live threads of the user's code, except those in ``before``.

    Without ``before``, all threads alive at construction are excluded. A worker of a
    `concurrent.futures.ThreadPoolExecutor` counts only while it has work, because the workers of
    `asyncio.to_thread` wait for work as long as the process lives.
    """

    def __init__(self, before: Collection[threading.Thread] | None = None) -> None:
        self._before = set(threading.enumerate() if before is None else before)

    def may_act(self) -> bool:
        """Return whether a counted thread may call the engine (about 10 us)."""
        return any(has_work is not False for has_work in self._work_of_each())

    def are_alive(self) -> bool:
        """Return whether a counted thread may still call the engine.

        Waits up to `_SETTLE_S` for pool workers that are between two tasks.
        """
        until_s = time.monotonic() + _SETTLE_S
        while True:
            found = self._work_of_each()
            if True in found or None not in found:
                return True in found
            if time.monotonic() >= until_s:
                return True
            time.sleep(_LOOK_AGAIN_S)

    def _work_of_each(self) -> list[bool | None]:
        counted = [
            thread
            for thread in threading.enumerate()
            if thread not in self._before and _package_of(thread) not in _HOUSEKEEPING
        ]
        if not counted:
            return []
        frames = sys._current_frames()
        return [_has_work(thread, frames.get(thread.ident or 0)) for thread in counted]


def prepare_threads(bequeath: Callable[[], Callable[[], object]]) -> None:
    """Make each user thread start in a context set by its starter.

    The starting thread calls ``bequeath``. The new thread's context runs the result, which may set
    context variables. Pool threads are left alone: they outlive their creator and work for other
    callers.
    """
    plain_start = threading.Thread.start

    @wraps(plain_start)
    def start(thread: threading.Thread) -> None:
        if _package_of(thread) in _HOUSEKEEPING | _POOLS:
            plain_start(thread)
            return
        inherits = getattr(sys.flags, "thread_inherit_context", False)  # from Python 3.14 on
        context = copy_context() if inherits else Context()
        context.run(bequeath())
        if getattr(thread, "_context", thread) is None:  # Python 3.14 enters this context
            thread._context = context  # type: ignore[attr-defined]
        # partial and Context.run are C, so the thread's tracebacks show no frame of ours.
        thread._bootstrap = partial(context.run, thread._bootstrap)  # type: ignore[attr-defined]
        try:
            plain_start(thread)
        finally:
            del thread._bootstrap  # type: ignore[attr-defined]

    threading.Thread.start = start  # type: ignore[method-assign,assignment]
