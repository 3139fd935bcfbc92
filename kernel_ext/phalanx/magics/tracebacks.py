"""Show errors of cells without our own frames, and debug them."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any

from IPython.core.error import UsageError

from phalanx.distributed.bootstrap.own_frames import own_frames_hidden, without_own_frames
from phalanx.errors import CellError, DistributedError, Failures
from phalanx.protocol import format_ranks, name_ranks
from phalanx.workspace import RankError, View, Workspace

from .patches import Patches

_SHOWN = (Exception, KeyboardInterrupt)
# Errors that a caller's mistake raises. Any other error is a defect of ours: show its frames.
_SAID = (DistributedError, KeyboardInterrupt, OSError, TypeError, ValueError)


def show_errors(shell: Any, patches: Patches) -> None:
    """Install the hook that shows errors without our own frames.

    A `CellError` renders itself. If the error is a SyntaxError as well, IPython would not let it:
    IPython would show our frames, and neither the ranks nor the caret. A mistake in a call of ours
    is shown at the call, in one line if the call is the whole cell; `%tb` shows our frames as well.
    A hook that the user has installed is left alone.
    """
    if not shell.custom_exceptions:
        shell.set_custom_exc(_SHOWN, _show)
        patches.callback(_leave_errors, shell)


def _leave_errors(shell: Any) -> None:
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
    with own_frames_hidden(error) as is_alone:
        # With `%pdb` the function that shows tracebacks opens the debugger.
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
    """Whether one of our functions raised the error for its caller."""
    last, users_last = _last(traceback), _last(users)
    if last is None or users_last is None or last.tb_frame is users_last.tb_frame:
        return False
    if isinstance(error, AttributeError):
        return last.tb_frame.f_code.co_name == "__getattr__"  # for a name that we do not have
    return isinstance(error, _SAID)


def _is_one_line(shell: Any, users: TracebackType | None) -> bool:
    """Whether the call stands in the cell and is its only line."""
    last, first = _last(users), users
    if last is None or last.tb_frame.f_globals is not shell.user_ns:
        return False
    code = last.tb_frame.f_code
    while first is not None and first.tb_frame.f_globals is not shell.user_ns:
        first = first.tb_next  # IPython's frames
    while first is not None:  # a lambda may be defined in another cell
        if first.tb_frame.f_code.co_filename != code.co_filename:
            return False
        first = first.tb_next
    lines = [line for line in linecache.getlines(code.co_filename) if line.strip()]
    return code.co_name.startswith("<") and len(lines) == 1


def debug_ranks(workspace: Workspace, ranks: Sequence[int] | None, view: View) -> None:
    """Open the post-mortem debugger on these ranks until it is left.

    ``ranks`` None: the ranks on which the last cell failed, without those that only waited for
    them. A notice names the ranks with a last error of an earlier cell.

    Raises
    ------
    UsageError
        One of the ranks has had no error yet, or the last cell failed on no rank.
    """
    errors = {error.rank: error for error in workspace.last_errors(ranks)}
    if ranks is None:
        ranks = _failed(errors.values())
    without = [rank for rank in ranks if rank not in errors]
    if without:
        msg = f"nothing to debug: no cell has failed on {name_ranks(without)} yet"
        raise UsageError(msg)
    earlier: dict[str, list[int]] = {}
    for rank in ranks:
        if not errors[rank].is_of_last_cell:
            earlier.setdefault(_words(errors[rank]), []).append(rank)
    for text, of in earlier.items():
        view.notice(f"the last error of {name_ranks(of)} is of an earlier cell: {text}")
    workspace.run("%debug", ranks=ranks, view=view)


def debug_failed(workspace: Workspace | None, error: CellError, view: View) -> None:
    """Open the post-mortem debugger where an error of a cell began.

    Raises
    ------
    UsageError
        The ranks are gone, or have another error by now.
    """
    if workspace is None:
        msg = "nothing to debug here: the error is of ranks that are gone"
        raise UsageError(msg)
    ranks = sorted(rank for group in error.causes() for rank in group.ranks)
    found = {one.rank: (one.ename, one.evalue) for one in workspace.last_errors(ranks)}
    if any(found.get(rank) != error.failures[rank][:2] for rank in ranks):
        msg = (
            "nothing to debug here: the error is of ranks, which do not have it any more; "
            "%distributed debug R opens the last one of rank R"
        )
        raise UsageError(msg)
    view.notice(f"the debugger is on {name_ranks(ranks)}, where the cell has failed")
    workspace.run("%debug", ranks=ranks, view=view)


def _failed(errors: Collection[RankError]) -> list[int]:
    """Return the ranks with an own error in the last cell."""
    failures: Failures = {e.rank: (e.ename, e.evalue, ()) for e in errors if e.is_of_last_cell}
    if failures:
        return sorted(rank for group in CellError(failures).causes() for rank in group.ranks)
    if not errors:
        msg = "nothing to debug: no cell has failed yet"
    else:
        earlier = [error.rank for error in errors]
        msg = (
            f"nothing to debug: the last cell has failed on no rank; %distributed debug "
            f"{format_ranks(earlier)} opens {name_ranks(earlier)} at an earlier cell's error"
        )
    raise UsageError(msg)


def _words(error: RankError) -> str:
    text = error.evalue.partition("\n")[0]
    return f"{error.ename}: {text}" if text else error.ename
