"""`exit` in a cell: it ends the cell there, never the rank.

It knows IPython's shell and namespace; what the notebook is told is the kernel's.
"""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["prepare_exit", "say_left"]

_HINT = "ends the cell, not the rank; %distributed stop ends the ranks"


def prepare_exit(shell: Any) -> None:
    """Have `exit` and `quit` raise SystemExit, as in a script.

    IPython's would end this process a moment after the cell, in the middle of the next.
    """
    from IPython.core.autocall import ZMQExitAutocall

    class LeaveCell(ZMQExitAutocall):  # type: ignore[misc]
        """Called by its bare name, too, as IPython's is."""

        def __call__(self, code: object = None, *, keep_kernel: bool = False) -> None:
            raise SystemExit(code)

    shell.exiter = LeaveCell(shell)  # `%reset` takes it from there
    shell.user_ns["exit"] = shell.user_ns["quit"] = shell.exiter
    # IPython's advice for a terminal.
    warnings.filterwarnings("ignore", "To exit: use 'exit', 'quit'", UserWarning)


def say_left(value: str) -> str:
    """Say what SystemExit came to.

    Examples
    --------
    >>> say_left("3")
    '3 (ends the cell, not the rank; %distributed stop ends the ranks)'
    """
    return f"{value} ({_HINT})" if value and value != "None" else f"it {_HINT}"
