"""How IPython shows the errors of cells: as they say for themselves.

It knows the shell's own hook for that, and nothing of ranks.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from phalanx.errors import CellError

__all__ = ["leave_errors", "show_errors"]


def show_errors(shell: Any) -> None:
    """Have cells' errors shown well that are SyntaxErrors as well.

    A `CellError` renders itself. Of a SyntaxError IPython does not ask that: it would show our
    frames instead, and neither ranks nor the caret. A hook of the user's own is left alone.
    """
    if not shell.custom_exceptions:
        shell.set_custom_exc((CellError,), _show)


def leave_errors(shell: Any) -> None:
    """Take the hook away; idempotent."""
    if shell.custom_exceptions == (CellError,):
        shell.set_custom_exc((), None)


def _show(
    shell: Any,
    etype: type[CellError],
    error: CellError,
    traceback: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    if isinstance(error, SyntaxError):
        etype = type(etype.__name__, (CellError,), {"__module__": etype.__module__})
        error = etype(error.failures)
    shell.showtraceback((etype, error, traceback), tb_offset=tb_offset)
