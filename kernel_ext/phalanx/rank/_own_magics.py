"""Our magics on a rank: they are the notebook's, and say so where a cell for the ranks has them.

It knows IPython's shell; what the magics do is the notebook's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["prepare_own_magics"]

_NAMES = ("distributed", "autodistributed", "local")


def prepare_own_magics(shell: Any) -> None:
    """Refuse our magics with what to do instead; IPython would say that there are none."""
    for name in _NAMES:
        shell.register_magic_function(_refusal(name), "line_cell", name)


def _refusal(name: str) -> Callable[..., NoReturn]:
    from IPython.core.error import UsageError

    def refuse(line: str, cell: str | None = None) -> NoReturn:  # noqa: ARG001
        """Say where it belongs."""
        magic = f"%{name}" if cell is None else f"%%{name}"
        msg = (
            f"{magic} is the notebook's, and this cell runs on the ranks: give it a cell of its own"
        )
        raise UsageError(msg)

    return refuse
