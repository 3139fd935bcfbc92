"""What a cell reads: this rank's copy of the log of typed lines, and its place in it.

It knows lines, cells and a way to ask for more; nothing of kernels, sockets or front ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["InputNeed", "TypedLines"]

# A wait wakes this often so that an interrupt of the main thread is seen at once (a Condition's
# wait in the main thread returns on a signal only when it has a timeout on some platforms).
POLL_S = 0.2


@dataclass(frozen=True)
class InputNeed:
    """A rank needs line number ``index`` of a cell's log, which nobody has typed yet."""

    cell: str
    index: int
    prompt: str
    password: bool


class TypedLines:
    """An append-only log of the lines typed for one cell, shared by its ranks.

    Every rank has the same log and a place of its own in it, so one typed line answers the same
    question on all ranks, and a rank that reads more asks for more. Lines come on another
    thread (`feed`) than the reader's (`next_line`), may come before the cell begins here, twice
    or out of order; ``index`` makes all of that harmless. A line None is the end of input.
    """

    def __init__(self, ask: Callable[[InputNeed], None]) -> None:
        self._ask = ask
        self._condition = threading.Condition()
        self._cell = ""
        self._lines: dict[str, dict[int, str | None]] = {}
        self._refusals: dict[str, str] = {}
        self._place = 0

    def begin(self, cell: str) -> None:
        """Start a new log for a cell (lines that overtook it are kept)."""
        with self._condition:
            self._cell = cell
            self._place = 0
            self._lines = {cell: self._lines.get(cell, {})}
            self._refusals = {c: text for c, text in self._refusals.items() if c == cell}

    def end(self) -> None:
        """Forget the log with its cell; who still reads gets the end of input."""
        with self._condition:
            self._cell = ""
            self._lines.clear()
            self._refusals.clear()
            self._condition.notify_all()

    def feed(self, cell: str, index: int, line: str | None) -> None:
        """Take a typed line (None: the end of input)."""
        with self._condition:
            self._lines.setdefault(cell, {}).setdefault(index, line)
            self._condition.notify_all()

    def refuse(self, cell: str, message: str) -> None:
        """Nobody can be asked: every read of this cell fails with this text."""
        with self._condition:
            self._refusals[cell] = message
            self._condition.notify_all()

    def next_line(self, prompt: str = "", *, password: bool = False) -> str:
        """Return the next line of the log, asking for it where it is not there yet.

        Raises
        ------
        EOFError
            The end of input was typed.
        RuntimeError
            No cell runs, or the front end cannot ask.
        """
        with self._condition:
            cell, index = self._cell, self._place
            if not cell:
                msg = "input() works while a cell runs"
                raise RuntimeError(msg)
            self._place += 1
            is_asked = False
            while index not in self._lines.get(cell, {}):
                if cell in self._refusals:
                    raise RuntimeError(self._refusals[cell])
                if self._cell != cell:
                    raise EOFError
                if not is_asked:
                    self._ask(InputNeed(cell, index, prompt, password))
                    is_asked = True
                self._condition.wait(POLL_S)
            line = self._lines[cell][index]
            if line is None:
                self._place = index  # the end of input stays the end
                raise EOFError
            return line
