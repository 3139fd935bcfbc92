"""Give the ranks to one cell or call at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from phalanx.errors import DistributedError

from .cell import Cell

CHECK_S = 0.25  # how late a waiting cell notices a stop


class CellRuns(DistributedError):
    """The ranks already run something; the text names it."""


class ExecutionSlot:
    """Gives the ranks to one cell at a time.

    The lock guards all fields.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.cell: Cell | None = None  # the cell that runs, even if nobody waits for it
        self.is_taken = False  # whether this process waits for a running cell
        self._line: list[Cell] = []  # calls that wait, the next one first
        self.n_ended = 0

    def _say_why(self) -> str:
        # The cell may have ended just now.
        found = self.cell or next(iter(self._line), None)
        return "a cell ran already" if found is None else found.text

    @contextmanager
    def take(
        self,
        cell: Cell,
        tell: Callable[[str], None] = lambda _text: None,
        check: Callable[[], object] | None = None,
    ) -> Iterator[None]:
        """Hold the ranks inside the context.

        With ``check`` wait in line for them: ``tell`` gets one line about the cell that is waited
        for, if there is one. ``check`` is called four times a second, and raises to end the waiting.

        Raises
        ------
        CellRuns
            Another cell has the ranks; only without ``check``.
        """
        if check is not None:
            self._wait_for(cell, tell, check)
        with self._changed:
            if not self._is_free_for(cell):
                way_out = "wait for it, or stop it with %distributed interrupt"
                msg = f"{self._say_why()}; {way_out}"
                raise CellRuns(msg)
            # From here on the cell can be interrupted: a rank remembers an interrupt until the
            # cell arrives.
            self.is_taken, self.cell, cell.since_s = True, cell, time.monotonic()
            del self._line[:1]
        try:
            yield
        finally:
            with self._changed:
                self.is_taken, self.cell = False, None
                self.n_ended += 1
                self._changed.notify_all()

    def _is_free_for(self, cell: Cell) -> bool:
        return not self.is_taken and (not self._line or self._line[0] is cell)

    def line_up(self, cell: Cell) -> None:
        """Append a cell to the queue, for which `take` waits; idempotent."""
        with self._changed:
            if cell not in self._line:
                self._line.append(cell)

    def leave_line(self, cell: Cell) -> None:
        """Remove a cell from the queue; idempotent."""
        with self._changed:
            if cell in self._line:
                self._line.remove(cell)
            self._changed.notify_all()

    def _wait_for(
        self, cell: Cell, tell: Callable[[str], None], check: Callable[[], object]
    ) -> None:
        self.line_up(cell)
        try:
            check()
            if not self._is_free_within(cell, 0.0):
                tell(f"{cell.what} waits: {self._say_why()}")
                while not self._is_free_within(cell, CHECK_S):
                    check()
                check()  # the cell before may have ended for the reason that ends this wait
        except BaseException:
            self.leave_line(cell)
            raise

    def _is_free_within(self, cell: Cell, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_free_for(cell), timeout_s)
