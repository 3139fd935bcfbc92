"""`%autodistributed`: every cell runs on the ranks, until `%%local` or `off`.

It knows IPython's input transformers; what a cell does on the ranks is `%%distributed`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["AutoDistributed"]

# Cells that begin so are the notebook's own: ours, and those that make ours known.
_OWN = (
    "%%distributed",
    "%%local",
    "%distributed",
    "%autodistributed",
    "%load_ext",
    "%reload_ext",
    "%unload_ext",
)


class AutoDistributed:
    """Puts `%%distributed` before each cell while it is on."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._is_on = False

    def set(self, is_on: bool) -> None:
        """Switch on or off; idempotent."""
        transformers = self._shell.input_transformers_cleanup
        if is_on and not self._is_on:
            transformers.append(self._transform)
        elif self._is_on and not is_on:
            transformers.remove(self._transform)
        self._is_on = is_on

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the cells alone meanwhile."""
        was_on = self._is_on
        self.set(False)
        try:
            yield
        finally:
            self.set(was_on)

    def takes(self, cell: str) -> bool:
        """Whether this cell, which does not say so, runs on the ranks."""
        return self._is_on and not cell.lstrip().startswith(_OWN)

    def _transform(self, lines: list[str]) -> list[str]:
        """Transform a cell's lines as IPython asks for (each with its end)."""
        cell = "".join(lines)
        return ["%%distributed\n", *lines] if cell.strip() and self.takes(cell) else lines

    # IPython's word for: not while it asks whether a cell is complete (in a terminal, at Enter),
    # as a cell magic is so only after an empty line.
    _transform.has_side_effects = True  # type: ignore[attr-defined]
