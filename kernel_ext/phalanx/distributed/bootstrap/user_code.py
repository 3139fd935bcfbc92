"""Tell the user's code from ours: threads, and frames of tracebacks.

A thread belongs to the user unless the package of its code is in `_HOUSEKEEPING`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import thread as pools
from contextvars import Context, copy_context
from functools import partial, wraps
from types import FrameType, TracebackType

# Packages with internal threads that call no collective.
_HOUSEKEEPING = frozenset(
    {"IPython", "asyncio", "ipykernel", "ipyparallel", "phalanx", "tornado", "tqdm", "zmq"}
)

# pydevd's frames stand in the traceback of a cell that was stopped at a breakpoint.
_OWN = frozenset({"phalanx", "pydevd", "_pydevd_bundle", "_pydevd_sys_monitoring"})

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


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Drop our frames from the end of a traceback.

    If `px.all_sum` refuses an array, the traceback then ends at the user's call. Our frames that
    have user code below them (we called the user's code) stay. Frames of Python's own library that
    we called are dropped too.
    """
    frames = _frames(traceback)
    kept = frames[: _own_end(frames)]
    if not kept:
        return frames[0] if frames else None
    return _joined(kept)


def number_lines(error: BaseException | None) -> None:
    """Give each frame of an error and its causes a line.

    Python has none for instructions that it adds itself, where an interrupt may arrive. IPython
    then shows an error of its own formatter instead of the user's error.
    """
    for link in _chain(error):
        frames = _frames(link.__traceback__)
        if any(_line_or_none(frame) is None for frame in frames):
            link.__traceback__ = _joined(frames)


def _line_or_none(frame: TracebackType) -> int | None:
    line: int | None = frame.tb_lineno  # typeshed knows no None
    return line


def _joined(frames: Sequence[TracebackType]) -> TracebackType | None:
    """Return a traceback of these frames, each with a line number."""
    result: TracebackType | None = None
    for frame in reversed(frames):
        line = _line_or_none(frame) or frame.tb_frame.f_code.co_firstlineno
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, line)
    return result


def hide_own_frames() -> None:
    """Install an excepthook that hides our frames in a script's errors.

    A hook that the script has installed stays.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:  # a chain of errors may be a cycle
        seen.add(id(link))
        link.__traceback__ = without_own_frames(link.__traceback__)
        link = _drop_own_errors(link)
    sys.__excepthook__(kind, error, traceback)


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _own_end(frames: Sequence[TracebackType]) -> int:
    """Return the index from which on no frame is the user's."""
    end = len(frames)
    for place in reversed(range(len(frames))):
        if is_own_frame(frames[place]):
            end = place
        elif _module(frames[place]) not in sys.stdlib_module_names:
            break
    return end


def _drop_own_errors(error: BaseException) -> BaseException | None:
    """Unlink causes that our own code raised and caught.

    Returns the next error of the chain that Python shows, or None.
    """
    below = link = _below(error)
    seen = {id(error)}  # a chain of errors may be a cycle
    while link is not None and link.__traceback__ is not None and id(link) not in seen:
        if _own_end(_frames(link.__traceback__)):
            break
        seen.add(id(link))
        link = _below(link)
    if link is not below:
        error.__cause__, error.__context__ = None, link
        error.__suppress_context__ = link is None
    return link


def _below(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def clear_own_frames(error: BaseException | None) -> None:
    """Release the local variables of our frames at a traceback's end.

    They hold arrays, and the group of an ended epoch with its descriptors. A displayed error is
    part of a reference cycle, which would keep them until a garbage collection. Users do not
    inspect our frames.
    """
    for link in _chain(error):
        frames = _frames(link.__traceback__)
        while frames and is_own_frame(frames[-1]):
            with contextlib.suppress(RuntimeError):  # the frame still runs in another thread
                frames.pop().tb_frame.clear()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error and its causes; they may be a cycle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_own_frame(traceback: TracebackType) -> bool:
    """Return whether a traceback's first frame is phalanx's or pydevd's code."""
    # Compare the module name, not the file: an editable install spreads over several folders.
    return _module(traceback) in _OWN


def _module(traceback: TracebackType) -> str:
    """Return the top-level module of a traceback's first frame."""
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
