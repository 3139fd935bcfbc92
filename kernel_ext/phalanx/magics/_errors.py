"""How IPython shows the errors of cells: as they say for themselves, and without our own frames.

It knows the shell's hook for that and the user's part of a traceback, and nothing of ranks.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from phalanx.errors import CellError, DistributedError
from phalanx.rank import without_own_frames

__all__ = ["leave_errors", "show_errors"]

_SHOWN = (Exception, KeyboardInterrupt)
# What a mistake of a caller ends in. Other errors would be ours: their frames are wanted.
_SAID = (DistributedError, KeyboardInterrupt, OSError, TypeError, ValueError)


def show_errors(shell: Any) -> None:
    """Have cells' errors shown well that our functions raise, or that are SyntaxErrors as well.

    A `CellError` renders itself. Of a SyntaxError IPython does not ask that: it would show our
    frames instead, and neither ranks nor the caret. A mistake in a call of ours is shown where
    the call is, in one line if that is all there is; `%tb` shows our frames as well. A hook of
    the user's own is left alone.
    """
    if not shell.custom_exceptions:
        shell.set_custom_exc(_SHOWN, _show)


def leave_errors(shell: Any) -> None:
    """Take the hook away; idempotent."""
    if shell.custom_exceptions is _SHOWN:
        shell.set_custom_exc((), None)


def _show(
    shell: Any,
    etype: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    def show(etype: type[BaseException], error: BaseException, shown: TracebackType | None) -> None:
        shell.showtraceback((etype, error, shown), tb_offset=tb_offset, running_compiled_code=True)

    if isinstance(error, CellError):
        if isinstance(error, SyntaxError):
            etype = type(etype.__name__, (CellError,), {"__module__": etype.__module__})
            error = etype(error.failures)
        show(etype, error, traceback)
        return
    users = without_own_frames(traceback)
    if not _is_said(error, traceback, users):
        show(etype, error, traceback)
        return
    with _users_causes(shell, error) as is_alone:
        # A debugger, if the user wants one, is opened by what shows tracebacks.
        if is_alone and not shell.call_pdb and _is_one_line(shell, users):
            text = str(error)
            shell._showtraceback(
                etype, error, [f"{etype.__name__}: {text}" if text else etype.__name__]
            )
        else:
            show(etype, error, users)
    sys.last_type, sys.last_value, sys.last_traceback = etype, error, traceback  # for %tb


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _is_said(
    error: BaseException, traceback: TracebackType | None, users: TracebackType | None
) -> bool:
    """Whether one of our functions has raised it for its caller."""
    last, users_last = _last(traceback), _last(users)
    if last is None or users_last is None or last.tb_frame is users_last.tb_frame:
        return False
    if isinstance(error, AttributeError):
        return last.tb_frame.f_code.co_name == "__getattr__"  # of a name that we do not have
    return isinstance(error, _SAID)


def _is_one_line(shell: Any, users: TracebackType | None) -> bool:
    """Whether the call stands in the cell itself, and is all of it."""
    last, first = _last(users), _first_of(shell, users)
    if last is None or first is None or last.tb_frame.f_globals is not shell.user_ns:
        return False
    code = last.tb_frame.f_code
    while first is not None:  # a lambda of another cell is not in this one
        if first.tb_frame.f_code.co_filename != code.co_filename:
            return False
        first = first.tb_next
    lines = [line for line in linecache.getlines(code.co_filename) if line.strip()]
    return code.co_name.startswith("<") and len(lines) == 1


def _first_of(
    shell: Any, traceback: TracebackType | None, frames: Collection[FrameType] = ()
) -> TracebackType | None:
    """Where the code of cells begins, or one of some frames."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals is shell.user_ns or frame in frames:
            break
        traceback = traceback.tb_next
    return traceback


def _users_cause(
    shell: Any, error: BaseException, through: set[FrameType], seen: set[int]
) -> tuple[BaseException, TracebackType] | None:
    """The nearest of what an error came from that is the user's, and where in it that begins.

    It has come to a frame ``through`` which the error came later, or through the code of cells
    that we had called. What is ours alone may hide one that was handled when we were called.
    """
    is_from_none = error.__suppress_context__ and error.__cause__ is None
    for cause in (error.__cause__, error.__context__):
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        begin = _first_of(shell, cause.__traceback__, through)
        if begin is None:
            found = _users_cause(shell, cause, through, seen)
            if found is not None:
                return found
        elif not is_from_none:
            return cause, begin
    return None


def _frames(traceback: TracebackType | None) -> set[FrameType]:
    frames = set()
    while traceback is not None:
        frames.add(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


@contextmanager
def _users_causes(shell: Any, error: BaseException) -> Iterator[bool]:
    """Show an error of ours with only what the user's code did before; yields whether it is alone.

    The rest of what it was made of has happened in our frames.
    """
    kept: list[tuple[BaseException, Any, Any, bool, Any]] = []

    def keep(one: BaseException) -> None:
        is_alone = one.__suppress_context__
        kept.append((one, one.__cause__, one.__context__, is_alone, one.__traceback__))

    keep(error)
    seen = {id(error)}
    one: BaseException | None = error
    through = _frames(without_own_frames(error.__traceback__))
    try:
        while one is not None:
            found = _users_cause(shell, one, through, seen)
            is_cause = found is not None and found[0] is one.__cause__
            shown, begin = found or (None, None)
            one.__cause__, one.__context__ = (shown, None) if is_cause else (None, shown)
            one.__suppress_context__ = is_cause
            one = None
            if shown is not None:
                keep(shown)
                users = without_own_frames(begin)
                is_said = _is_said(shown, begin, users)  # one more of ours; else all is the user's
                shown.__traceback__ = users if is_said else begin
                one, through = (shown, _frames(users)) if is_said else (None, through)
        yield error.__cause__ is None and error.__context__ is None
    finally:
        for each, cause, context, is_alone, traceback in kept:
            each.__cause__, each.__context__ = cause, context
            each.__suppress_context__, each.__traceback__ = is_alone, traceback
