"""How IPython shows the errors of cells: as they say for themselves, and without our own frames.

It knows the shell's hook for that and the user's part of a traceback, and nothing of ranks.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
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
    with _without_causes(error):
        if _is_one_line(shell, users):
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
    last = _last(users)
    if last is None or last.tb_frame.f_globals is not shell.user_ns:
        return False
    code = last.tb_frame.f_code
    lines = [line for line in linecache.getlines(code.co_filename) if line.strip()]
    return code.co_name.startswith("<") and len(lines) == 1


@contextmanager
def _without_causes(error: BaseException) -> Iterator[None]:
    """Show it alone: what it was made of has happened in our frames."""
    cause, is_alone = error.__cause__, error.__suppress_context__
    error.__cause__, error.__suppress_context__ = None, True
    try:
        yield
    finally:
        error.__cause__, error.__suppress_context__ = cause, is_alone
