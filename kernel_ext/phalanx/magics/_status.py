"""The place of a cell's status line: a display that is updated, or a terminal's last line.

It knows IPython's displays and a terminal's line; nothing of what is said.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from typing import Any

from IPython.display import publish_display_data

__all__ = ["KernelStatus", "NoStatus", "TerminalStatus", "status_for"]

ERASE = "\r\x1b[K"


class KernelStatus:
    """A display of its own, emptied in the end: without data it takes no room in a notebook."""

    is_shown = True  # whether `show` shows anything at all

    def __init__(self) -> None:
        self._display_id = ""
        self._text = ""

    def show(self, text: str) -> None:
        """Show the line, in place of the one before; the same text costs nothing."""
        if text == self._text:
            return
        self._text = text
        is_update = bool(self._display_id)
        self._display_id = self._display_id or str(uuid.uuid4())
        data = {"text/plain": text} if text else {}
        transient = {"display_id": self._display_id}
        publish_display_data(data, {}, transient=transient, update=is_update)

    def lift(self) -> None:
        """Make room for what is shown next: nothing to do, it has a place of its own."""


class TerminalStatus:
    """The last line of a terminal; whoever writes there calls `lift` first."""

    is_shown = True

    def __init__(self) -> None:
        self._is_drawn = False

    def show(self, text: str) -> None:
        """Write the line over the one before, cut to the terminal's width; empty: erase it."""
        self.lift()
        if text:
            columns = shutil.get_terminal_size().columns
            sys.stdout.write(text[: max(0, columns - 1)])
            sys.stdout.flush()
            self._is_drawn = True

    def lift(self) -> None:
        """Erase the line."""
        if self._is_drawn:
            sys.stdout.write(ERASE)
            sys.stdout.flush()
            self._is_drawn = False


class NoStatus:
    """For a pipe, a file, or a terminal that cannot erase a line."""

    is_shown = False

    def show(self, text: str) -> None:
        """Drop it."""

    def lift(self) -> None:
        """Do nothing."""


def status_for(shell: Any) -> KernelStatus | TerminalStatus | NoStatus:
    """Make the status line that this shell can show."""
    if hasattr(shell, "kernel"):
        return KernelStatus()
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return TerminalStatus()
    return NoStatus()
