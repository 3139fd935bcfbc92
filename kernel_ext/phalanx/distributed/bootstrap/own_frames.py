"""Hide our own frames in the errors that a user sees."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath
from types import FrameType, TracebackType

# pydevd's frames stand in the traceback of a cell that was stopped at a breakpoint.
_OWN = frozenset({"phalanx", "pydevd", "_pydevd_bundle", "_pydevd_sys_monitoring"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})  # folders of libraries

# An error with its cause, context, suppression of the context, and traceback.
_Saved = tuple[
    BaseException, BaseException | None, BaseException | None, bool, TracebackType | None
]


def hide_in_scripts() -> None:
    """Install an excepthook that hides our frames in a script's errors.

    A hook that the script has installed stays.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    with own_frames_hidden(error):
        sys.__excepthook__(kind, error, traceback)


@contextlib.contextmanager
def own_frames_hidden(error: BaseException) -> Iterator[bool]:
    """Hide our frames in an error, its causes and a group's errors.

    Causes that our code raised and caught itself are hidden as a whole. They may hide a cause of the
    user's: an error that the user's code handled when it called us, or one of the user's code that
    we called. This cause is shown. At the end of the context all is as before.

    Yields
    ------
    bool
        Whether the error is shown without a cause.
    """
    saved: list[_Saved] = []
    try:
        _hide(error, saved, set())
        yield _shown_cause(error) is None
    finally:
        for one, cause, context, is_alone, traceback in saved:
            one.__cause__, one.__context__ = cause, context
            one.__suppress_context__ = is_alone
            one.__traceback__ = traceback


def _hide(error: BaseException, saved: list[_Saved], seen: set[int]) -> None:
    one: BaseException | None = error
    while one is not None:
        seen.add(id(one))
        is_alone = one.__suppress_context__
        saved.append((one, one.__cause__, one.__context__, is_alone, one.__traceback__))
        members = getattr(one, "exceptions", ())  # of a group; other errors may have the name, too
        for each in members if isinstance(members, tuple) else ():
            if isinstance(each, BaseException) and id(each) not in seen:
                _hide(each, saved, seen)
        frames = _frames(one.__traceback__)
        users = _users_part(frames)
        is_ours = _own_end(frames) < len(frames)
        cause = _users_cause(one, is_ours, {its.tb_frame for its in users}, seen)
        if cause is not _shown_cause(one):
            is_direct = cause is not None and cause is one.__cause__
            one.__cause__, one.__context__ = (cause, None) if is_direct else (None, cause)
            one.__suppress_context__ = is_direct
        one.__traceback__ = _joined(users)
        one = cause


def _users_cause(
    error: BaseException, is_ours: bool, through: Collection[FrameType], seen: set[int]
) -> BaseException | None:
    """Find the nearest cause of an error that is not ours only.

    ``is_ours``: our code raised the error. Its ``from None`` then hides our errors, not those that
    they hide. ``through`` are the user's frames that the error has passed.
    """
    shown = _shown_cause(error)
    for cause in (shown, error.__context__) if is_ours else (shown,):
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        if _is_ours_only(_frames(cause.__traceback__), is_ours, through):
            if (found := _users_cause(cause, True, through, seen)) is not None:
                return found
        elif cause is shown or error.__cause__ is not None:
            return cause
    return None


def _is_ours_only(
    frames: Sequence[TracebackType], is_of_ours: bool, through: Collection[FrameType]
) -> bool:
    """Whether an error was raised and caught below the user's code.

    ``is_of_ours``: the error is the cause of one that our code has raised. If it is of a library,
    that library is ours to call, unless the later error has passed the same frame.
    """
    if any(_is_users(its) or its.tb_frame in through for its in frames):
        return False
    return is_of_ours or (bool(frames) and not _own_end(frames))


def _shown_cause(error: BaseException) -> BaseException | None:
    """Return the cause that Python shows with an error."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Drop our frames from the end of a traceback.

    If `px.all_sum` refuses an array, the traceback then ends at the user's call. Frames of Python's
    own library that we called are dropped too. Our frames that have user code below them (we called
    the user's code) stay, but not those before the first frame of the user.
    """
    return _joined(_users_part(_frames(traceback)))


def _users_part(frames: Sequence[TracebackType]) -> Sequence[TracebackType]:
    """Return the frames to show: at least one."""
    kept = frames[: _own_end(frames)] or frames[:1]
    if kept and is_own_frame(kept[0]):
        kept = kept[next((at for at, its in enumerate(kept) if _is_users(its)), 0) :]
    return kept


def _own_end(frames: Sequence[TracebackType]) -> int:
    """Return the index from which on no frame is the user's."""
    end = len(frames)
    for place in reversed(range(len(frames))):
        if is_own_frame(frames[place]):
            end = place
        elif _module(frames[place]) not in sys.stdlib_module_names:
            break
    return end


def _joined(frames: Sequence[TracebackType]) -> TracebackType | None:
    """Return a traceback of these frames, each with a line number.

    Python has none for instructions that it adds itself, where an interrupt may arrive. IPython
    then shows an error of its own formatter instead of the user's error.
    """
    result: TracebackType | None = None
    for frame in reversed(frames):
        line: int | None = frame.tb_lineno  # typeshed knows no None
        line = line or frame.tb_frame.f_code.co_firstlineno
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, line)
    return result


def clear_own_frames(error: BaseException | None) -> None:
    """Release the local variables of our frames at a traceback's end.

    They hold arrays, and the group of an ended epoch with its descriptors. A displayed error is
    part of a reference cycle, which would keep them until a garbage collection. Users do not
    inspect our frames.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # a chain of errors may be a cycle
        seen.add(id(error))
        frames = _frames(error.__traceback__)
        while frames and is_own_frame(frames[-1]):
            with contextlib.suppress(RuntimeError):  # the frame still runs in another thread
                frames.pop().tb_frame.clear()
        error = error.__cause__ or error.__context__


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _is_users(traceback: TracebackType) -> bool:
    """Whether a traceback's first frame is the user's code, and no library's."""
    module = _module(traceback)
    if module == "__main__" or module in _OWN or module in sys.stdlib_module_names:
        return module == "__main__"
    return _INSTALLED.isdisjoint(PurePath(traceback.tb_frame.f_code.co_filename).parts)


def is_own_frame(traceback: TracebackType) -> bool:
    """Return whether a traceback's first frame is phalanx's or pydevd's code."""
    # Compare the module name, not the file: an editable install spreads over several folders.
    return _module(traceback) in _OWN


def _module(traceback: TracebackType) -> str:
    """Return the top-level module of a traceback's first frame."""
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
